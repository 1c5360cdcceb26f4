package task

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// tasksWaitingFor is the cache's index of Tasks that do not know yet at which checkpoint they
// start, by the name of the task that they start from. A task that depends on others resolves that
// only when they have ended.
const tasksWaitingFor = "waitingFor"

// waitsFor is the index function of tasksWaitingFor.
func waitsFor(object client.Object) []string {
	task, ok := object.(*v1alpha1.Task)
	if !ok {
		return nil
	}
	if from := plan.UnresolvedSource(task); from != nil && len(plan.Awaited(task)) == 0 {
		return []string{from.TaskRef.Name}
	}
	return nil
}

// waitingForTask returns requests for the tasks that wait for a Task to start from.
func (r *Reconciler) waitingForTask(ctx context.Context, object client.Object) []reconcile.Request {
	return r.waitingFor(ctx, object.GetNamespace(), object.GetName())
}

// waitingForCheckpoint returns requests for the tasks that wait for the task of a Checkpoint.
func (r *Reconciler) waitingForCheckpoint(ctx context.Context, object client.Object) []reconcile.Request {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return nil
	}
	return r.waitingFor(ctx, c.Namespace, c.Spec.TaskRef.Name)
}

func (r *Reconciler) waitingFor(ctx context.Context, namespace, source string) []reconcile.Request {
	list := &v1alpha1.TaskList{}
	// The listed objects are only read.
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{tasksWaitingFor: source}, client.UnsafeDisableDeepCopy)
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not list the tasks that wait for a task", "source", source)
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
