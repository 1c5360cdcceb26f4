package record

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// State returns the state of the agent's run as of the last line recorded.
func (r *Recorder) State() agentstate.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Recall restores the state of a session's run that an earlier process recorded.
func (r *Recorder) Recall(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.spool.Mark(); m.Session == session && session != "" {
		r.state = agentstate.Decode(m.State)
	}
}

// LastOutput returns when a line was last added, and the end of the plain output.
func (r *Recorder) LastOutput() (time.Time, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastAdded, r.tail
}

// BeginCall records on disk a call that the hook reports before the output does.
func (r *Recorder) BeginCall(ctx context.Context, b wire.BeforeTool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := func(c agentstate.Call) bool { return c.Key == b.Key || !c.Unnamed && c.ID == b.ID }
	if r.session == "" || b.Key == "" || b.Cut || len(r.state.Begun) >= maxBegun || slices.ContainsFunc(r.state.Begun, known) || slices.Contains(r.open, b.ID) {
		return nil
	}
	call := agentstate.Call{Key: b.Key, ID: b.ID, Unnamed: b.ID == "", Name: b.Name, Input: b.Input}
	if call.Unnamed {
		call.ID = fmt.Sprintf("cut/%d/%s", r.attempt, b.Key)
	}
	if r.mask != nil {
		call.Name, call.Input = r.mask.Text(call.Name), r.mask.Text(call.Input)
	}
	next := r.state
	next.Begun = append(slices.Clone(next.Begun), call)
	mark := &spool.Mark{Session: r.session, Line: r.marked, State: next.Encode()}
	if err := r.persist(ctx, func() error { return r.spool.Append(mark) }); err != nil {
		return err
	}
	r.state = next
	return nil
}

// Insert writes records to disk that are not made from the agent's output, behind what is recorded of
// that so far. It may be called while the agent works.
func (r *Recorder) Insert(ctx context.Context, records ...*daemonv1.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.write(ctx); err != nil {
		return err
	}
	for _, rec := range records {
		r.stamped(rec)
	}
	return r.change(ctx, r.state, records)
}

// AppendRecord writes a record to disk that is not made from the agent's output, once that has ended.
func (r *Recorder) AppendRecord(ctx context.Context, rec *daemonv1.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.push(rec)
	r.ready = len(r.batch)
	_, err := r.write(ctx)
	return err
}
