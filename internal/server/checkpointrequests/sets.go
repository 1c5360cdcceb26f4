package checkpointrequests

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// maxGone bounds the sets that were deleted before they ended and are remembered. An agent that is stopped
// for one that is forgotten continues a little later, by itself.
const maxGone = 64

// sets are the sets of checkpoints that have not ended, or were deleted before.
type sets struct {
	// members are the tasks of each, as "namespace/task", by the UID of the Checkpoint that names it.
	members map[string][]string
	// released are those whose agents may continue, by "namespace/task".
	released map[string][]gateway.Release
	// gone are those that were deleted, the newest last.
	gone []string
}

// Releases implements gateway.Requests.
func (b *Board) Releases(namespace, task string) []gateway.Release {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sets.released[key(namespace, task)])
}

// followSet records the current state of a set that a Checkpoint names.
func (b *Board) followSet(c *clewv1alpha1.Checkpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uid, set := string(c.UID), c.Status.Set
	if set == nil || set.State.Ended() {
		b.forgetSet(uid)
		return
	}
	if b.sets.members[uid] == nil {
		var members []string
		for _, m := range set.Members {
			members = append(members, key(c.Namespace, m.Task))
		}
		b.sets.members[uid] = members
	}
	if set.State == clewv1alpha1.SetReleasing {
		b.releaseSet(gateway.Release{Set: uid})
	}
}

// dropSet lets the agents of a set continue that was deleted before it ended, or has got a label by which no
// server sees it any more.
func (b *Board) dropSet(uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sets.members[uid] == nil {
		return
	}
	b.releaseSet(gateway.Release{Set: uid, Gone: true})
	if b.sets.gone = append(b.sets.gone, uid); len(b.sets.gone) > maxGone {
		b.forgetSet(b.sets.gone[0])
		b.sets.gone = b.sets.gone[1:]
	}
}

// releaseSet lets the agents of a set continue. b.mu is held.
func (b *Board) releaseSet(r gateway.Release) {
	for _, member := range b.sets.members[r.Set] {
		if !slices.ContainsFunc(b.sets.released[member], func(other gateway.Release) bool { return other.Set == r.Set }) {
			b.sets.released[member] = append(b.sets.released[member], r)
			b.announce(member)
		}
	}
}

// forgetSet forgets a set. b.mu is held.
func (b *Board) forgetSet(uid string) {
	for _, member := range b.sets.members[uid] {
		left := slices.DeleteFunc(b.sets.released[member], func(other gateway.Release) bool { return other.Set == uid })
		if b.sets.released[member] = left; len(left) == 0 {
			delete(b.sets.released, member)
		}
	}
	delete(b.sets.members, uid)
}

// hold returns the UID of the set for which a Checkpoint is taken; "" for none.
func hold(c *clewv1alpha1.Checkpoint) string {
	switch {
	case c.Spec.PartOf != nil:
		return c.Spec.PartOf.UID
	case c.Spec.Scope == clewv1alpha1.CheckpointOfContract:
		return string(c.UID)
	}
	return ""
}

// inSet reports whether a Checkpoint that is taken for a set is to be taken now: the manager has begun the
// set, and it has not failed.
func inSet(c *clewv1alpha1.Checkpoint) bool {
	if c.Spec.Scope == clewv1alpha1.CheckpointOfContract {
		return c.Status.Set != nil && c.Status.Set.State == clewv1alpha1.SetTaking
	}
	return c.Spec.PartOf == nil || !untaken(c)
}

// untaken reports whether the set has ended without the Checkpoint.
func untaken(c *clewv1alpha1.Checkpoint) bool {
	ready := meta.FindStatusCondition(c.Status.Conditions, clewv1alpha1.CheckpointReady)
	return ready != nil && ready.Reason == clewv1alpha1.ReasonNotTakenTogether
}
