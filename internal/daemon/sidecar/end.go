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
	// exitWait is how long, after SIGTERM, a connected shim may take to say how
	// its agent ended. The kubelet ends sidecars after the agent's container, so
	// what it said is under way at most.
	exitWait = 3 * time.Second
	// lastTries is how long the last checkpoint is tried when the pod is ending.
	lastTries = 20 * time.Second
	// safePoll is how often it is looked whether everything is out of the pod.
	safePoll = 50 * time.Millisecond
)

// untilSafe waits for the agent's end, takes the last checkpoint, lets the shim
// go when that is safe, and returns when the pod ends (ctx) and everything is
// out, or the work fails.
func (d *daemon) untilSafe(ctx, work context.Context, stopTaking func()) error {
	either, cancel := context.WithCancel(work)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	err := d.socket.Until(either, func(s socket.Status) bool { return s.Exit != nil })
	if work.Err() != nil {
		return work.Err()
	}
	if err != nil { // the pod ends, and the agent's end is not known
		_ = d.socket.Until(timeout(work, exitWait), func(s socket.Status) bool { return s.Exit != nil || !s.Connected })
	}
	stopTaking()
	if err := d.last(ctx, work); err != nil {
		return err
	}
	d.problems.waits()
	// When the pod is to end, what is on the volume is safe enough to let the
	// agent's container go; this container stays until all is out.
	go func() {
		if err := d.socket.Until(either, func(s socket.Status) bool { return s.Terminating }); err == nil {
			cancel()
		}
	}()
	if err := d.out(either, work); err != nil && work.Err() != nil {
		return err
	}
	d.socket.Release(d.exitCode())
	if err := d.out(work, work); err != nil {
		return err
	}
	d.log.Info("everything is out of the pod")
	select {
	case <-ctx.Done():
		return nil
	case <-work.Done():
		return work.Err()
	}
}

// last takes the attempt's last checkpoint, unless a daemon before this one did.
func (d *daemon) last(ctx, work context.Context) error {
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
	d.tellOfEnded()
	if err := errors.Join(d.noteSession(), d.noteRefusal(st)); err != nil {
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
		d.log.Error(err, "the last checkpoint cannot be taken; trying again")
		if ending == nil && (ctx.Err() != nil || d.terminating()) {
			ending = time.After(lastTries)
		}
		select {
		case <-ending:
			d.log.Info("the pod ends without a last checkpoint; the volume holds the files as they are")
			return nil
		case <-time.After(wait.Next()):
		case <-work.Done():
			return work.Err()
		}
	}
}

// lastRequest asks for the attempt's last checkpoint.
func (d *daemon) lastRequest(st socket.Status) checkpoint.Request {
	trigger, code := lastTrigger(st, d.codeOf(st))
	return checkpoint.Request{Trigger: trigger, Consistency: d.socket.AtEnd, Also: func(s *journal.State, p journal.Point) {
		s.Clean = &p
		s.Final = &journal.Final{Attempt: d.cfg.Pod.Attempt, PodUID: d.cfg.Pod.PodUID, Number: p.Number, ExitCode: code}
	}}
}

// out is safe, and takes the last checkpoint once more if the gitstore can never
// have the one that was taken.
func (d *daemon) out(ctx, work context.Context) error {
	if err := d.safe(ctx); err != nil {
		return err
	}
	state := d.volume.Journal.State()
	if state.Latest == nil || !state.IsLost(state.Latest.Number) {
		return nil
	}
	st, _ := d.socket.Status()
	if _, err := d.taker.Take(work, d.lastRequest(st)); err != nil {
		d.log.Error(err, "the last checkpoint is damaged and cannot be taken again; the volume holds the files as they are")
		return nil
	}
	nudge(d.push)
	return d.safe(ctx)
}

func (d *daemon) terminating() bool {
	st, _ := d.socket.Status()
	return st.Terminating
}

// lastTrigger says why the attempt's last checkpoint is taken, and the exit
// code of the agent, -1 if nobody knows.
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

// safe waits until gitstore and server have everything, or the shim was told to
// end and so waits no longer than ctx.
func (d *daemon) safe(ctx context.Context) error {
	tick := time.NewTicker(safePoll)
	defer tick.Stop()
	for !d.pushed() {
		if err := d.waitTick(ctx, tick); err != nil {
			return err
		}
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

func (d *daemon) waitTick(ctx context.Context, tick *time.Ticker) error {
	select {
	case <-tick.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
