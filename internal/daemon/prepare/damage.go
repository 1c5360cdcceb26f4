package prepare

import (
	"context"
	"fmt"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// verifyEvery is how often the server is asked whether what cannot be fetched is damaged.
	verifyEvery = 30 * time.Second
	// verifyTime is how long the answer is awaited.
	verifyTime = 20 * time.Second
)

// damage returns the failure of a checkpoint that is damaged in the gitstore, which the server is
// asked to verify: so that whoever has what is damaged learns of it, and whoever reads the
// Checkpoint. It returns nil if the checkpoint is intact, or if that cannot be known.
func (p *preparer) damage(ctx context.Context, uid string, number int64) error {
	if number < 1 || time.Since(p.askedDamage) < verifyEvery {
		return nil
	}
	p.askedDamage = time.Now()
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	found, err := p.cfg.Server.VerifyCheckpoint(ctx, uid, number)
	for err == nil && !found.GetVerified() {
		found, err = p.cfg.Server.VerifyCheckpoint(ctx, uid, number)
	}
	switch {
	case err != nil:
		p.log.Info("whether the checkpoint is damaged is not known", "checkpoint", number, "error", err.Error())
		return nil
	case !found.GetDamaged():
		return nil
	}
	message := fmt.Sprintf("checkpoint %d is damaged in the gitstore, as its condition Intact says; ", number)
	if n := found.GetIntactBefore(); n > 0 {
		message += fmt.Sprintf("checkpoint %d is the nearest earlier one that is intact", n)
	} else {
		message += "no earlier checkpoint is intact"
	}
	return &failure{reason: v1alpha1.ReasonCheckpointCorrupted, permanent: true, message: message}
}
