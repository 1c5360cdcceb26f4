package checkpoint

import (
	"context"
	"fmt"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// A checkpoint of which an object is damaged on the volume can never get to the
// gitstore, and neither can any that continues it. They are given up, each with
// its reason, and the next checkpoint begins a new history: it has no parent and
// is complete in itself.

// damaged tells a push that failed since something is damaged on the volume from
// one that may succeed later. It answers only while the gitstore can be reached.
func (t *Taker) damaged(ctx context.Context, remote worktree.Remote, points []journal.Point) *RefusedError {
	prefix := t.prefix()
	there, err := t.Repo.RemoteRefs(ctx, remote, prefix)
	if err != nil && worktree.ReasonOf(err) != worktree.RepositoryNotFound {
		return nil
	}
	here, err := t.Repo.Refs(ctx, prefix)
	if err != nil {
		return nil //nolint:nilerr // then it is not known, and the push's own error stands
	}
	var ids, has []string
	for ref, id := range here {
		if there[ref] == id {
			has = append(has, id)
		}
	}
	for _, p := range points {
		ids = append(ids, p.Code, p.State)
	}
	err = t.Repo.CheckSendable(ctx, ids, has)
	if worktree.ReasonOf(err) != worktree.CheckpointCorrupted {
		return nil
	}
	return &RefusedError{Reason: string(worktree.CheckpointCorrupted), Err: err,
		Message: "it, or what it continues, is damaged on the volume and cannot be sent; a later checkpoint begins a new history"}
}

// lose gives up a checkpoint that is damaged on the volume.
func (t *Taker) lose(p journal.Point, why *RefusedError) error {
	t.Log.Error(why, "a checkpoint is damaged on the volume and will never be in the gitstore", "checkpoint", p.Number)
	err := t.Event(v1alpha1.EventCheckpointRefused, fmt.Sprintf("checkpoint %d will never be in the gitstore: %s", p.Number, why.Message),
		map[string]string{"checkpoint": strconv.FormatInt(p.Number, 10), "reason": why.Reason, "message": why.Message})
	if err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error { s.Lose(p.Number); return nil })
}

// Lacks says whether the gitstore lacks the checkpoint with this number, now or
// for ever.
func (t *Taker) Lacks(number int64) bool {
	state := t.Journal.State()
	return state.Waits(number) || state.IsLost(number)
}
