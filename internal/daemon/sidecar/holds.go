package sidecar

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/socket"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// A set of checkpoints is taken of several tasks together: each daemon stops its agent, takes the
// checkpoint, and keeps the agent stopped until it is told that all of them are taken. If none has
// continued by then, there was a moment at which all of them were stopped. So nothing counts but whether
// the agent was still stopped when the daemon was told; no clock is compared with another one.

const (
	// boundaryWait is how long a set's checkpoint waits for a moment at which no call of a tool is open.
	// It is shorter than holdTime, so that the first member of a set is still stopped when the last one
	// has its checkpoint.
	boundaryWait = 20 * time.Second
	// holdTime is how long an agent stays stopped after its checkpoint at most: it may have open
	// connections to a model.
	holdTime = 30 * time.Second
	// askedTime is how long a set's checkpoint is waited for at most: a set that has not ended by then has
	// ended without it.
	askedTime = 3 * time.Minute
)

// heldSets are the sets for which the agent is to be stopped, or is.
type heldSets struct {
	mu sync.Mutex
	// holds are those of the sets, by the set's UID.
	holds map[string]*heldSet
	// ended is true once no further one is begun.
	ended bool
	group sync.WaitGroup
}

// heldSet is a set for which the agent is to be stopped, or is.
type heldSet struct {
	// released is closed when the set ends.
	released chan struct{}
	// gone says, once released is closed, that the set has ended before all its checkpoints were taken.
	gone bool
}

// begin adds a set; nil if it is known, or the attempt ends.
func (h *heldSets) begin(set string) *heldSet {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.holds[set] != nil {
		return nil
	}
	if h.holds == nil {
		h.holds = map[string]*heldSet{}
	}
	h.holds[set] = &heldSet{released: make(chan struct{})}
	h.group.Add(1)
	return h.holds[set]
}

// end forgets a set.
func (h *heldSets) end(set string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.holds, set)
	h.group.Done()
}

// release ends a set: its agent, if it is stopped, continues.
func (h *heldSets) release(r *daemonv1.ReleaseHold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if set := h.holds[r.GetSet()]; set != nil && !closed(set.released) {
		set.gone = r.GetGone()
		close(set.released)
	}
}

func closed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// close waits until all holds have ended, which the end of their context makes them do.
func (h *heldSets) close() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.group.Wait()
}

// holdFor takes the checkpoint of this task for a set, in the background, and keeps the agent stopped until
// the set ends. Requests that are repeated meanwhile are ignored.
func (d *daemon) holdFor(ctx context.Context, take *daemonv1.TakeCheckpoint) {
	if d.served(take.GetUid()) {
		return
	}
	set := d.held.begin(take.GetHold())
	if set == nil {
		return
	}
	go func() {
		defer d.held.end(take.GetHold())
		d.hold(ctx, take, set)
	}()
}

// hold waits for a moment between two calls of tools, takes the checkpoint, and keeps the agent stopped.
func (d *daemon) hold(ctx context.Context, take *daemonv1.TakeCheckpoint, set *heldSet) {
	late, over := false, time.NewTimer(askedTime)
	boundary := time.NewTimer(cmp.Or(d.cfg.BoundaryWait, boundaryWait))
	defer over.Stop()
	defer boundary.Stop()
	for wait := (backoff.Backoff{Min: time.Second}); ; {
		answered := d.recorder.NextAnswer() // before it is looked whether a call is open
		st, changed := d.socket.Status()
		if st.Connected && st.Exit == nil && (late || !d.inCall()) {
			stop, err := d.takeHeld(ctx, take, late)
			if stop != nil {
				d.keepStopped(ctx, take.GetHold(), stop, set)
				return
			}
			if err != nil {
				if wait.Wait(ctx) != nil || closed(set.released) || closed(over.C) {
					return
				}
				continue
			}
		}
		select {
		case <-answered:
		case <-changed:
		case <-boundary.C:
			late = true
		case <-over.C:
			return
		case <-set.released: // the set has failed without this task
			return
		case <-ctx.Done():
			return
		}
	}
}

// inCall reports whether a call of a tool is open.
func (d *daemon) inCall() bool {
	_, open, _ := d.recorder.Calls()
	return open > 0
}

