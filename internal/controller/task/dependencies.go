package task

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// awaitedNames returns the names of the tasks that a task waits for.
func awaitedNames(task *v1alpha1.Task) (names []string) {
	for _, dep := range plan.Awaited(task) {
		names = append(names, dep.TaskRef.Name)
	}
	return names
}

// observeDependencies reads the tasks that a task waits for, and finds out who waits for it.
func (r *Reconciler) observeDependencies(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) (err error) {
	o.Waiters = r.relations.Waiters(task)
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
	o.Awaiting = r.relations.Awaiting(task, awaited)
	return nil
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
