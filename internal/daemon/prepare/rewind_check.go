package prepare

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// checkRewind checks beforehand what would make the rewind fail later: that its target
// exists, is complete and durable, and that the current state can be preserved as
// requested.
func (p *preparer) checkRewind(ctx context.Context, op *daemonapi.Operation) error {
	head, asked := p.begun.GetPosition().GetPosition(), op.Position > 0 && op.Scope == v1alpha1.RewindConversation
	if op.Anew {
		return nil
	}
	if op.Files != nil {
		return p.checkFiles(ctx, op)
	}
	if op.Checkpoint < 1 && !asked {
		return &failure{reason: v1alpha1.ReasonCheckpointNotFound, permanent: true, message: "the rewind names no checkpoint of this task"}
	}
	// A position that the history has lost may lie beyond the end of what is left.
	if asked && (op.Position > head && op.AfterSequence == 0 || op.Position < op.CheckpointPosition) {
		return &failure{permanent: true, message: fmt.Sprintf("the conversation is at message %d and cannot go back to message %d with the agent's memory of message %d: name an existing message, and the checkpoint before it",
			head, op.Position, op.CheckpointPosition)}
	}
	if err := p.checkBranch(op); err != nil || op.Checkpoint < 1 {
		return err
	}
	if _, err := p.target(ctx, op.Checkpoint, op.Commit); err != nil {
		return err
	}
	if p.taker.MissingInGitstore(op.Checkpoint) {
		return p.requirePushed(ctx, op.Checkpoint)
	}
	return nil
}

// checkBranch checks that the branch that is to preserve the current state can be created.
func (p *preparer) checkBranch(op *daemonapi.Operation) error {
	r := newRewind(op, "")
	if !keepsBranch(r) {
		return nil
	}
	name := daemonapi.PreservedBranch(r.Branch, r.ID)
	if err := refname.CheckBranch(name); err != nil {
		return &failure{reason: v1alpha1.ReasonInvalidBranch, permanent: true,
			message: fmt.Sprintf("%q is not a valid branch name: %v; set rewind.branch to another name, and request the rewind again", name, err)}
	}
	return p.repo.CheckBranch(name)
}

// keepsBranch reports whether a rewind preserves the previous state as a branch.
func keepsBranch(r *journal.Rewind) bool {
	return r.Scope != v1alpha1.RewindConversation &&
		r.Preserve != v1alpha1.PreserveDiscard && r.Preserve != v1alpha1.PreserveStash
}

// target fetches the checkpoint to restore and reads every object of it, unless this run has
// done so before.
func (p *preparer) target(ctx context.Context, number int64, commit string) (journal.Point, error) {
	point, err := p.fetch(ctx, placeGitstore, p.cfg.Pod.TaskUID, number, commit)
	if err != nil {
		return point, err
	}
	if point == p.known.verified {
		return point, nil
	}
	if err := p.verify(ctx, placeGitstore, p.cfg.Pod.TaskUID, point); err != nil {
		return point, fmt.Errorf("checkpoint %d cannot be restored: %w", number, err)
	}
	p.known.verified = point
	return point, nil
}

// verify reads every object of a checkpoint. If one is damaged on the volume, the checkpoint is
// fetched again.
func (p *preparer) verify(ctx context.Context, where place, uid string, point journal.Point) error {
	damaged := p.repo.Verify(ctx, target(point))
	if !isDamage(damaged) {
		return damaged
	}
	p.log.Info("a checkpoint is damaged on the volume: fetching it again", "checkpoint", point.Number, "damage", damaged.Error())
	remote, err := p.cfg.Remote()
	if err == nil {
		err = p.repo.Refetch(ctx, remote, refname.Code(uid, point.Number), refname.State(uid, point.Number))
	}
	if err != nil {
		p.log.Info("could not fetch it again", "error", wrapPlace(where, err).Error())
		if named := p.damage(ctx, uid, point.Number); named != nil {
			return named
		}
		return damaged
	}
	return p.repo.Verify(ctx, target(point))
}

// isDamage reports whether an error is that an object of a checkpoint is damaged on the volume.
func isDamage(err error) bool {
	switch worktree.ReasonOf(err) {
	case worktree.CheckpointCorrupted, worktree.CheckpointNotFound: // the ref of a lost commit is still there
		return true
	}
	return false
}
