package sidecar

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// verifyEvery is how often the server is asked whether what a push builds on is damaged.
	verifyEvery = time.Minute
	// verifyTime is how long the answer is awaited.
	verifyTime = 20 * time.Second
)

// healAfter reports whether a push failed because objects that it builds on are damaged in the
// gitstore, and brings it those that the volume has. asked is when the server was last asked.
func (d *daemon) healAfter(ctx context.Context, failure error, asked *time.Time) bool {
	pending := d.volume.Journal.State().Pending
	if !checkpoint.MetDamage(failure) || len(pending) == 0 || pending[0].Number < 2 || time.Since(*asked) < verifyEvery {
		return false
	}
	*asked = time.Now()
	before := pending[0].Number - 1
	within, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	found, err := &daemonv1.VerifyCheckpointResponse{}, error(nil)
	for err == nil && !found.GetVerified() {
		found, err = d.cfg.Server.VerifyCheckpoint(within, "", before)
	}
	if err != nil || !found.GetDamaged() {
		d.log.Info("a push may have met damage in the gitstore", "checkpoint", before, "damaged", found.GetDamaged(), "error", err)
		return false
	}
	d.log.Info("a checkpoint is damaged in the gitstore: bringing what the volume has of it", "checkpoint", before)
	d.taker.Heal(ctx)
	return true
}
