package prepare

import (
	"cmp"
	"context"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/pathmatch"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// rewind begins a rewind. Nothing is changed until the journal has it, and everything that
// can be checked beforehand is checked.
func (p *preparer) rewind(ctx context.Context, op *daemonapi.Operation) error {
	if err := p.checkRewind(ctx, op); err != nil {
		if !judge(err).permanent {
			return err
		}
		return p.failRewind(op.ID, failureOf(err))
	}
	err := p.journal.Update(func(s *journal.State) error {
		s.Rewind = newRewind(op, journal.RewindBegun)
		return nil
	})
	if err != nil {
		return err
	}
	return p.finishRewind(ctx)
}

// newRewind returns the journal's entry for a requested rewind at a stage.
func newRewind(op *daemonapi.Operation, stage string) *journal.Rewind {
	r := &journal.Rewind{ID: op.ID, Stage: stage, Target: journal.Point{Number: op.Checkpoint, Code: op.Commit},
		Scope: op.Scope, Preserve: op.Preserve, Branch: op.Branch, OnDrift: op.OnDrift,
		Anew: op.Anew, Position: op.Position, CheckpointPosition: op.CheckpointPosition, AfterSequence: op.AfterSequence}
	if f := op.Files; f != nil {
		r.FilesOnly, r.Paths, r.Target = true, f.Paths, journal.Point{Number: f.Checkpoint, Code: f.Commit}
	}
	return r
}

// destination describes where a rewind goes, in words.
func destination(r *journal.Rewind) string {
	switch {
	case r.Anew:
		return "an empty conversation"
	case r.Target.Number == 0 && r.FilesOnly:
		return "commit " + clip.Bytes(r.Target.Code, 12)
	case r.Target.Number == 0:
		return fmt.Sprintf("message %d", r.Position)
	}
	return fmt.Sprintf("checkpoint %d", r.Target.Number)
}

// finishRewind runs the journalled rewind from its current stage to the end. A rewind that
// fails permanently is undone.
func (p *preparer) finishRewind(ctx context.Context) error {
	steps := map[string]func(context.Context, *journal.Rewind) error{
		journal.RewindBegun:     p.saveBefore,
		journal.RewindSaved:     p.startRestoring,
		journal.RewindRestoring: p.restoreTarget,
		journal.RewindRestored:  p.moveBack,
		journal.RewindMoved:     p.markRewound,
		journal.RewindMarked:    p.endRewind,
		journal.RewindUndoing:   p.restoreBefore,
		journal.RewindUndone:    p.moveForward,
	}
	for {
		r := p.journal.State().Rewind
		if r == nil {
			return nil
		}
		do, ok := steps[r.Stage]
		if !ok {
			return fmt.Errorf("the journal has a rewind at the unknown stage %q", r.Stage)
		}
		p.log.Info("rewinding", "id", r.ID, "stage", r.Stage, "target", r.Target.Number, "scope", r.Scope)
		err := p.timed(ctx, step{"rewind: " + r.Stage, func(ctx context.Context) error { return do(ctx, r) }})
		if err != nil {
			if err := p.giveUp(r, fmt.Errorf("rewind to %s: %w", destination(r), err)); err != nil {
				return err
			}
		}
	}
}

// advance journals the next stage, together with whatever else changes at that moment.
func (p *preparer) advance(stage string, also func(*journal.State)) error {
	return p.journal.Update(func(s *journal.State) error {
		s.Rewind.Stage = stage
		if also != nil {
			also(s)
		}
		return nil
	})
}

// saveBefore makes sure that the current state is in a checkpoint that the gitstore has.
func (p *preparer) saveBefore(ctx context.Context, r *journal.Rewind) error {
	from, err := p.currentCheckpoint(ctx, r.From)
	if err != nil {
		return err
	}
	if from == nil {
		point, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerPreRewind,
			Message: "Before the rewind to " + destination(r),
			Also:    func(s *journal.State, point journal.Point) { s.Rewind.From = point }})
		if err != nil {
			return err
		}
		from = &point
	}
	if err := p.requirePushed(ctx, from.Number); err != nil {
		return err
	}
	return p.advance(journal.RewindSaved, func(s *journal.State) { s.Rewind.From = *from })
}

