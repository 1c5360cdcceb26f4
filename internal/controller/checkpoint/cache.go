package checkpoint

import "github.com/clew-dev/clew/api/v1alpha1"

// Cached returns the part of a Checkpoint that the manager's cache keeps. There are many
// more of them than of any other kind, an agent chooses much of their contents, and no
// controller reads those from the cache.
func Cached(object any) (any, error) {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return object, nil
	}
	kept := slim(c)
	kept.ManagedFields = nil
	return kept, nil
}

// slim returns the object without the contents of its record, on which no decision depends.
func slim(c *v1alpha1.Checkpoint) *v1alpha1.Checkpoint {
	kept := *c
	s := c.Status
	kept.Status = v1alpha1.CheckpointStatus{
		ObservedGeneration: s.ObservedGeneration, Conditions: s.Conditions, TaskUID: s.TaskUID, RequestedBy: s.RequestedBy,
		Number: s.Number, Trigger: s.Trigger, Branches: s.Branches,
	}
	return &kept
}
