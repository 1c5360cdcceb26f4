package sidecar

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
)

// maxLivePush bounds how long a push of the files as they are may take: nobody waits for
// longer, and the next request pushes everything again.
const maxLivePush = 30 * time.Second

// livePush is a commit with the files as they were for a request.
type livePush struct{ id, commit string }

// askLive queues a request for the files as they are. A second one that waits replaces the
// first.
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

// storeLive stores the files as they are, without stopping the agent, and queues their push.
// It runs between checkpoints, so that the agent is never stopped meanwhile.
func (d *daemon) storeLive(ctx context.Context, id string) {
	stretch, done := d.pace.Stretch(ctx), d.pace.CountWork()
	stretch.Begin()
	commit, err := d.taker.StoreLive(ctx, stretch.Rest)
	done()
	if err != nil {
		d.reportLive(ctx, livePush{id: id}, err)
		return
	}
	select {
	case d.livePushes <- livePush{id, commit}:
	case <-ctx.Done():
	}
}

// pushLive pushes what storeLive has stored, and reports it, until ctx ends.
func (d *daemon) pushLive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case push := <-d.livePushes:
			pushing, cancel := context.WithTimeout(ctx, maxLivePush)
			err := d.taker.PushLive(pushing, push.commit)
			cancel()
			d.reportLive(ctx, push, err)
		}
	}
}

// reportLive answers a request. Who asked gives up after a while, so it is tried once.
func (d *daemon) reportLive(ctx context.Context, push livePush, err error) {
	problem := ""
	if err != nil {
		d.log.Error(err, "the files as they are could not be pushed for a comparison")
		push.commit, problem = "", err.Error()
		if d.cfg.Mask != nil {
			problem = d.cfg.Mask.Text(problem)
		}
		problem = clip.Bytes(agent.Text([]byte(problem)), maxDetail)
	}
	if err := d.cfg.Server.ReportLive(timeout(ctx, reportWait), push.id, push.commit, problem); err != nil && ctx.Err() == nil {
		d.log.Info("a comparison waits in vain: the server cannot be told that the files were pushed", "error", err.Error())
	}
}