// currentCheckpoint returns the checkpoint that is identical to the current state, or nil. It is
// taken, unless it has no number, if it was taken for the operation before a crash.
func (p *preparer) currentCheckpoint(ctx context.Context, taken journal.Point) (*journal.Point, error) {
	if taken.Number != 0 {
		return &taken, nil
	}
	state := p.journal.State()
	if state.Latest == nil || state.Clean == nil || *state.Clean != *state.Latest || state.IsLost(state.Latest.Number) {
		return nil, nil
	}
	// What was said since is in no checkpoint, and undoing the rewind has to lead there.
	newest := p.begun.GetLatestCheckpoint()
	if newest.GetNumber() != state.Latest.Number || newest.GetPosition().GetPosition() != p.begun.GetPosition().GetPosition() {
		return nil, nil
	}
	drift, err := p.drift(ctx, *state.Latest)
	if err != nil || !drift.Same() { // a change of only the index, a ref or the home counts, too
		return nil, err
	}
	return state.Latest, nil
}

// startRestoring verifies the target once more and journals that from here on the files may
// be a mixture.
func (p *preparer) startRestoring(ctx context.Context, r *journal.Rewind) error {
	if r.Target.Number == 0 && !r.FilesOnly {
		return p.startAtFloor(ctx, r)
	}
	point, err := p.targetOf(ctx, r)
	if err != nil {
		return err
	}
	return p.advance(journal.RewindRestoring, func(s *journal.State) {
		s.Rewind.Target = point
		s.Clean = nil
	})
}

// restoreTarget restores the target's files and preserves the previous state.
func (p *preparer) restoreTarget(ctx context.Context, r *journal.Rewind) error {
	scope := worktree.ScopeBoth
	switch r.Scope {
	case v1alpha1.RewindCode:
		scope = worktree.ScopeCode
	case v1alpha1.RewindConversation:
		scope = worktree.ScopeConversation
	}
	restore := p.restoreTo
	switch {
	case r.FilesOnly:
		scope = worktree.ScopeCode
		restore = func(ctx context.Context, _ journal.Point, _ worktree.Scope) (restored, error) {
			return restored{}, p.restoreFiles(ctx, r)
		}
	case r.Target.Code == "":
		restore = p.clearSession
	}
	res, err := restore(ctx, r.Target, scope)
	if err != nil {
		return err
	}
	preserved, err := p.preserve(ctx, r)
	if err != nil {
		return err
	}
	return p.advance(journal.RewindRestored, func(s *journal.State) {
		s.Rewind.Preserved, s.Rewind.Restored = preserved, res.sequence
		if scope != worktree.ScopeCode {
			s.RestoreSession(res.session)
		}
	})
}

// preserve keeps the previous state as a branch or a stash of the agent's own repository.
func (p *preparer) preserve(ctx context.Context, r *journal.Rewind) (name string, err error) {
	if r.Scope == v1alpha1.RewindConversation || r.Preserve == v1alpha1.PreserveDiscard {
		return "", nil
	}
	req := worktree.PreserveRequest{Mode: worktree.PreserveBranch, Name: r.Branch, From: target(r.From),
		Message: "Before the rewind to " + destination(r)}
	if r.Preserve == v1alpha1.PreserveStash {
		req.Mode, req.Name = worktree.PreserveStash, r.ID
	} else {
		req.Name = daemonapi.PreservedBranch(r.Branch, r.ID)
	}
	kept, err := p.repo.Preserve(ctx, req)
	if err != nil {
		return "", fmt.Errorf("preserve the state before the rewind: %w", err)
	}
	if req.Mode == worktree.PreserveStash {
		return kept.Ref, nil
	}
	return req.Name, nil
}

// preservedBranches are the branches that keep the previous state in the gitstore, too, from
// which they can be cloned. The checkpoint that they point to is already there.
func (p *preparer) preservedBranches(r *journal.Rewind) []worktree.RefUpdate {
	if !keepsBranch(r) || r.Preserved == "" {
		return nil
	}
	return []worktree.RefUpdate{{Source: r.From.Code, Name: refname.Branch(p.cfg.Pod.Task, r.Preserved)}}
}

