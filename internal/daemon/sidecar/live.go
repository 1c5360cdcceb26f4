package sidecar

import (
	"context"
	"fmt"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxLivePush bounds how long a push of the files as they are may take: nobody waits for
	// longer, and the next request pushes everything again.
	maxLivePush = 30 * time.Second
	// freeLive is how long storing and pushing the files as they are may take without any rest
	// before the next time. After longer ones the rest is restFactor times as long, so that
	// checkpoints, which wait meanwhile, have most of the time.
	freeLive   = time.Second
	restFactor = 4
	// maxLiveWait is how long a request waits for the end of a rest. It is answered at once if
	// the rest is longer.
	maxLiveWait = 5 * time.Second
)

// liveTurns decides when the files as they are may be stored.
type liveTurns struct {
	// waiting is the newest request that waits; "" for none.
	waiting string
	// begun is when the files were last stored, and pushing is set until they are pushed.
	begun   time.Time
	pushing bool
	// rest ends the rest after that.
	rest time.Time
}

// take returns the request to store the files for now, if it is their turn; otherwise the one
// to refuse, and after what time it may be repeated, if that is too long to wait. A request that
// is given replaces the one that waits, which the same answer satisfies.
func (l *liveTurns) take(id string, now time.Time) (store, refuse string, after time.Duration) {
	if id != "" {
		l.waiting = id
	}
	rest := l.rest.Sub(now)
	if l.waiting == "" || l.pushing || 0 < rest && rest <= maxLiveWait {
		return "", "", 0
	}
	id, l.waiting = l.waiting, ""
	if rest > 0 {
		return "", id, rest
	}
	l.begun, l.pushing = now, true
	return id, "", 0
}

// ended notes that the files were pushed, or that this failed.
func (l *liveTurns) ended(now time.Time) {
	l.pushing = false
	if took := now.Sub(l.begun); took >= freeLive {
		l.rest = now.Add(restFactor * took)
	}
}

// next returns a channel that receives when the request that waits has its turn; nil if none
// waits for the end of a rest.
func (l *liveTurns) next() <-chan time.Time {
	if l.waiting == "" || l.pushing {
		return nil
	}
	return time.After(time.Until(l.rest))
}

// livePush is the answer to a request: a commit with the files as they were, to be pushed, or
// why there is none.
type livePush struct {
	id, commit string
	err        error
	after      time.Duration // when the request may be repeated; 0 if that is not known
}

// askLive queues a request for the files as they are. A second one that waits replaces the
// first, which the same answer satisfies.
func (d *daemon) askLive(id string) {
	for {
		select {
		case d.live <- id:
			return
		default:
		}
		select {
		case <-d.live:
		default:
		}
	}
}

// considerLive stores the files for a request, or for the one that waits if id is empty, if it
// is their turn.
func (d *daemon) considerLive(ctx context.Context, id string) {
	store, refuse, after := d.liveTurns.take(id, time.Now())
	switch {
	case store != "":
		d.storeLive(ctx, store)
		d.maintain(ctx)
	case refuse != "":
		answer := livePush{id: refuse, after: after, err: fmt.Errorf("the files were read just now, which took so long that the task's checkpoints come first; try again in %d s", seconds(after))}
		select {
		case d.livePushes <- answer:
		default: // too many requests: who asked gives up after a while
		}
	}
}

// seconds rounds up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// storeLive stores the files as they are, without stopping the agent, and queues their push.
// It runs between checkpoints, so that the agent is never stopped meanwhile.
func (d *daemon) storeLive(ctx context.Context, id string) {
	stretch, done := d.pace.Stretch(ctx), d.pace.CountWork()
	stretch.Begin()
	commit, err := d.taker.StoreLive(ctx, stretch.Rest)
	done()
	select {
	case d.livePushes <- livePush{id: id, commit: commit, err: err}:
	case <-ctx.Done():
	}
}

// pushLive pushes what storeLive has stored, and answers requests, until ctx ends.
func (d *daemon) pushLive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case push := <-d.livePushes:
			if push.err == nil {
				pushing, cancel := context.WithTimeout(ctx, maxLivePush)
				push.err = d.taker.PushLive(pushing, push.commit)
				cancel()
			}
			if push.after == 0 { // it had the turn
				nudge(d.livePushed)
			}
			d.reportLive(ctx, push)
		}
	}
}

// reportLive answers a request. Who asked gives up after a while, so it is tried once.
func (d *daemon) reportLive(ctx context.Context, push livePush) {
	report := &daemonv1.ReportLiveRequest{Id: push.id, Commit: push.commit, RetryAfterSeconds: seconds(push.after)}
	if push.err != nil {
		if push.after == 0 {
			d.log.Error(push.err, "the files as they are could not be pushed for a comparison")
		}
		problem := push.err.Error()
		if d.cfg.Mask != nil {
			problem = d.cfg.Mask.Text(problem)
		}
		report.Commit, report.Problem = "", clip.Bytes(agent.Text([]byte(problem)), maxDetail)
	}
	if err := d.cfg.Server.ReportLive(timeout(ctx, reportWait), report); err != nil && ctx.Err() == nil {
		d.log.Info("a comparison waits in vain: the server cannot be told that the files were pushed", "error", err.Error())
	}
}
