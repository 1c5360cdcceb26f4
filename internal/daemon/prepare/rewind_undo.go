package prepare

import (
	"context"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// A rewind that fails permanently is undone: the files and the agent's state become those
// of the checkpoint From again, then the conversation returns to its previous position, and
// only then the journal forgets the rewind. Each of these is a stage of its own, so that it
// can be killed at any instant like the rewind itself.

// giveUp journals that a rewind failed permanently and is to be undone. Other errors are
// returned: the next try may succeed.
func (p *preparer) giveUp(r *journal.Rewind, err error) error {
	f := failureOf(err)
	switch {
	case !hopeless(r, err):
		return err
	case p.untouched(r):
		return p.failRewind(r.ID, f)
	}
	p.log.Error(err, "the rewind failed and is undone", "id", r.ID, "stage", r.Stage)
	return p.advance(journal.RewindUndoing, func(s *journal.State) { s.Rewind.Failure, s.Clean = &f, nil })
}

// hopeless reports whether retrying a rewind cannot help.
func hopeless(r *journal.Rewind, err error) bool {
	switch r.Stage {
	case journal.RewindMarked, journal.RewindUndoing, journal.RewindUndone:
		// Everything is done except the report, or there is nothing left to fall back to.
		return false
	case journal.RewindBegun:
		// As long as nothing was changed, the task need not wait until somebody frees space
		// in the gitstore.
		var refused *checkpoint.RefusedError
		if errors.As(err, &refused) {
			return true
		}
	}
	return judge(err).permanent
}

// untouched reports whether neither files nor conversation have changed yet. The
// conversation may have, if the volume was lost in the middle of the rewind.
func (p *preparer) untouched(r *journal.Rewind) bool {
	return (r.Stage == journal.RewindBegun || r.Stage == journal.RewindSaved) &&
		!p.completedAtServer(daemonapi.OperationKey(daemonapi.OperationRewind, r.ID))
}

// failureOf returns what is reported to people about an error.
func failureOf(err error) journal.Failure {
	reason, _, message := describe(err)
	return journal.Failure{Reason: reason, Message: truncate(message, maxFailure)}
}

// failRewind ends a rewind that failed and left everything unchanged.
func (p *preparer) failRewind(id string, f journal.Failure) error {
	p.log.Info("the rewind failed and changed nothing", "id", id, "reason", f.Reason, "message", f.Message)
	if op := p.cfg.Pod.Operation; op == nil || (op.Kind == daemonapi.OperationRewind && op.ID == id) {
		p.reportFailed(daemonapi.OperationRewind, id, f)
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Rewind = nil
		s.Complete(journal.Done{ID: daemonapi.OperationKey(daemonapi.OperationRewind, id), Failure: &f})
		return nil
	})
}

// restoreBefore restores files and agent state to what they were before the rewind.
func (p *preparer) restoreBefore(ctx context.Context, r *journal.Rewind) error {
	if r.From.Number == 0 {
		return &failure{permanent: true, reason: v1alpha1.ReasonCheckpointNotFound,
			message: "the rewind failed, and there is no checkpoint from before it: " + r.Failure.Message}
	}
	res, err := p.restoreTo(ctx, r.From, worktree.ScopeBoth)
	if err != nil {
		return fmt.Errorf("undo the rewind, which failed (%s): %w", r.Failure.Message, err)
	}
	return p.advance(journal.RewindUndone, func(s *journal.State) {
		from := r.From
		s.Latest, s.Parent, s.Clean = &from, from.Code, &from
		s.Rewind.Restored = res.sequence
		s.RestoreSession(res.session)
	})
}

// moveForward moves the conversation back to its previous position, if the rewind has moved
// it, and ends the rewind.
func (p *preparer) moveForward(ctx context.Context, r *journal.Rewind) error {
	if err := p.drain(ctx); err != nil {
		return err
	}
	position := p.begun.GetPosition().GetPosition()
	if p.completedAtServer(daemonapi.OperationKey(daemonapi.OperationRewind, r.ID)) {
		var err error
		position, err = p.move(ctx, &daemonv1.Move{
			OperationId: daemonapi.OperationUndoneKey(daemonapi.OperationRewind, r.ID), Checkpoint: r.From.Number, AfterSequence: r.Restored,
			Reason: daemonapi.NoteRewindUndone, KeepPosition: r.Scope == v1alpha1.RewindCode})
		if err != nil {
			return err
		}
	}
	err := p.journal.Update(func(s *journal.State) error { s.RestoredAt(position); return nil })
	if err != nil {
		return err
	}
	return p.failRewind(r.ID, *r.Failure)
}

// worktreeGone adapts the journal to a volume whose worktree folder is missing: it is
// restored as after the loss of a volume. A rewind that had changed nothing yet begins anew, and the
// stage of any other falls back to where it restores the files again.
func worktreeGone(s *journal.State) {
	s.Checkout = nil // it is requested again, and begins anew unless it was reported
	r := s.Rewind
	if r == nil || r.Stage == journal.RewindBegun || r.Stage == journal.RewindSaved && r.From.Number != 0 {
		s.Layout, s.Clean, s.Rewind = nil, nil, nil
		return
	}
	switch {
	case r.Stage == journal.RewindUndoing, r.Stage == journal.RewindUndone:
		r.Stage = journal.RewindUndoing
	case r.Scope == v1alpha1.RewindConversation:
		// This rewind would leave the files alone, and they are gone.
		r.Stage = journal.RewindUndoing
		r.Failure = &journal.Failure{Reason: v1alpha1.ReasonPrepareFailed, Message: "the worktree's folder was missing from the volume; request the rewind again with a new id"}
	case r.Stage != journal.RewindSaved:
		r.Stage = journal.RewindRestoring
	}
}
