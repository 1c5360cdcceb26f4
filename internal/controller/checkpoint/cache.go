package checkpoint

import "github.com/clew-dev/clew/api/v1alpha1"

// Cached is what the manager's cache keeps of a Checkpoint. There are many
// more of them than of anything else, an agent chooses much of what they tell,
// and no controller reads that from the cache.
func Cached(object any) (any, error) {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return object, nil
	}
	kept := slim(c)
	kept.ManagedFields = nil
	return kept, nil
}

// slim is the object without what a record tells and nothing is decided by.
func slim(c *v1alpha1.Checkpoint) *v1alpha1.Checkpoint {
	kept := *c
	s := c.Status
	kept.Status = v1alpha1.CheckpointStatus{
		ObservedGeneration: s.ObservedGeneration, Conditions: s.Conditions, TaskUID: s.TaskUID, RequestedBy: s.RequestedBy,
		Number: s.Number, Trigger: s.Trigger,
	}
	return &kept
}
