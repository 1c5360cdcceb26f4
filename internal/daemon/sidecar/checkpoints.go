package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

const (
	// askedRetry is how soon a requested checkpoint that failed is tried again.
	askedRetry = 30 * time.Second
	// refusedRetry is how soon a push that the gitstore refused for good is tried again.
	refusedRetry = 5 * time.Minute
	// maxDetail bounds, in bytes, the message of an event or a problem.
	maxDetail = 1024
)

// takeCheckpoints takes checkpoints while the agent works, one at a time: on request,
// before risky tools, after a number of tool calls, and at intervals. It returns when ctx
// ends.
func (d *daemon) takeCheckpoints(ctx context.Context) {
	every := time.Duration(d.cfg.Pod.Policy.EverySeconds) * time.Second
	d.taken = time.Now()
	for {
		var interval, turn <-chan time.Time
		_, changed := d.socket.Status()
		if every > 0 && d.pending == "" {
			interval = time.After(time.Until(d.taken.Add(every)))
		}
		switch {
		case len(d.guard.held) > 0:
			turn = time.After(max(d.pace.UntilRisky(), d.guard.untilCheck()))
		case d.pending != "":
			turn = time.After(d.pace.UntilCheck())
		}
		asked, turns, rested := d.asked, d.turns, (<-chan time.Time)(nil)
		if rest := d.pace.AskedRest(); rest > 0 {
			asked, turns, rested = nil, nil, time.After(rest)
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case take := <-asked:
			err = d.takeAsked(ctx, take)
		case t := <-turns:
			err = t.run(ctx)
		case c := <-d.guard.calls:
			d.guard.held = append(d.guard.held, c)
			if d.pace.UntilRisky() > 0 {
				err = d.takeRisky(ctx)
			} else {
				err = d.takeTurn(ctx) // a stream of calls must not starve requested checkpoints
			}
		case <-d.due:
			d.pending = v1alpha1.TriggerToolCalls
			err = d.takePending(ctx)
		case <-interval:
			d.pending = v1alpha1.TriggerInterval
			err = d.takePending(ctx)
		case <-turn:
			err = d.takeTurn(ctx)
		case <-rested:
			continue
		case <-changed: // the pod may be ending
			continue
		case <-d.guard.drained:
			d.reportOverflow()
			continue
		case id := <-d.live:
			d.considerLive(ctx, id)
			continue
		case <-d.livePushed:
			d.liveTurns.ended(time.Now())
			d.considerLive(ctx, "")
			continue
		case <-d.liveTurns.next():
			d.considerLive(ctx, "")
			continue
		}
		if errors.Is(err, spool.ErrBroken) {
			d.fail(err)
		}
		if err != nil && ctx.Err() == nil {
			d.releaseUnguarded(err) // whatever it was taken for, since the next one may fail, too
			d.log.Error(err, "a checkpoint failed; retrying when the next one is due")
			continue
		}
		d.maintain(ctx)
	}
}

// maintain packs the daemon's repository if that is due.
func (d *daemon) maintain(ctx context.Context) {
	defer d.pace.CountWork()()
	if m, err := d.volume.Repo.Maintain(ctx); err != nil && ctx.Err() == nil {
		d.log.Error(err, "the daemon's repository could not be packed")
	} else if m.Repacked {
		d.log.Info("packed the checkpoints", "packsBefore", m.PacksBefore, "packsAfter", m.PacksAfter)
	}
}

// takeTurn takes the next checkpoint that is due. A requested one comes first, since a
// busy agent makes the others due all the time.
func (d *daemon) takeTurn(ctx context.Context) error {
	select {
	case take := <-d.asked:
		return d.takeAsked(ctx, take)
	default:
	}
	if err := d.takeRisky(ctx); err != nil {
		return err
	}
	return d.takePending(ctx)
}

// takePending takes the pending automatic checkpoint if the pace allows it and something
// has changed.
func (d *daemon) takePending(ctx context.Context) error {
	trigger := d.pending
	if trigger == "" || d.pace.UntilCheck() > 0 {
		return nil
	}
	d.pending = ""
	// The count may have been reset since.
	if answers, _ := d.recorder.Progress(); trigger == v1alpha1.TriggerToolCalls && answers < int(d.cfg.Pod.Policy.EveryToolCalls) {
		return nil
	}
	if !d.changed(ctx) {
		d.pace.Unchanged()
		d.recorder.Unchanged()
		d.taken = time.Now()
		return nil
	}
	if trigger == v1alpha1.TriggerToolCalls {
		d.awaitSession(ctx)
	}
	d.pace.Spend()
	return d.take(ctx, checkpoint.Request{Trigger: trigger})
}

// maxPasses is how often, for one checkpoint, changes are stored while the agent works,
// before it is stopped for as long as storing the rest takes: the first pass stores the
// changes so far, the second those made during the first. A third pass would not help
// against an agent that changes files that fast.
const maxPasses = 2

// take takes a checkpoint of a stopped agent. If too much has changed to be read while the
// agent is briefly stopped, the changes are stored while it runs, and it is stopped only
// for the rest. A checkpoint that has begun is completed even if ctx ends.
func (d *daemon) take(ctx context.Context, req checkpoint.Request) error {
	d.taken = time.Now()
	stretch := d.pace.Stretch(ctx)
	done := d.pace.CountWork()
	defer func() {
		done()
		d.pace.Taken()
	}()
	if err := d.countTokens(ctx); err != nil {
		return err
	}
	if req.Brief = true; !d.taker.Cold() {
		if err := d.takeFrozen(ctx, req); !checkpoint.TooMuchChanged(err) {
			return err
		}
	}
	for range maxPasses {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		stretch.Begin()
		if err := d.taker.Warm(ctx, stretch.Rest); err != nil {
			d.log.Info("changes could not be stored while the agent works; stopping it until they are", "error", err.Error())
			break
		}
		if err := d.takeFrozen(ctx, req); !checkpoint.TooMuchChanged(err) {
			return err
		}
	}
	req.Brief = false
	return d.takeFrozen(ctx, req)
}

