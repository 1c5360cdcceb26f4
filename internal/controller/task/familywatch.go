package task

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// familyOf returns requests for the tasks that an event of a Task concerns: its parent, which counts it;
// and those that wait for it, or for a place that it had.
func (r *Reconciler) familyOf(ctx context.Context, object client.Object) []reconcile.Request {
	task, ok := object.(*v1alpha1.Task)
	if !ok {
		return nil
	}
	var requests []reconcile.Request
	add := func(name string) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: task.Namespace, Name: name}})
	}
	if p := task.Status.Parent; p != nil {
		add(p.Name)
		for _, sibling := range r.family(ctx, task.Namespace, tasksByParentName, p.Name) {
			if plan.WaitsForPlace(&sibling) {
				add(sibling.Name)
			}
		}
	}
	if task.Spec.Role == v1alpha1.RoleSupervisor {
		for _, child := range r.family(ctx, task.Namespace, tasksByParentName, task.Name) {
			if plan.FollowsParent(&child, task) {
				add(child.Name)
			}
		}
	}
	if name := plan.ContractName(task); name != "" {
		index := tasksByContract
		if task.DeletionTimestamp == nil {
			index = supervisorsByContract // only a task that goes makes room for others
		}
		for _, other := range r.family(ctx, task.Namespace, index, name) {
			if plan.WaitsForPlace(&other) {
				add(other.Name)
			}
		}
		for _, other := range r.family(ctx, task.Namespace, tasksByContract, name) {
			if task.Spec.Role == v1alpha1.RoleSupervisor && plan.WaitsForBudget(&other) {
				add(other.Name)
			}
		}
	}
	return requests
}

// family is indexed for a watch, which has nobody to return an error to.
func (r *Reconciler) family(ctx context.Context, namespace, index, value string) []v1alpha1.Task {
	tasks, err := r.indexed(ctx, namespace, index, value)
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not list the tasks that another one concerns")
	}
	return tasks
}

// familyNews selects the events of Tasks that others of their contract or family follow.
func familyNews() predicate.Funcs {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return inFamily(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Task)
			after, also := e.ObjectNew.(*v1alpha1.Task)
			return ok && also && inFamily(after) && !equality.Semantic.DeepEqual(plan.FamilyViewOf(before), plan.FamilyViewOf(after))
		},
		DeleteFunc:  func(e event.DeleteEvent) bool { return inFamily(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// inFamily reports whether a task has a contract or a parent.
func inFamily(object client.Object) bool {
	task, ok := object.(*v1alpha1.Task)
	return ok && (task.Spec.ParentRef != nil || plan.ContractName(task) != "")
}