// moveBack moves the conversation to the target's position. It stays if only the files are
// rewound, and may go to a later position if only the conversation is.
func (p *preparer) moveBack(ctx context.Context, r *journal.Rewind) error {
	m := &daemonv1.Move{OperationId: daemonapi.OperationKey(daemonapi.OperationRewind, r.ID),
		Checkpoint: r.Target.Number, AfterSequence: r.Restored, Reason: daemonapi.NoteRewind, Anew: r.Anew}
	switch {
	case r.Scope == v1alpha1.RewindCode:
		m.KeepPosition = true
	case r.Scope == v1alpha1.RewindConversation && r.Position != 0:
		m.Position, m.AfterSequence = r.Position, r.AfterSequence
	}
	position, err := p.move(ctx, m)
	if err != nil {
		return err
	}
	return p.advance(journal.RewindMoved, func(s *journal.State) {
		if m.KeepPosition {
			return
		}
		s.Rewind.MovedTo = settledPosition(goal(r), position)
		s.RestoredAt(settledPosition(r.CheckpointPosition, position))
	})
}

// settledPosition returns the conversation's position after a move to position at, which is
// 0 if unknown: the lower one of at and the server's answer. The answer may be higher, by
// what was said since an earlier try, and lower if the history has a gap since the rewind
// was requested.
func settledPosition(at, answer int64) int64 { return min(cmp.Or(at, answer), answer) }

// goal returns the position to which a rewind moves the conversation; 0 if it leaves the
// conversation alone or the checkpoint's position is unknown.
func goal(r *journal.Rewind) int64 {
	switch r.Scope {
	case v1alpha1.RewindCode:
		return 0
	case v1alpha1.RewindConversation:
		return cmp.Or(r.Position, r.CheckpointPosition)
	}
	return r.CheckpointPosition
}

// markRewound takes the checkpoint Rewound, so that the newest recorded checkpoint is the
// current state.
func (p *preparer) markRewound(ctx context.Context, r *journal.Rewind) error {
	// Calls that are open at the target's position will never be answered.
	if err := p.closeCalls(ctx); err != nil {
		return err
	}
	parent, message := r.Target.Code, "Rewound to "+destination(r)
	if r.Scope == v1alpha1.RewindConversation || len(r.Paths) > 0 {
		parent = r.From.Code
	}
	if len(r.Paths) > 0 {
		message = fmt.Sprintf("Rewound %s to %s", selection(r.Paths), destination(r))
	}
	_, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerRewound, Parent: parent, Message: message,
		Also: func(s *journal.State, point journal.Point) {
			s.Rewind.Stage = journal.RewindMarked
			s.Clean = &point
		}})
	return err
}

// endRewind pushes and ships everything, the preserved branch included, and records the rewind as complete.
func (p *preparer) endRewind(ctx context.Context, r *journal.Rewind) error {
	if err := p.pushAcceptable(ctx, p.preservedBranches(r)...); err != nil {
		return err
	}
	_, err := p.move(ctx, &daemonv1.Move{OperationId: daemonapi.OperationDoneKey(daemonapi.OperationRewind, r.ID),
		Checkpoint: r.Target.Number, Reason: daemonapi.NoteRewindComplete, KeepPosition: true, Rewound: rewound(r)})
	if err != nil {
		return err
	}
	done := journal.Done{ID: daemonapi.OperationKey(daemonapi.OperationRewind, r.ID), From: r.From.Number, To: r.Target.Number, Preserved: r.Preserved, Position: r.MovedTo}
	if op := p.cfg.Pod.Operation; op == nil || (op.Kind == daemonapi.OperationRewind && op.ID == r.ID) {
		p.reportDone(daemonapi.OperationRewind, r.ID, done)
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Rewind = nil
		s.Complete(done)
		return nil
	})
}

// rewound describes a rewind for one that undoes it.
func rewound(r *journal.Rewind) *daemonv1.Rewound {
	paths := r.Paths
	if r.FilesOnly && len(paths) == 0 {
		paths = []string{pathmatch.Everything} // the undo leaves the agent's repository alone, too
	}
	return &daemonv1.Rewound{Scope: string(r.Scope), Paths: paths, FromCheckpoint: r.From.Number, ToCheckpoint: r.Target.Number}
}
