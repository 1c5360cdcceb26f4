package record

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// write appends the ready records of the batch to the spool. On a full volume it retries
// until there is room; meanwhile the shim stops reading the agent's output.
func (r *Recorder) write(ctx context.Context) (line int64, err error) {
	if r.ready == 0 && (r.reached == r.marked || r.session == "") {
		return r.marked, nil
	}
	ready, next := r.batch[:r.ready], r.state
	for _, rec := range ready {
		if m := rec.GetMessage(); m != nil {
			next.Recorded(m)
		}
		next.Noted(rec.GetEvent())
	}
	var mark *spool.Mark
	parser := r.parser
	if r.session != "" {
		if r.pending {
			parser = r.before
		}
		next.Session, next.Outcome = parser.Session(), parser.Outcome()
		mark = &spool.Mark{Session: r.session, Line: r.reached, State: next.Encode()}
	}
	err = r.persist(ctx, func() error { return r.store(mark, ready) })
	if err != nil {
		return r.marked, err
	}
	for _, rec := range ready {
		r.size -= proto.Size(rec)
		r.count(rec)
	}
	r.batch, r.ready, r.state = slices.Clone(r.batch[r.ready:]), 0, next
	if r.session != "" && r.reached != r.marked {
		r.base, r.marked = parser.Clone(), r.reached
		r.dropLong()
	}
	return r.marked, nil
}

// persist retries do until it succeeds, the spool is broken, or ctx ends.
func (r *Recorder) persist(ctx context.Context, do func() error) error {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for tried := false; ; tried = true {
		err := do()
		if err == nil && tried {
			r.problems.Recorded(nil)
		}
		if err == nil || errors.Is(err, spool.ErrBroken) {
			return err
		}
		r.log.Error(err, "the agent's output cannot be recorded; it is held back")
		r.problems.Recorded(err)
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// store appends records to the spool. The work that they report is synced to disk first:
// the agent syncs nothing, and a power cut would leave a history of work that the worktree
// no longer has.
func (r *Recorder) store(mark *spool.Mark, records []*daemonv1.Record) error {
	if slices.ContainsFunc(records, mayReportWork) {
		if err := r.sync(); err != nil {
			return err
		}
	}
	return r.spool.Append(mark, records...)
}

// mayReportWork reports whether a record may be about completed work: any message except
// a call, which announces it.
func mayReportWork(rec *daemonv1.Record) bool {
	return rec.GetMessage() != nil && rec.GetMessage().GetToolCall() == nil
}
