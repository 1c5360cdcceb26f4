package prepare

import (
	"context"
	"fmt"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

const (
	// maxDrifted is how many drifted files are reported by name.
	maxDrifted = 50
	// maxBranchName is how much of a branch's name is reported.
	maxBranchName = 200
	// maxDriftPush bounds the time in which drifted files are brought to the gitstore, where
	// people can compare them. They decide without if it takes longer.
	maxDriftPush = time.Minute
)

// checkDrift compares the worktree with the checkpoint that it was left equal to, if any,
// and acts on a difference as onDrift says. A HEAD that was moved is only reported.
func (p *preparer) checkDrift(ctx context.Context, onDrift v1alpha1.OnDrift) error {
	clean := p.journal.State().Clean
	if clean == nil || p.known.laidOut {
		return nil
	}
	drift, err := p.drift(ctx, *clean)
	if err != nil {
		return fmt.Errorf("compare the worktree with the checkpoint it was left at: %w", err)
	}
	p.reportDrift(drift, *clean)
	if drift.Clean() {
		return p.recordMovedHead(drift)
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
		p.pushDrift(ctx)
		return &failure{reason: v1alpha1.ReasonDriftDetected, permanent: true,
			message: changedFiles(drift.Count, "%s changed while the task was not running") + fmt.Sprintf(", for example %q: resume or rewind with onDrift Preserve to keep the changes, or Override to discard them", drift.Files[0].Path)}
	}
}

// drift compares the worktree with a checkpoint of the task, unless this run has done so before. If
// the checkpoint is damaged on the volume, it is fetched again.
func (p *preparer) drift(ctx context.Context, from journal.Point) (worktree.Drift, error) {
	if p.known.drift != nil && p.known.driftFrom == from {
		return *p.known.drift, nil
	}
	drift, err := p.repo.Drift(ctx, target(from))
	if isDamage(err) {
		if err = p.verify(ctx, placeGitstore, p.cfg.Pod.TaskUID, from); err == nil {
			drift, err = p.repo.Drift(ctx, target(from))
		}
	}
	if err == nil {
		p.known.drift, p.known.driftFrom = &drift, from
	}
	return drift, err
}

// reportDrift adds what has drifted to the result.
func (p *preparer) reportDrift(drift worktree.Drift, clean journal.Point) {
	r := &p.result
	if drift.HeadChanged() {
		r.DriftFrom = clean.Number
		r.MovedHead = &daemonapi.MovedHead{
			FromBranch: clip.Bytes(drift.ExpectedBranch, maxBranchName), FromCommit: drift.ExpectedHead,
			Branch: clip.Bytes(drift.Branch, maxBranchName), Commit: drift.Head,
		}
		p.log.Info("the agent's HEAD was moved while the task was not running", "expected", drift.ExpectedHead, "found", drift.Head,
			"expectedBranch", drift.ExpectedBranch, "foundBranch", drift.Branch)
	}
	if drift.Clean() {
		return
	}
	r.DriftCount, r.DriftFrom = drift.Count, clean.Number
	letters := map[worktree.Action]byte{worktree.Added: daemonapi.DriftAdded, worktree.Deleted: daemonapi.DriftDeleted, worktree.Modified: daemonapi.DriftModified}
	var actions []byte
	for _, f := range drift.Files[:min(len(drift.Files), maxDrifted)] {
		r.DriftedFiles = append(r.DriftedFiles, f.Path)
		actions = append(actions, letters[f.Action])
	}
	r.DriftedActions = string(actions)
}

// recordMovedHead records that the HEAD was moved, for the timeline. The task continues.
func (p *preparer) recordMovedHead(drift worktree.Drift) error {
	if !drift.HeadChanged() {
		return nil
	}
	return p.taker.Event(v1alpha1.EventHeadMoved, p.result.MovedHead.String(), nil)
}

// pushDrift brings the files as they are to the gitstore, for people who have to decide
// about them. Whether that succeeds changes nothing else.
func (p *preparer) pushDrift(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxDriftPush)
	defer cancel()
	commit, err := p.taker.StoreLive(ctx, func() {})
	if err == nil {
		err = p.taker.PushLive(ctx, commit)
	}
	if err != nil {
		p.log.Error(err, "the drifted files could not be pushed to the gitstore, where they could be compared")
		return
	}
	p.result.DriftCommit = commit
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
