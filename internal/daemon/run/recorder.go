package run

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/backoff"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxLine is the length up to which a line is read as JSON; the rest of a
	// longer one is plain output.
	maxLine = 4 << 20
	// maxOutput is the size at which plain output becomes a record.
	maxOutput = 32 << 10
	// maxBatch is the number of records at which a batch goes to disk.
	maxBatch = 256
	// outputDelay is how long plain output waits for more of it.
	outputDelay = 200 * time.Millisecond
)

var (
	errStale = errors.New("the shim has connected anew")
	errOrder = errors.New("the shim left out a line")
)

// recorder turns the agent's output into records in the spool. A line counts as
// recorded only when all that it says is on disk.
type recorder struct {
	spool   *spool.Spool
	parser  agent.Parser
	attempt int64
	log     logr.Logger

	mu      sync.Mutex
	epoch   int // of the connection that may add lines
	session string
	taken   int64  // last line taken in
	piece   []byte // the beginning of a line that goes on
	long    bool   // that line is too long to be read as JSON
	output  strings.Builder
	since   time.Time // when the output began to wait
	through int64     // last line or piece in the output
	batch   []*daemonv1.Record
	reached int64 // last line or piece in the batch

	open    []string // calls without a result
	answers int      // calls answered since the last checkpoint
	records int      // records since the last checkpoint
}

// attach makes a new connection of a session the only one that may add lines,
// and returns the last line that is recorded. What an older connection had left
// unrecorded is forgotten: it comes again.
func (r *recorder) attach(session string) (epoch int, line int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	r.session = session
	r.taken, r.reached = 0, 0
	if m := r.spool.Mark(); m.Session == session {
		r.taken, r.reached = m.Line, m.Line
	}
	r.piece, r.long, r.batch = nil, false, nil
	r.output.Reset()
	return r.epoch, r.taken
}

// add takes a line in. It is not recorded before commit or flush.
func (r *recorder) add(epoch int, l wire.Line) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case epoch != r.epoch:
		return errStale
	case l.Number <= r.taken:
		return nil
	case l.Number != r.taken+1:
		return errOrder
	}
	r.taken = l.Number
	r.piece = append(r.piece, l.Data...)
	if r.long || len(r.piece) > maxLine {
		r.long = l.More
		r.plain(agent.Text(r.piece), !l.More)
		r.piece = r.piece[:0]
		return nil
	}
	if l.More {
		return nil
	}
	for _, item := range r.parser.Line(r.piece) {
		switch {
		case item.Message != nil:
			r.structured(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: item.Message}})
		case item.Usage != nil:
			r.structured(&daemonv1.Record{Body: &daemonv1.Record_Usage{Usage: item.Usage}})
		case item.Output != nil:
			r.plain(*item.Output, true)
		}
	}
	r.piece = r.piece[:0]
	return nil
}

// structured makes a record of the line just taken in, after the output before it.
func (r *recorder) structured(rec *daemonv1.Record) {
	r.endOutput()
	r.push(rec)
	r.reached = r.taken
}

// plain adds to the output that waits.
func (r *recorder) plain(text string, whole bool) {
	if r.output.Len() == 0 {
		r.since = time.Now()
	}
	r.output.WriteString(text)
	if whole {
		r.output.WriteByte('\n')
	}
	r.through = r.taken
	if r.output.Len() >= maxOutput {
		r.endOutput()
	}
}

// endOutput makes a record of the output that waits.
func (r *recorder) endOutput() {
	if r.output.Len() == 0 {
		return
	}
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Text: r.output.String()}
	r.output.Reset()
	r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
	r.reached = r.through
}

func (r *recorder) push(rec *daemonv1.Record) {
	rec.Time, rec.Attempt = timestamppb.Now(), r.attempt
	r.batch = append(r.batch, rec)
}

// full reports whether the batch should go to disk before more is added.
func (r *recorder) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batch) >= maxBatch
}

// commit puts whole records on disk and returns the last line they reach to.
// Output that may grow stays, unless it has waited long enough.
func (r *recorder) commit(ctx context.Context) (line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.output.Len() > 0 && time.Since(r.since) >= outputDelay {
		r.endOutput()
	}
	return r.reached, r.write(ctx)
}

// flush puts everything on disk but a line that is not whole.
func (r *recorder) flush(ctx context.Context) (line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endOutput()
	return r.reached, r.write(ctx)
}

// write appends the batch to the spool. On a full volume it tries again for as
// long as it takes; the shim meanwhile holds the agent back.
func (r *recorder) write(ctx context.Context) error {
	if len(r.batch) == 0 {
		return nil
	}
	var mark *spool.Mark
	if r.session != "" {
		mark = &spool.Mark{Session: r.session, Line: r.reached}
	}
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := r.spool.Append(mark, r.batch...)
		if err == nil {
			break
		}
		if errors.Is(err, spool.ErrBroken) {
			return err
		}
		r.log.Error(err, "the agent's output cannot be recorded; it is held back")
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
	for _, rec := range r.batch {
		r.count(rec)
	}
	r.batch = r.batch[:0:0]
	return nil
}

// count keeps track of calls as their records get to disk.
func (r *recorder) count(rec *daemonv1.Record) {
	r.records++
	if call := rec.GetMessage().GetToolCall(); call != nil {
		r.open = append(r.open, call.GetId())
	}
	if result := rec.GetMessage().GetToolResult(); result != nil {
		if i := slices.Index(r.open, result.GetCallId()); i >= 0 {
			r.open = slices.Delete(r.open, i, i+1)
			r.answers++
		}
	}
}

// replay counts what an earlier process put into the spool.
func (r *recorder) replay() error {
	after := r.spool.First() - 1
	for {
		records, err := r.spool.Read(after, maxBatch, 1<<20)
		if err != nil || len(records) == 0 {
			return err
		}
		for _, rec := range records {
			after = rec.GetSequence()
			if rec.GetCheckpoint() != nil && !rec.GetCheckpoint().GetDurable() {
				r.answers, r.records = 0, 0
			} else {
				r.count(rec)
			}
		}
	}
}

// since the last checkpoint: calls answered, records made.
func (r *recorder) progress() (answers, records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers, r.records
}

// checkpointed begins counting anew.
func (r *recorder) checkpointed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers, r.records = 0, 0
}

// interrupt answers the calls that the agent left open when it ended.
func (r *recorder) interrupt(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.open {
		r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: agent.Interrupted(id)}})
	}
	return r.write(ctx)
}
