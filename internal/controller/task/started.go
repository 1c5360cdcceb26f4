package task

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// tasksBySource is the cache's index of Tasks by the UID of the task that they start from.
// It is in their status, which only the manager writes.
const tasksBySource = "taskOfSource"

// sourceUID is the index function of tasksBySource.
func sourceUID(object client.Object) []string {
	if t, ok := object.(*v1alpha1.Task); ok && t.Status.Source != nil {
		return []string{t.Status.Source.TaskUID}
	}
	return nil
}

// started lists the tasks that start from this one, or from the former one that it continues, as the
// cache has them: one that it does not have yet follows with its event.
func (r *Reconciler) started(ctx context.Context, task *v1alpha1.Task) (tasks []v1alpha1.Task, err error) {
	uids := []string{string(task.UID)}
	if a := task.Status.Adoption; a != nil && a.TaskUID != "" {
		uids = append(uids, a.TaskUID)
	}
	for _, uid := range uids {
		list := &v1alpha1.TaskList{}
		// The listed objects are only read.
		err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{tasksBySource: uid}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list the tasks that start from the task: %w", err)
		}
		tasks = append(tasks, list.Items...)
	}
	return tasks, nil
}

// sourceOf returns a request for the task that another one starts from.
func sourceOf(_ context.Context, object client.Object) []reconcile.Request {
	task, ok := object.(*v1alpha1.Task)
	if !ok || task.Spec.StartFrom == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: task.Namespace, Name: task.Spec.StartFrom.TaskRef.Name}}}
}

// startPointResolved selects the event in which a Task first says what it starts from.
func startPointResolved() predicate.Funcs {
	none := func(object client.Object) bool { return sourceUID(object) == nil }
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return !none(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return none(e.ObjectOld) && !none(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