// takeFrozen stops the agent, takes a checkpoint and continues the agent.
func (d *daemon) takeFrozen(ctx context.Context, req checkpoint.Request) error {
	f := d.socket.Freeze(ctx)
	defer f.Thaw()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if is, _ := f.Consistency(); is == v1alpha1.ConsistencyPointInTime {
		d.guard.collect() // the checkpoint also covers the calls that wait by now
	}
	if req.RiskyTool != nil {
		trigger, tool := d.guard.cause()
		req.Trigger, req.RiskyTool = trigger, tool
	}
	req.Consistency = f.Consistency
	point, err := d.taker.Take(context.WithoutCancel(ctx), req)
	if checkpoint.TooMuchChanged(err) {
		return err
	}
	d.problems.taken(err)
	if err != nil {
		return err
	}
	d.recorder.Checkpointed()
	d.cover(point, req.RiskyTool)
	nudge(d.push)
	return nil
}

// takeAsked takes a checkpoint for a Checkpoint object, once per object.
func (d *daemon) takeAsked(ctx context.Context, take *daemonv1.TakeCheckpoint) error {
	if d.served(take.GetUid()) {
		return nil
	}
	trigger := v1alpha1.TriggerManual
	if take.GetPhase() {
		trigger = v1alpha1.TriggerPhase
	}
	err := d.take(ctx, checkpoint.Request{Trigger: trigger,
		Message: take.GetMessage(), Name: take.GetName(), UID: take.GetUid()})
	if err == nil {
		return nil
	}
	time.AfterFunc(askedRetry, func() { d.ask(take) }) // unless the server asks before
	return err
}

// served reports whether the checkpoint of a Checkpoint object was taken.
func (d *daemon) served(uid string) bool {
	return slices.Contains(d.volume.Journal.State().Served, uid)
}

// changed reports whether a checkpoint would differ from the last one in the worktree's
// files, the agent's state or the agent's repository. It is true if that is not known.
func (d *daemon) changed(ctx context.Context) bool {
	defer d.pace.CountWork()()
	latest := d.volume.Journal.State().Latest
	if latest == nil {
		return true
	}
	drift, err := d.volume.Repo.Drift(ctx, worktree.Target{Code: latest.Code, State: latest.State})
	return err != nil || !drift.Same()
}

// refusedCheckpoints holds the numbers of the checkpoints that the gitstore refuses for
// good.
type refusedCheckpoints struct {
	mu      sync.Mutex
	numbers map[int64]bool
}

// healEvery is how often an idle sidecar asks the gitstore which objects it lacks.
const healEvery = 10 * time.Minute

// pushAll pushes pending checkpoints until ctx ends, the attempt is fenced or the spool is
// broken.
func (d *daemon) pushAll(ctx context.Context) error {
	wait := backoff.Backoff{Max: 30 * time.Second}
	var asked time.Time
	for {
		err := d.taker.Push(ctx)
		if ctx.Err() == nil {
			d.problems.pushed(err)
		}
		var refused *checkpoint.RefusedError
		switch {
		case errors.Is(err, gatewayclient.ErrFenced), errors.Is(err, spool.ErrBroken):
			return err
		case err == nil:
			wait.Reset()
			select {
			case <-d.push:
			case <-time.After(healEvery):
				d.taker.Heal(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case d.healAfter(ctx, err, &asked):
			continue
		case errors.As(err, &refused):
			d.refuse(refused)
		}
		if refused != nil && !refused.Retryable {
			select {
			case <-d.push:
			case <-time.After(refusedRetry):
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		d.log.Error(err, "checkpoints could not be pushed; retrying", "count", len(d.volume.Journal.State().Pending))
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// refuse notes which checkpoints the gitstore refuses for good, and records an event for
// each, once.
func (d *daemon) refuse(err *checkpoint.RefusedError) {
	for _, c := range err.Checkpoints {
		d.refused.mu.Lock()
		known := d.refused.numbers[c.Number]
		if d.refused.numbers == nil {
			d.refused.numbers = map[int64]bool{}
		}
		d.refused.numbers[c.Number] = true
		d.refused.mu.Unlock()
		if known {
			continue
		}
		why := clip.Bytes(agent.Text([]byte(c.Message)), maxDetail)
		d.log.Error(err, "the gitstore refuses a checkpoint; it remains only on the volume", "checkpoint", c.Number, "reason", c.Reason)
		err := d.taker.Event(v1alpha1.EventCheckpointRefused,
			clip.Bytes(fmt.Sprintf("the gitstore refuses checkpoint %d, which remains only on the task's volume: %s", c.Number, why), maxDetail),
			map[string]string{"checkpoint": strconv.FormatInt(c.Number, 10), "reason": c.Reason, "message": why})
		if err != nil {
			d.log.Error(err, "the refusal could not be recorded", "checkpoint", c.Number)
		}
	}
}

// pushed reports whether the gitstore has every checkpoint that it does not refuse for
// good.
func (d *daemon) pushed() bool {
	d.refused.mu.Lock()
	defer d.refused.mu.Unlock()
	return !slices.ContainsFunc(d.volume.Journal.State().Pending, func(p journal.Point) bool { return !d.refused.numbers[p.Number] })
}