// takeHeld stops the agent and takes the checkpoint of a set. It returns the stop, or nil if the agent
// had made a call of a tool by then; with late, it is stopped in the middle of one.
func (d *daemon) takeHeld(ctx context.Context, take *daemonv1.TakeCheckpoint, late bool) (stop *socket.Stop, err error) {
	// A turn that has begun is completed when the attempt ends, and its hold is recorded all the same.
	ending := d.inTurn(context.WithoutCancel(ctx), func(ctx context.Context) error {
		if d.taker.Cold() {
			d.warm(ctx)
		}
		for passes := 0; ; passes++ {
			s := d.socket.Stop(ctx)
			inCall := d.inCall() // all that the agent said before is recorded by now
			if inCall && !late || ctx.Err() != nil {
				s.End()
				return ctx.Err()
			}
			err = d.takeOnce(ctx, checkpoint.Request{
				Trigger: v1alpha1.TriggerManual, Message: take.GetMessage(), Name: take.GetName(), UID: take.GetUid(), Brief: passes < maxPasses,
				Also: func(s *journal.State, p journal.Point) {
					s.Holds = append(s.Holds, journal.Hold{Set: take.GetHold(), Checkpoint: p.Number, InCall: inCall})
				},
			})
			if err == nil {
				stop = s
				return nil
			}
			s.End()
			if !checkpoint.TooMuchChanged(err) {
				return err
			}
			d.warm(ctx)
		}
	})
	return stop, cmp.Or(err, ending)
}

// takeOnce takes a checkpoint of an agent that is stopped already. If the request is for a brief stop, and
// too much has changed for that, nothing is taken.
func (d *daemon) takeOnce(ctx context.Context, req checkpoint.Request) error {
	d.taken = time.Now()
	done := d.pace.CountWork()
	defer func() {
		done()
		d.pace.Taken()
	}()
	if err := d.countTokens(ctx); err != nil {
		return err
	}
	return d.takeFrozen(ctx, req)
}

// warm stores changed files while the agent works, so that it is stopped for the rest only.
func (d *daemon) warm(ctx context.Context) {
	defer d.pace.CountWork()()
	stretch := d.pace.Stretch(ctx)
	stretch.Begin()
	if err := d.taker.Warm(ctx, stretch.Rest); err != nil && ctx.Err() == nil {
		d.log.Info("changes could not be stored while the agent works; stopping it until they are", "error", err.Error())
	}
}

// keepStopped keeps the agent stopped until the set ends, or it may be stopped no longer, and records how
// that ended.
func (d *daemon) keepStopped(ctx context.Context, uid string, stop *socket.Stop, set *heldSet) {
	timer := time.NewTimer(cmp.Or(d.cfg.HoldTime, holdTime))
	defer timer.Stop()
	held, waits := false, true
	for waits {
		st, changed := d.socket.Status()
		if st.Terminating || !st.Connected { // a pod that is to end must not wait for others
			break
		}
		select {
		case <-changed:
			continue
		case <-set.released:
			held = !set.gone && stop.Unbroken()
		case <-timer.C:
			d.log.Info("the agent was stopped for a set of checkpoints for as long as it may be; it continues")
		case <-ctx.Done():
		}
		waits = false
	}
	stop.End()
	if err := d.recordHold(uid, held); err != nil {
		d.log.Error(err, "how the agent came to continue could not be recorded; that is done when the daemon starts again")
	}
}

// recordHold records how a hold in the journal ended. A daemon that is killed in between records it again,
// and the first record counts.
func (d *daemon) recordHold(set string, released bool) error {
	for _, h := range d.volume.Journal.State().Holds {
		if h.Set != set {
			continue
		}
		if err := d.taker.HoldEnded(&daemonv1.HoldEnd{Set: h.Set, Checkpoint: h.Checkpoint, InCall: h.InCall, Released: released}); err != nil {
			return err
		}
	}
	return d.volume.Journal.Update(func(s *journal.State) error {
		s.Holds = slices.DeleteFunc(s.Holds, func(h journal.Hold) bool { return h.Set == set })
		return nil
	})
}

// expireHolds records of the holds that a killed daemon has left that they expired: an agent whose daemon
// is gone continues.
func (d *daemon) expireHolds() error {
	for _, h := range d.volume.Journal.State().Holds {
		if err := d.recordHold(h.Set, false); err != nil {
			return err
		}
	}
	return nil
}
