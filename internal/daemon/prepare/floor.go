package prepare

import (
	"context"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// The floor of a task is the agent's state of before its first run: nothing, or
// what a fork inherited. The conversation can be taken back to a message that is
// older than every checkpoint; the agent's state then goes to the floor, since
// all that is known of it otherwise is from after that moment.

// startAtFloor notes that the agent's state goes to the floor, and that from here
// on its files may be a mixture.
func (p *preparer) startAtFloor(ctx context.Context, r *journal.Rewind) error {
	point, err := p.inheritedState(ctx, r)
	if err != nil {
		return err
	}
	return p.advance(journal.RewindRestoring, func(s *journal.State) {
		s.Clean, s.Rewind.Target = nil, journal.Point{}
		if point.Code != "" {
			point.Number = 0 // it is no checkpoint of this task
			s.Rewind.Target, s.Rewind.CheckpointPosition = point, p.cfg.Pod.Source.Position
		}
	})
}

// inheritedState is the other task's checkpoint whose agent's state this task
// began with; the zero value if it began with none, if that is from after the
// position of the rewind, or if it cannot be had any more.
func (p *preparer) inheritedState(ctx context.Context, r *journal.Rewind) (journal.Point, error) {
	src := p.cfg.Pod.Source
	if src == nil || !src.IncludeConversation || src.Position == 0 || r.Position < src.Position {
		return journal.Point{}, nil
	}
	point, err := p.fetch(ctx, placeSource, src.TaskUID, src.Checkpoint, src.Commit)
	if err == nil {
		err = p.repo.Verify(ctx, target(point))
	}
	if err == nil {
		return point, nil
	}
	switch judge(err).reason {
	case v1alpha1.ReasonCheckpointNotFound, v1alpha1.ReasonCheckpointCorrupted:
		p.log.Info("the agent's state that the task began with cannot be had any more: it begins with none",
			"task", src.TaskUID, "checkpoint", src.Checkpoint, "error", err.Error())
		return journal.Point{}, nil
	}
	return journal.Point{}, err
}

// clearSession is restoreTo for a state that is nowhere: the agent's state is
// taken away.
func (p *preparer) clearSession(ctx context.Context, _ journal.Point, scope worktree.Scope) (restored, error) {
	if scope != worktree.ScopeConversation {
		return restored{}, errors.New("there is no checkpoint to restore the files from")
	}
	var res worktree.RestoreResult
	err := p.retry(ctx, func() (err error) {
		res, err = p.repo.ClearSession(ctx)
		return err
	})
	if err != nil {
		return restored{}, fmt.Errorf("take the agent's state away: %w", err)
	}
	p.log.Info("took the agent's state away", "removed", res.Removed, "kept", len(res.Kept), "took", res.Took.String())
	return restored{}, nil
}
