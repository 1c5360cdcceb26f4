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
	// askAgain is when a requested checkpoint that failed is tried again.
	askAgain = 30 * time.Second
	// refusedAgain is when a push that the gitstore refused for good is tried again.
	refusedAgain = 5 * time.Minute
	// maxDetail is how long, in bytes, the words of an event may be.
	maxDetail = 1024
)

// takeCheckpoints takes checkpoints while the agent works, one at a time: on request,
// before risky tools, after so many tool calls, and at intervals.
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
			turn = time.After(max(d.pace.UntilRisky(), d.guard.untilLook()))
		case d.pending != "":
			turn = time.After(d.pace.UntilLook())
		}
		asked, rested := d.asked, (<-chan time.Time)(nil)
		if rest := d.pace.AskedRest(); rest > 0 {
			asked, rested = nil, time.After(rest)
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case take := <-asked:
			err = d.takeAsked(ctx, take)
		case c := <-d.guard.calls:
			d.guard.held = append(d.guard.held, c)
			if d.pace.UntilRisky() > 0 {
				err = d.takeRisky(ctx)
			} else {
				err = d.takeTurn(ctx) // or a stream of calls would starve requested checkpoints
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
		case <-changed: // the pod may be to end
			continue
		case <-d.guard.over:
			d.tellOfRest()
			continue
		}
		if errors.Is(err, spool.ErrBroken) {
			d.fail(err)
		}
		if err != nil && ctx.Err() == nil {
			d.unguarded(err) // whatever it was for, and the next one may fail as well
			d.log.Error(err, "a checkpoint failed; it is tried again when the next one is due")
			continue
		}
		d.maintain(ctx)
	}
}

func (d *daemon) maintain(ctx context.Context) {
	defer d.pace.CountWork()()
	if m, err := d.volume.Repo.Maintain(ctx); err != nil && ctx.Err() == nil {
		d.log.Error(err, "the repository of checkpoints could not be tidied up")
	} else if m.Repacked {
		d.log.Info("packed the checkpoints", "packsBefore", m.PacksBefore, "packsAfter", m.PacksAfter)
	}
}

// takeTurn takes the checkpoint whose turn it is. A requested one comes first: a busy
// agent makes the others due all the time.
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

// takePending takes the checkpoint that tool calls or time have made due, when
// its turn comes, if there is something to take.
func (d *daemon) takePending(ctx context.Context) error {
	trigger := d.pending
	if trigger == "" || d.pace.UntilLook() > 0 {
		return nil
	}
	d.pending = ""
	// The count may have begun anew since.
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

// maxPasses is how often, for one checkpoint, changes are stored while the agent
// works, before it is stopped for as long as it takes: the first time stores what has
// gathered, the second what has changed meanwhile. What changes as fast again is not
// worth storing a third time.
const maxPasses = 2

// take takes a checkpoint of a stopped agent. If more has changed than can be read in a
// moment, the agent runs while that is stored, and is stopped only for the rest. A take
// that has begun is finished even if ctx ends.
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
			d.log.Info("changes could not be stored while the agent works; it is stopped until they are", "error", err.Error())
			break
		}
		if err := d.takeFrozen(ctx, req); !checkpoint.TooMuchChanged(err) {
			return err
		}
	}
	req.Brief = false
	return d.takeFrozen(ctx, req)
}

// takeFrozen stops the agent, takes a checkpoint and lets the agent go on.
func (d *daemon) takeFrozen(ctx context.Context, req checkpoint.Request) error {
	f := d.socket.Freeze(ctx)
	defer f.Thaw()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if is, _ := f.Consistency(); is == v1alpha1.ConsistencyPointInTime {
		d.guard.collect() // it stands for the calls that wait by now, too
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
	if slices.Contains(d.volume.Journal.State().Served, take.GetUid()) {
		return nil
	}
	err := d.take(ctx, checkpoint.Request{Trigger: v1alpha1.TriggerManual,
		Message: take.GetMessage(), Name: take.GetName(), UID: take.GetUid()})
	if err == nil {
		return nil
	}
	time.AfterFunc(askAgain, func() { d.ask(take) }) // or the server does
	return err
}

// changed reports whether a checkpoint would differ from the last one, in its files, in
// the agent's state or in its repository.
func (d *daemon) changed(ctx context.Context) bool {
	defer d.pace.CountWork()()
	latest := d.volume.Journal.State().Latest
	if latest == nil {
		return true
	}
	drift, err := d.volume.Repo.Drift(ctx, worktree.Target{Code: latest.Code, State: latest.State})
	return err != nil || !drift.Same()
}

// pushState tells which checkpoints the gitstore refuses for good.
type pushState struct {
	mu      sync.Mutex
	numbers map[int64]bool
}

// pushAll keeps pushing what the gitstore lacks until ctx ends.
func (d *daemon) pushAll(ctx context.Context) error {
	wait := backoff.Backoff{Max: 30 * time.Second}
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
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused):
			d.refuse(refused)
		}
		if refused != nil && !refused.Retryable {
			select {
			case <-d.push:
			case <-time.After(refusedAgain):
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		d.log.Error(err, "checkpoints wait for the gitstore", "count", len(d.volume.Journal.State().Pending))
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// refuse notes which checkpoints are refused for good, and tells of each once.
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
		d.log.Error(err, "the gitstore will not take a checkpoint; it stays on the volume alone", "checkpoint", c.Number, "reason", c.Reason)
		err := d.taker.Event(v1alpha1.EventCheckpointRefused,
			clip.Bytes(fmt.Sprintf("the gitstore will not take checkpoint %d, which stays on the volume alone: %s", c.Number, why), maxDetail),
			map[string]string{"checkpoint": strconv.FormatInt(c.Number, 10), "reason": c.Reason, "message": why})
		if err != nil {
			d.log.Error(err, "the refusal could not be recorded", "checkpoint", c.Number)
		}
	}
}

// pushed reports whether the gitstore has every checkpoint that it will ever take.
func (d *daemon) pushed() bool {
	d.refused.mu.Lock()
	defer d.refused.mu.Unlock()
	return !slices.ContainsFunc(d.volume.Journal.State().Pending, func(p journal.Point) bool { return !d.refused.numbers[p.Number] })
}
