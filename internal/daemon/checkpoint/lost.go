package checkpoint

import (
	"context"
	"fmt"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// A checkpoint with an object that is damaged on the volume can never be pushed, and
// neither can any that continues it. Each is given up, with the reason, and the next
// checkpoint starts a new history: it has no parent and is complete in itself.

// damaged returns the refusal of checkpoints that cannot be pushed because something is
// damaged on the volume; nil if the push may succeed later. It can answer only while the
// gitstore is reachable.
func (t *Taker) damaged(ctx context.Context, remote worktree.Remote, points []journal.Point) *RefusedError {
	var ids []string
	for _, p := range points {
		ids = append(ids, p.Code, p.State)
	}
	err := t.sendable(ctx, remote, ids...)
	if worktree.ReasonOf(err) != worktree.CheckpointCorrupted {
		return nil
	}
	return &RefusedError{Reason: string(worktree.CheckpointCorrupted), Err: err,
		Message: "it, or a checkpoint that it builds on, is damaged on the volume and cannot be pushed; a later checkpoint starts afresh"}
}

// sendable returns an error if the volume lacks an object that a push of some commits would
// send. It returns nil if that cannot be known.
func (t *Taker) sendable(ctx context.Context, remote worktree.Remote, ids ...string) error {
	prefix := t.prefix()
	there, err := t.Repo.RemoteRefs(ctx, remote, prefix)
	if err != nil && worktree.ReasonOf(err) != worktree.RepositoryNotFound {
		return nil
	}
	here, err := t.Repo.Refs(ctx, prefix)
	if err != nil {
		return nil //nolint:nilerr // unknown, so the push's own error is returned
	}
	var has []string
	for ref, id := range here {
		if there[ref] == id {
			has = append(has, id)
		}
	}
	return t.Repo.CheckSendable(ctx, ids, has)
}

// giveUp gives up a checkpoint that is damaged on the volume.
func (t *Taker) giveUp(p journal.Point, why *RefusedError) error {
	t.Log.Error(why, "a checkpoint is damaged on the volume and will never be in the gitstore", "checkpoint", p.Number)
	err := t.Event(v1alpha1.EventCheckpointRefused, fmt.Sprintf("checkpoint %d will never be in the gitstore: %s", p.Number, why.Message),
		map[string]string{"checkpoint": strconv.FormatInt(p.Number, 10), "reason": why.Reason, "message": why.Message})
	if err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error { s.GiveUp(p.Number); return nil })
}

// MissingInGitstore reports whether the gitstore lacks the checkpoint with this number, now
// or permanently.
func (t *Taker) MissingInGitstore(number int64) bool {
	state := t.Journal.State()
	return state.IsPending(number) || state.IsLost(number)
}
