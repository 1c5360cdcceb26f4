package task

import (
	"context"
	"errors"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// adoption asks the history store what a new task adopts, until that is decided. That it was
// adopted is known before its history is read.
func (r *Reconciler) adoption(ctx context.Context, task *v1alpha1.Task) plan.Adoption {
	if !plan.UndecidedAdoption(task) {
		return plan.Adoption{}
	}
	id := history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)}
	// In this order: if a grant is carried out in between, there is a history to adopt. The other way
	// round there would be none, nor one of an earlier namespace, and the task would start anew.
	elsewhere, err := r.Store.EarlierNamespace(ctx, task.Namespace, task.Name)
	answer := plan.Adoption{Elsewhere: elsewhere}
	if err == nil {
		answer.Adoption, err = r.Store.Adoption(ctx, id)
	}
	found := answer.Adoption
	answer.Known = err == nil
	if keys := plan.OperationKeys(task); err == nil && found.Done && len(keys) > 0 {
		answer.Operations, err = r.Store.Operations(ctx, id.Key(), keys)
		answer.Known = err == nil
	}
	if err != nil {
		logf.FromContext(ctx).Info("could not find out what the task adopts", "error", err.Error())
	}
	return answer
}

// adopt gives the history of a former task to this one. If that history has gone or changed
// hands meanwhile, the next decision finds out.
func (r *Reconciler) adopt(ctx context.Context, task *v1alpha1.Task, former string) error {
	id := history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)}
	err := r.Store.Adopt(ctx, id, former)
	if err != nil && !errors.Is(err, history.ErrNotFound) && !errors.Is(err, history.ErrExists) {
		return err
	}
	logf.FromContext(ctx).Info("a task continues the history of a former one", "former", former)
	return nil
}
