package task

import (
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// settlePlace gives back the place of a task that has asked for one and does not use it: something
// else has come in its way.
func (r *Reconciler) settlePlace(task *v1alpha1.Task, p plan.Plan) {
	decided := v1alpha1.Task{ObjectMeta: task.ObjectMeta, Spec: task.Spec, Status: p.Status}
	r.Places.Settle(task, p.Queued, plan.HoldsPlace(&decided))
}
