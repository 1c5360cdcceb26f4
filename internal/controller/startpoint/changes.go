package startpoint

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// NewCheckpoint selects the events of Tasks that may end the wait of what starts from them: one
// appears, goes, or has another checkpoint.
func NewCheckpoint() predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Task)
		after, also := e.ObjectNew.(*v1alpha1.Task)
		return ok && also && !apiequality.Semantic.DeepEqual(before.Status.LatestCheckpoint, after.Status.LatestCheckpoint)
	}}
}

// NewConditions selects the events of Checkpoints that may end the wait of what starts from
// them: one appears, goes, has other conditions, or is now of a task that has adopted it.
func NewConditions() predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Checkpoint)
		after, also := e.ObjectNew.(*v1alpha1.Checkpoint)
		return ok && also && (before.Status.TaskUID != after.Status.TaskUID || !apiequality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions))
	}}
}
