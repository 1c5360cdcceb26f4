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
		return fmt.Errorf("compare the worktree with the checkpoint it was left at: %w", err)
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
		return p.taker.Event(v1alpha1.EventDriftOverridden, changedFiles(drift.Count, "that %[1]s changed while the task was not running %[1]s restored"), nil)
	default:
		return &failure{reason: v1alpha1.ReasonDriftDetected, permanent: true,
			message: changedFiles(drift.Count, "%s changed while the task was not running") + fmt.Sprintf(", for example %q: resume or rewind with onDrift Preserve to keep the changes, or Override to discard them", drift.Files[0].Path)}
	}
}

// changedFiles returns a number of files with what happened to them, in which %s becomes was
// or were.
func changedFiles(count int, what string) string {
	if count == 1 {
		return "1 file " + fmt.Sprintf(what, "was")
	}
	return fmt.Sprintf("%d files ", count) + fmt.Sprintf(what, "were")
}

func (p *preparer) keepDrift(ctx context.Context, count int) error {
	_, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerDrift, Message: "Changed while the task was not running",
		Also: func(s *journal.State, point journal.Point) { s.Clean = &point }})
	if err != nil {
		return err
	}
	return p.taker.Event(v1alpha1.EventDriftPreserved, changedFiles(count, "that %[1]s changed while the task was not running %[1]s kept"), nil)
}
