package historyapi

import (
	"context"
	"errors"
	"strings"
	"time"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// place is a position in the conversation of a task.
type place struct {
	task history.Task
	history.Position
}

// shared returns the last position up to which the conversations at two places have the same
// messages: a branch begins with those of the branch that it comes from, and the conversation of
// a fork with those of its source.
func (a *api) shared(ctx context.Context, one, other place) (int64, error) {
	known, unknown := int64(0), min(one.Position.Position, other.Position.Position)
	if one.task.UID == other.task.UID && one.Branch == other.Branch {
		return unknown, nil
	}
	for probe := unknown; known < unknown; probe = (known + unknown + 1) / 2 {
		same, err := a.sameMessage(ctx, one, other, probe)
		switch {
		case err != nil:
			return 0, err
		case same:
			known = probe
		default:
			unknown = probe - 1
		}
	}
	return known, nil
}

// sameMessage reports whether two branches have the same message at a position.
func (a *api) sameMessage(ctx context.Context, one, other place, position int64) (bool, error) {
	first, err := a.writtenAt(ctx, one, position)
	if err != nil || first == (written{}) {
		return false, err
	}
	second, err := a.writtenAt(ctx, other, position)
	return first == second, err
}

// written says where and when a message was recorded, which tells messages apart. The time is
// needed where the branches of several deleted tasks have one name.
type written struct {
	branch string
	time   time.Time
}

// writtenAt returns where the message at a position of a branch was recorded; nothing if there is
// none.
func (a *api) writtenAt(ctx context.Context, at place, position int64) (written, error) {
	page, err := a.Store.TaskConversation(ctx, history.ConversationQuery{
		Namespace: at.task.Namespace, Name: at.task.Name, UID: at.task.UID, Branch: at.Branch, After: position - 1, Limit: 1,
	})
	if errors.Is(err, history.ErrNotFound) || err == nil && len(page.Entries) == 0 {
		return written{}, nil
	}
	if err != nil {
		return written{}, err
	}
	e := page.Entries[0]
	if !strings.Contains(e.Branch, "/") { // the task's own
		e.Branch = at.task.UID + "/" + e.Branch
	}
	return written{e.Branch, e.Time.UTC()}, nil
}

// findShared finds the messages that two moments on different branches, or of different tasks,
// have in common.
func (a *api) findShared(ctx context.Context, of *moments) error {
	if !of.positionsKnown() || of.oneBranch() {
		return nil
	}
	shared, err := a.shared(ctx, of.from.place(), of.to.place())
	of.shared = &shared
	return err
}

// positionsKnown reports whether it is known of both moments where in a conversation they are.
func (of *moments) positionsKnown() bool {
	known := func(m moment) bool { return !m.parent && (m.drifted == 0 || m.checkpoint != nil) }
	return known(of.from) && known(of.to)
}

// oneBranch reports whether one of the moments follows the other on a branch of one
// conversation. Every branch follows the base.
func (of *moments) oneBranch() bool {
	return of.from.task.UID == of.to.task.UID && of.from.branch() == of.to.branch() ||
		of.from.kind() == historyv1alpha1.MomentBase || of.to.kind() == historyv1alpha1.MomentBase
}
