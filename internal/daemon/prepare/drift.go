package prepare

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// checkDrift compares the worktree with the checkpoint that it was left equal to, if any,
// and acts on a difference as onDrift says.
func (p *preparer) checkDrift(ctx context.Context, onDrift v1alpha1.OnDrift) error {
	clean := p.journal.State().Clean
	if clean == nil {
		return nil
	}
	drift, err := p.repo.Drift(ctx, target(*clean))
	if err != nil {
		return fmt.Errorf("compare the worktree with what was left in it: %w", err)
	}
	if drift.Clean() {
		if drift.HeadChanged() {
			p.log.Info("the agent's HEAD was moved while the task was not running", "expected", drift.ExpectedHead, "found", drift.Head,
				"expectedBranch", drift.ExpectedBranch, "foundBranch", drift.Branch)
		}
		return nil
	}
	p.result.DriftCount = drift.Count
	for _, f := range drift.Files {
		p.result.DriftedFiles = append(p.result.DriftedFiles, f.Path)
	}
	switch onDrift {
	case v1alpha1.OnDriftPreserve:
		return p.keepDrift(ctx, drift.Count)
	case v1alpha1.OnDriftOverride:
		if _, err := p.restoreTo(ctx, *clean, worktree.ScopeCode); err != nil {
			return err
		}
		return p.taker.Event(v1alpha1.EventDriftOverridden, fmt.Sprintf("%d files that were changed while the task was not running were put back", drift.Count), nil)
	default:
		return &failure{reason: v1alpha1.ReasonDriftDetected, permanent: true,
			message: fmt.Sprintf("%d files were changed while the task was not running, for example %q: resume or rewind with onDrift Preserve to keep the changes, or Override to discard them", drift.Count, drift.Files[0].Path)}
	}
}

func (p *preparer) keepDrift(ctx context.Context, count int) error {
	_, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerDrift, Message: "Changed while the task was not running",
		Also: func(s *journal.State, point journal.Point) { s.Clean = &point }})
	if err != nil {
		return err
	}
	return p.taker.Event(v1alpha1.EventDriftPreserved, fmt.Sprintf("%d files that were changed while the task was not running were kept", count), nil)
}
