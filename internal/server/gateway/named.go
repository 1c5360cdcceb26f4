package gateway

import (
	"context"
	"slices"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

// A task that continues the history of a former one has checkpoints for which Checkpoint objects stood
// that may be applied again. The manager makes the first object of such a name stand for the same
// checkpoint, so the daemon must take none for it. Only an adoption makes names wait for an object, and
// it ends all streams that are open.

// untaken returns the requests without those that stand for a checkpoint that was taken.
func (g *Gateway) untaken(ctx context.Context, id podidentity.Identity, t *announcer, pending []CheckpointRequest) []CheckpointRequest {
	unsent := func(r CheckpointRequest) bool { return !t.sent[r.UID] }
	if t.answered && (len(t.named) == 0 || !slices.ContainsFunc(pending, unsent)) {
		return pending
	}
	named, err := g.named(ctx, id, pending)
	switch {
	case err == nil:
		t.named, t.answered = named, true
	case !t.answered && t.unanswered < patience:
		return slices.DeleteFunc(pending, unsent)
	}
	return slices.DeleteFunc(pending, func(r CheckpointRequest) bool {
		return slices.ContainsFunc(t.named, func(n history.NamedCheckpoint) bool { return n.Name == r.Name && (n.UID == "" || n.UID == r.UID) })
	})
}

// named asks the store for the checkpoints that wait for an object, or that one of those stands for
// which are pending.
func (g *Gateway) named(ctx context.Context, id podidentity.Identity, pending []CheckpointRequest) ([]history.NamedCheckpoint, error) {
	timed, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	release, err := g.shares.checkSlot(timed, id)
	if err != nil {
		return nil, err
	}
	defer release()
	uids := make([]string, 0, len(pending))
	for _, r := range pending {
		uids = append(uids, r.UID)
	}
	return g.store.NamedCheckpoints(timed, history.Key{Namespace: id.Namespace, UID: id.TaskUID}, uids)
}
