package prepare

import (
	"context"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// The floor of a task is the agent's state before its first run: none, or what a fork
// inherited. The conversation can be rewound to a message older than every checkpoint; the
// agent's state then returns to the floor, since every other known state is from after that
// message.

// startAtFloor journals that the agent's state returns to the floor, and that from here on
// its files may be a mixture.
func (p *preparer) startAtFloor(ctx context.Context, r *journal.Rewind) error {
	point, err := p.inheritedState(ctx, r)
	if err != nil {
		return err
	}
	return p.advance(journal.RewindRestoring, func(s *journal.State) {
		s.Clean, s.Rewind.Target = nil, journal.Point{}
		if point.Code != "" {
			point.Number = 0 // not a checkpoint of this task
			s.Rewind.Target, s.Rewind.CheckpointPosition = point, p.cfg.Pod.Source.Position
		}
	})
}

// inheritedState returns the source's checkpoint whose agent state this task began with. It
// returns the zero value if the task began with none, if that state is newer than the
// rewind's position, or if the checkpoint is no longer available.
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
		p.log.Info("the inherited agent state is no longer available: the agent starts without state",
			"task", src.TaskUID, "checkpoint", src.Checkpoint, "error", err.Error())
		return journal.Point{}, nil
	}
	return journal.Point{}, err
}

// clearSession is restoreTo for the floor of a task that inherited nothing: it deletes the
// agent's state.
func (p *preparer) clearSession(ctx context.Context, _ journal.Point, scope worktree.Scope) (restored, error) {
	if scope != worktree.ScopeConversation {
		return restored{}, errors.New("there is no checkpoint to restore the files from")
	}
	var res worktree.RestoreResult
	p.known.drift = nil
	err := p.retry(ctx, func() (err error) {
		res, err = p.repo.ClearSession(ctx)
		return err
	})
	if err != nil {
		return restored{}, fmt.Errorf("delete the agent's state: %w", err)
	}
	p.log.Info("deleted the agent's state", "removed", res.Removed, "kept", len(res.Kept), "took", res.Took.String())
	return restored{}, nil
}
