package record

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxAnswered bounds the answered calls that wait for their answers to reach the agent. With one
	// more, the oldest one waits no longer.
	maxAnswered = 64
	// maxDelivered bounds the remembered calls whose answers have reached the agent.
	maxDelivered = 100
)

var errNoSession = errors.New("the shim is not connected yet")

// CallAnswered records on disk that a call of a supervisor's tool has taken effect. It must return before
// the answer is sent. The event about the call is recorded right behind the message in which the agent
// shows the answer, in the same write; or by Delivered, or by EndCalls.
func (r *Recorder) CallAnswered(ctx context.Context, a agentstate.Answered) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == "" {
		return errNoSession
	}
	next := r.state
	next.Add(a)
	var dropped []*daemonv1.Record
	if len(next.Answered) > maxAnswered {
		dropped = append(dropped, r.stamped(next.Answered[0].Event(false)))
		next.Answered = next.Answered[1:]
	}
	return r.change(ctx, next, dropped)
}

// CallRefused records an event about a call that was refused. Nothing is to know whether the agent
// gets that answer: if it repeats the call, nothing is done twice.
func (r *Recorder) CallRefused(ctx context.Context, a agentstate.Answered) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == "" {
		return errNoSession
	}
	return r.change(ctx, r.state, []*daemonv1.Record{r.stamped(a.Event(true))})
}

// Delivered records that the answers to calls have reached the agent. It ignores calls that it does
// not know.
func (r *Recorder) Delivered(ctx context.Context, calls []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.state
	var events []*daemonv1.Record
	for _, a := range r.state.Answered {
		if slices.Contains(calls, a.ID) && !r.inBatch(a.ID) {
			event := r.stamped(a.Event(true))
			events = append(events, event)
			next.Noted(event.GetEvent())
		}
	}
	if len(events) == 0 || r.session == "" {
		return nil
	}
	return r.change(ctx, next, events)
}

// EndCalls records, at the end of the agent, the events that were not recorded yet. reached says
// whether the answers have reached the agent, which is so if it has completed its turn.
func (r *Recorder) EndCalls(ctx context.Context, reached bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.state.Answered {
		if !r.inBatch(a.ID) {
			r.push(a.Event(reached))
		}
	}
	r.ready = len(r.batch)
	_, err := r.write(ctx)
	return err
}

// change writes records and the state that follows from them to disk.
func (r *Recorder) change(ctx context.Context, next agentstate.State, records []*daemonv1.Record) error {
	var mark *spool.Mark
	if r.session != "" {
		mark = &spool.Mark{Session: r.session, Line: r.marked, State: next.Encode()}
	}
	if err := r.persist(ctx, func() error { return r.spool.Append(mark, records...) }); err != nil {
		return err
	}
	for _, rec := range records {
		r.count(rec)
	}
	r.state = next
	return nil
}

func (r *Recorder) stamped(rec *daemonv1.Record) *daemonv1.Record {
	rec.Time, rec.Attempt = timestamppb.Now(), r.attempt
	return rec
}

// shown adds, behind a message in which the agent shows answers, the events about their calls.
func (r *Recorder) shown(m *daemonv1.Message) {
	for _, a := range r.state.Answered {
		if strings.Contains(m.GetToolResult().GetOutput(), a.Marker()) && !r.inBatch(a.ID) {
			r.push(a.Event(true))
		}
	}
}

// inBatch reports whether the batch says that the answer to a call has reached the agent.
func (r *Recorder) inBatch(call string) bool {
	return slices.ContainsFunc(r.batch, func(rec *daemonv1.Record) bool { return agentstate.DeliveredBy(rec.GetEvent()) == call })
}

// delivered remembers calls whose answers have reached the agent, for the server, which may not have
// the events yet that say so.
type delivered struct {
	tell  func(call string) // may be nil
	mu    sync.Mutex
	calls []string
}

// note remembers what a record that is on disk says.
func (d *delivered) note(rec *daemonv1.Record) {
	call := agentstate.DeliveredBy(rec.GetEvent())
	if call == "" {
		return
	}
	if d.tell != nil {
		d.tell(call)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
	d.calls = d.calls[max(0, len(d.calls)-maxDelivered):]
}

// Untold returns the newest calls whose answers have reached the agent, by records on disk, without
// those that Told was called with.
func (r *Recorder) Untold() []string {
	r.delivered.mu.Lock()
	defer r.delivered.mu.Unlock()
	return slices.Clone(r.delivered.calls)
}

// Told says that the server knows that the answers to calls have reached the agent.
func (r *Recorder) Told(calls []string) {
	r.delivered.mu.Lock()
	defer r.delivered.mu.Unlock()
	r.delivered.calls = slices.DeleteFunc(r.delivered.calls, func(call string) bool { return slices.Contains(calls, call) })
}
