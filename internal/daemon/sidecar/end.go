package sidecar

import (
	"context"
	"errors"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// exitWait is how long, after SIGTERM, the daemon waits for a connected shim's Exit.
	// The kubelet ends sidecars after the agent's container, so the frame is already sent,
	// if it is sent at all.
	exitWait = 3 * time.Second
	// lastTries is how long the last checkpoint is retried when the pod is ending.
	lastTries = 20 * time.Second
	// safePoll is how often pending pushes are checked.
	safePoll = 50 * time.Millisecond
)

// awaitEnd waits for the agent's end, takes the last checkpoint, and releases the shim when
// everything is stored outside the pod, or when the pod is terminating. It returns when the
// pod ends (ctx) and everything is stored, or when the work fails.
func (d *daemon) awaitEnd(ctx, work context.Context, stopTaking func()) error {
	either, cancel := context.WithCancel(work)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	err := d.socket.Until(either, func(s socket.Status) bool { return s.Exit != nil })
	if work.Err() != nil {
		return work.Err()
	}
	if err != nil { // the pod ends, and how the agent ended is not known yet
		_ = d.socket.Until(timeout(work, exitWait), func(s socket.Status) bool { return s.Exit != nil || !s.Connected })
	}
	stopTaking()
	if err := d.takeLast(ctx, work); err != nil {
		return err
	}
	d.problems.agentEnded()
	// When the pod is terminating, the volume is safe enough to release the agent's
	// container; this container remains until everything is stored elsewhere.
	go func() {
		if err := d.socket.Until(either, func(s socket.Status) bool { return s.Terminating }); err == nil {
			cancel()
		}
	}()
	if err := d.storeAll(either, work); err != nil && work.Err() != nil {
		return err
	}
	d.socket.Release(d.exitCode())
	if err := d.storeAll(work, work); err != nil {
		return err
	}
	d.log.Info("all records and checkpoints are stored")
	select {
	case <-ctx.Done():
		return nil
	case <-work.Done():
		return work.Err()
	}
}

// takeLast records the end of the agent and takes the attempt's last checkpoint, unless an
// earlier process of the daemon did.
func (d *daemon) takeLast(ctx, work context.Context) error {
	if d.finished(d.volume.Journal.State()) {
		return nil
	}
	st, _ := d.socket.Status()
	calls, _, err := d.recorder.End(work, st.Exit == nil || st.Terminating || st.Exit.Code != 0)
	for _, c := range calls {
		d.ToolCalled(work, c)
	}
	if err != nil {
		return err
	}
	if err := d.countTokens(work); err != nil {
		return err
	}
	if err := d.recorder.Interrupt(work); err != nil {
		return err
	}
	d.reportUncovered()
	d.reportToolCalls()
	d.endRequests(work)
	if err := errors.Join(d.endCalls(work, st), d.noteSession(), d.noteRefusal(st)); err != nil {
		return err
	}
	if end := d.agentEnd(st); end != nil {
		if err := d.recorder.AppendRecord(work, &daemonv1.Record{Body: &daemonv1.Record_AgentEnd{AgentEnd: end}}); err != nil {
			return err
		}
	}
	req := d.lastRequest(st)
	var wait backoff.Backoff
	var ending <-chan time.Time
	for {
		_, err := d.taker.Take(work, req)
		if work.Err() == nil {
			d.problems.taken(err)
		}
		if err == nil {
			nudge(d.push)
			return nil
		}
		if work.Err() != nil {
			return work.Err()
		}
		if errors.Is(err, spool.ErrBroken) {
			return err
		}
		d.log.Error(err, "the last checkpoint could not be taken; retrying")
		if ending == nil && (ctx.Err() != nil || d.terminating()) {
			ending = time.After(lastTries)
		}
		select {
		case <-ending:
			d.log.Info("the pod ends without a last checkpoint; the files remain on the volume")
			return nil
		case <-time.After(wait.Next()):
		case <-work.Done():
			return work.Err()
		}
	}
}

// lastRequest returns the request for the attempt's last checkpoint.
func (d *daemon) lastRequest(st socket.Status) checkpoint.Request {
	trigger, code := lastTrigger(st, d.effectiveCode(st))
	if d.stoppedForCall() || trigger == v1alpha1.TriggerFailure && d.endedForBudget(st) != "" {
		trigger = v1alpha1.TriggerSuspend
	}
	return checkpoint.Request{Trigger: trigger, Consistency: d.socket.AtEnd, Also: func(s *journal.State, p journal.Point) {
		s.Clean = &p
		s.Final = &journal.Final{Attempt: d.cfg.Pod.Attempt, PodUID: d.cfg.Pod.PodUID, Number: p.Number, ExitCode: code}
	}}
}

// storeAll waits like awaitStored, and takes the last checkpoint again if the one taken is
// damaged and can never be pushed.
func (d *daemon) storeAll(ctx, work context.Context) error {
	if err := d.awaitStored(ctx); err != nil {
		return err
	}
	state := d.volume.Journal.State()
	if state.Latest == nil || !state.IsLost(state.Latest.Number) {
		return nil
	}
	st, _ := d.socket.Status()
	if _, err := d.taker.Take(work, d.lastRequest(st)); err != nil {
		d.log.Error(err, "the last checkpoint is damaged and cannot be taken again; the files remain on the volume")
		return nil
	}
	nudge(d.push)
	return d.awaitStored(ctx)
}

func (d *daemon) terminating() bool {
	st, _ := d.socket.Status()
	return st.Terminating
}

// lastTrigger returns the trigger of the attempt's last checkpoint and the agent's exit
// code, -1 if it is not known.
func lastTrigger(s socket.Status, code int) (v1alpha1.CheckpointTrigger, int) {
	switch {
	case s.Exit == nil && s.Seen && !s.Terminating:
		return v1alpha1.TriggerFailure, -1 // its container was killed
	case s.Exit == nil:
		return v1alpha1.TriggerSuspend, -1
	case s.Terminating:
		return v1alpha1.TriggerSuspend, s.Exit.Code
	case code == 0:
		return v1alpha1.TriggerCompletion, 0
	default:
		return v1alpha1.TriggerFailure, code
	}
}

// awaitStored waits until the gitstore has all checkpoints and the server all records, or
// ctx ends. The last record says so.
func (d *daemon) awaitStored(ctx context.Context) error {
	tick := time.NewTicker(safePoll)
	defer tick.Stop()
	for !d.pushed() {
		if err := d.waitTick(ctx, tick); err != nil {
			return err
		}
	}
	if err := d.recordStored(ctx); err != nil {
		return err
	}
	for last := d.volume.Spool.Last(); ; last = d.volume.Spool.Last() {
		if err := d.shipper.WaitStored(ctx, last); err != nil {
			return err
		}
		if d.volume.Spool.Last() == last {
			return nil
		}
	}
}

// recordStored records that everything on the volume is in a checkpoint, and every checkpoint in the
// gitstore that this accepts. That is not so if the last one could not be taken, or is damaged: then
// files are on the volume alone.
func (d *daemon) recordStored(ctx context.Context) error {
	state := d.volume.Journal.State()
	if d.stored || !d.finished(state) || state.IsLost(state.Final.Number) {
		return nil
	}
	err := d.recorder.AppendRecord(ctx, &daemonv1.Record{Body: &daemonv1.Record_Stored{Stored: &daemonv1.Stored{}}})
	d.stored = err == nil
	return err
}

// waitTick waits for the next tick or the end of ctx.
func (d *daemon) waitTick(ctx context.Context, tick *time.Ticker) error {
	select {
	case <-tick.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
