package task

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// tasksByAwaited is the cache's index of Tasks by the names of the tasks that they wait for.
const tasksByAwaited = "awaitedTask"

// maxWalk is how many tasks are looked at to find a circle of tasks that wait for each other.
const maxWalk = 500

// awaitedNames is the index function of tasksByAwaited.
func awaitedNames(object client.Object) (names []string) {
	task, ok := object.(*v1alpha1.Task)
	if !ok {
		return nil
	}
	for _, dep := range plan.Awaited(task) {
		names = append(names, dep.TaskRef.Name)
	}
	return names
}

// observeDependencies reads the tasks that a task waits for, and finds out who waits for it.
func (r *Reconciler) observeDependencies(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) (err error) {
	if o.Waiters, err = r.waiters(ctx, task); err != nil {
		return err
	}
	awaited := awaitedNames(task)
	if len(awaited) == 0 {
		return nil
	}
	o.Dependencies = map[string]plan.FoundTask{}
	for _, name := range awaited {
		found := plan.FoundTask{}
		if found.Task, err = read[v1alpha1.Task](ctx, reader, task.Namespace, name); err != nil {
			return err
		}
		if found.Task == nil {
			found = r.gone(ctx, task.Namespace, name)
		}
		o.Dependencies[name] = found
	}
	o.Awaiting, err = r.awaiting(ctx, task, awaited)
	return err
}

// gone returns what the history store knows of the newest task of a name, which is gone.
func (r *Reconciler) gone(ctx context.Context, namespace, name string) plan.FoundTask {
	gone, err := r.Store.GoneTask(ctx, namespace, name)
	switch {
	case errors.Is(err, history.ErrNotFound):
		return plan.FoundTask{Known: true}
	case err != nil:
		// The task is reconciled all the same; it waits.
		logf.FromContext(ctx).V(1).Info("could not ask how a task has ended that is gone", "gone", name, "error", err.Error())
		return plan.FoundTask{}
	}
	return plan.FoundTask{Known: true, Gone: &gone}
}

// dependents lists the tasks that wait for the task of a name, as the cache has them. They are only
// to be read.
func (r *Reconciler) dependents(ctx context.Context, namespace, name string) ([]v1alpha1.Task, error) {
	list := &v1alpha1.TaskList{}
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{tasksByAwaited: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the tasks that wait for task %s: %w", name, err)
	}
	return list.Items, nil
}

// waiters returns the names of the tasks that wait for a task to complete, in order.
func (r *Reconciler) waiters(ctx context.Context, task *v1alpha1.Task) (names []string, err error) {
	tasks, err := r.dependents(ctx, task.Namespace, task.Name)
	for i := range tasks {
		for _, dep := range plan.Awaited(&tasks[i]) {
			if dep.TaskRef.Name == task.Name && dep.Condition != v1alpha1.DependOnFinished {
				names = append(names, tasks[i].Name)
			}
		}
	}
	slices.Sort(names)
	return names, err
}

// awaiting returns the tasks that wait for a task, directly or through others, with those that each
// waits for, as the cache has them: a circle may be among them.
func (r *Reconciler) awaiting(ctx context.Context, task *v1alpha1.Task, awaited []string) (map[string][]string, error) {
	found := map[string][]string{task.Name: awaited}
	next := []string{task.Name}
	for len(next) > 0 && len(found) < maxWalk {
		tasks, err := r.dependents(ctx, task.Namespace, next[0])
		if err != nil {
			return nil, err
		}
		next = next[1:]
		for i := range tasks {
			if name := tasks[i].Name; found[name] == nil {
				found[name] = awaitedNames(&tasks[i])
				next = append(next, name)
			}
		}
	}
	return found, nil
}

// dependentsOf returns requests for the tasks that wait for a Task.
func (r *Reconciler) dependentsOf(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	tasks, err := r.dependents(ctx, object.GetNamespace(), object.GetName())
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not list the tasks that wait for a task", "task", object.GetName())
	}
	for i := range tasks {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tasks[i])})
	}
	return requests
}

// failedDependenciesOf returns requests for the tasks that have failed and that a Task waits for: they
// say who waits.
func (r *Reconciler) failedDependenciesOf(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	for _, name := range awaitedNames(object) {
		key := types.NamespacedName{Namespace: object.GetNamespace(), Name: name}
		task, err := read[v1alpha1.Task](ctx, r.Client, key.Namespace, key.Name)
		if err != nil {
			logf.FromContext(ctx).Error(err, "could not read a task that another one waits for", "task", name)
		}
		if task != nil && meta.IsStatusConditionFalse(task.Status.Conditions, v1alpha1.TaskSucceeded) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// newStanding selects the events of Tasks that may end the wait of those that depend on them: one
// appears, goes, or is in another state.
func newStanding() predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return standing(e.ObjectOld) != standing(e.ObjectNew) }}
}

// standing returns the status and the reason of a Task's condition Succeeded.
func standing(object client.Object) string {
	if task, ok := object.(*v1alpha1.Task); ok {
		if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded); c != nil {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// newAwaited selects the events in which a Task begins or ceases to wait for others.
func newAwaited() predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(awaitedNames(e.ObjectOld), awaitedNames(e.ObjectNew))
	}}
}
