package prepare

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// flush pushes the pending checkpoints in a pod that only prepares, since that pod has no
// sidecar to do so, and records that everything is stored if it is. Otherwise it ships records.
func (p *preparer) flush(ctx context.Context) error {
	if !p.cfg.Pod.PrepareOnly {
		return p.drain(ctx)
	}
	if err := p.pushAcceptable(ctx); err != nil || !kept(p.journal.State()) {
		return err
	}
	stored := &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt, Body: &daemonv1.Record_Stored{Stored: &daemonv1.Stored{}}}
	if err := p.spool.Append(nil, stored); err != nil {
		return err
	}
	return p.drain(ctx)
}

// kept reports whether a checkpoint has everything that is on the volume.
func kept(s journal.State) bool {
	return s.Clean != nil && s.Latest != nil && *s.Clean == *s.Latest && !s.IsLost(s.Latest.Number)
}
