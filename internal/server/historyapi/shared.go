package historyapi

import (
	"context"
	"errors"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// shared returns the last position up to which the conversation of a task at two positions has
// the same messages: the branches of both begin with those of the branch that they come from.
func (a *api) shared(ctx context.Context, task history.Task, one, other history.Position) (int64, error) {
	known, unknown := int64(0), min(one.Position, other.Position)
	if one.Branch == other.Branch {
		return unknown, nil
	}
	for probe := unknown; known < unknown; probe = (known + unknown + 1) / 2 {
		same, err := a.sameMessage(ctx, task, one.Branch, other.Branch, probe)
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
func (a *api) sameMessage(ctx context.Context, task history.Task, branch, other string, position int64) (bool, error) {
	var written [2]string
	for i, name := range []string{branch, other} {
		page, err := a.Store.TaskConversation(ctx, history.ConversationQuery{
			Namespace: task.Namespace, Name: task.Name, UID: task.UID, Branch: name, After: position - 1, Limit: 1,
		})
		if errors.Is(err, history.ErrNotFound) || err == nil && len(page.Entries) == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		written[i] = page.Entries[0].Branch
	}
	return written[0] == written[1], nil
}

// findShared finds the messages that two moments on different branches of one conversation have
// in common.
func (a *api) findShared(ctx context.Context, of *moments) error {
	if !of.oneConversation() || of.oneBranch() {
		return nil
	}
	shared, err := a.shared(ctx, of.task, of.from.position(), of.to.position())
	of.shared = &shared
	return err
}

// oneConversation reports whether it is known of both moments where in one conversation they are.
func (of *moments) oneConversation() bool {
	known := func(m moment) bool { return !m.parent && m.drifted == 0 }
	return of.from.task.UID == of.to.task.UID && known(of.from) && known(of.to)
}

// oneBranch reports whether one of the moments follows the other on a branch of their
// conversation. Every branch follows the base.
func (of *moments) oneBranch() bool {
	return of.from.branch() == of.to.branch() || of.from.kind() == historyv1alpha1.MomentBase || of.to.kind() == historyv1alpha1.MomentBase
}
