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

// taken is what a stream knows about requests for checkpoints that were taken.
type taken struct {
	// none is true once the store has said that the task continues no other, and so has no such
	// checkpoints.
	none bool
	// requests are the UIDs of pending requests that stand for one.
	requests map[string]bool
	// failed is true while the store could not be asked, and waited counts the heartbeats since.
	failed bool
	waited int
}

// beat counts a heartbeat.
func (k *taken) beat() {
	if k.failed {
		k.waited++
	}
}

// untaken returns the requests without those that stand for a checkpoint that was taken.
func (g *Gateway) untaken(ctx context.Context, id podidentity.Identity, t *announcer, pending []CheckpointRequest) []CheckpointRequest {
	k := &t.taken
	if k.none {
		return pending
	}
	var unknown []CheckpointRequest
	known := map[string]bool{}
	for _, r := range pending {
		switch {
		case k.requests[r.UID]:
			known[r.UID] = true
		case !t.sent[r.UID]:
			unknown = append(unknown, r)
		}
	}
	k.requests = known
	withheld := func(r CheckpointRequest) bool { return k.requests[r.UID] }
	if len(unknown) > 0 {
		err := g.lookUp(ctx, id, k, unknown)
		if k.failed = err != nil; !k.failed {
			k.waited = 0
		} else if k.waited < patience {
			withheld = func(r CheckpointRequest) bool { return k.requests[r.UID] || !t.sent[r.UID] }
		}
	}
	return slices.DeleteFunc(pending, withheld)
}

// lookUp asks the store which of the requests stand for a checkpoint that was taken.
func (g *Gateway) lookUp(ctx context.Context, id podidentity.Identity, k *taken, requests []CheckpointRequest) error {
	timed, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	release, err := g.shares.checkSlot(timed, id)
	if err != nil {
		return err
	}
	defer release()
	formers, err := g.store.FormerTasks(timed, id.TaskUID)
	if k.none = err == nil && len(formers) == 0; err != nil || k.none {
		return err
	}
	names, uids := make([]string, 0, len(requests)), make([]string, 0, len(requests))
	for _, r := range requests {
		names, uids = append(names, r.Name), append(uids, r.UID)
	}
	named, err := g.store.NamedCheckpoints(timed, history.Key{Namespace: id.Namespace, UID: id.TaskUID}, names, uids)
	if err != nil {
		return err
	}
	for _, r := range requests {
		if slices.ContainsFunc(named, func(n history.NamedCheckpoint) bool { return n.Name == r.Name && (n.UID == "" || n.UID == r.UID) }) {
			k.requests[r.UID] = true
		}
	}
	return nil
}
