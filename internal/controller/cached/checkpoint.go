package cached

import "github.com/clew-dev/clew/api/v1alpha1"

// checkpoint drops the contents of the record. There are many more Checkpoints than objects of any other
// kind, an agent chooses much of their contents, and no controller reads those from the cache.
func checkpoint(c *v1alpha1.Checkpoint) {
	trim(&c.ObjectMeta)
	c.Status = Slim(c).Status
}

// Slim returns a Checkpoint without the contents of its record, on which no decision depends. It keeps all
// that follows from no record: whoever fills a status from one writes the whole.
func Slim(c *v1alpha1.Checkpoint) *v1alpha1.Checkpoint {
	kept := *c
	s := c.Status
	kept.Status = v1alpha1.CheckpointStatus{
		ObservedGeneration: s.ObservedGeneration, Conditions: s.Conditions, TaskUID: s.TaskUID, RequestedBy: s.RequestedBy,
		Number: s.Number, Trigger: s.Trigger, Set: SlimSet(s.Set), Branches: s.Branches, BranchPushes: s.BranchPushes,
	}
	return &kept
}

// SlimSet returns of a set that has ended only that: its members, of which there may be many, are read from
// the API server when somebody rewinds to them.
func SlimSet(set *v1alpha1.CheckpointSet) *v1alpha1.CheckpointSet {
	if set == nil || !set.State.Ended() {
		return set
	}
	return &v1alpha1.CheckpointSet{State: set.State}
}
