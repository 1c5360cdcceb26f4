package task

import (
	"context"
	"errors"
	"slices"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// adoption asks the history store what a new task adopts, until that is decided. That it was
// adopted is known before its history is read, and only once the gitstore has the checkpoints
// under the task's own UID: what had completed runs no attempt that would ask for that.
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
	if err == nil && answer.Done {
		answer.Code = codeProblem(r.adoptCode(ctx, task))
		answer.Done = answer.Code == nil
	}
	if err == nil && answer.Done {
		answer.Earlier, err = r.earlier(ctx, task, answer.Former)
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

// earlier returns the tasks whose history a former one had continued when a task adopted it, newest first.
func (r *Reconciler) earlier(ctx context.Context, task *v1alpha1.Task, former string) (uids []string, err error) {
	formers, err := r.Store.FormerTasks(ctx, string(task.UID))
	for _, f := range slices.Backward(formers) {
		if f.UID != former {
			uids = append(uids, f.UID)
		}
	}
	return uids, err
}

// codeProblem says why the gitstore did not give a task the checkpoints of former ones; nil if it did.
func codeProblem(err error) *plan.CodeProblem {
	var refused *gitstoreapi.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &plan.CodeProblem{Reason: string(refused.Reason), Message: resources.PlainText(refused.Message, maxCodeProblem)}
	default:
		return &plan.CodeProblem{}
	}
}

// maxCodeProblem is how many characters of a refusal are shown.
const maxCodeProblem = 512

// adopt gives the history of former tasks, newest first, to this one, and its checkpoints. If that
// history has gone or changed hands meanwhile, the next decision finds out.
func (r *Reconciler) adopt(ctx context.Context, task *v1alpha1.Task, formers ...string) error {
	id := history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)}
	err := history.AdoptAgain(ctx, r.Store, id, formers)
	if errors.Is(err, history.ErrNotFound) || errors.Is(err, history.ErrExists) || errors.Is(err, history.ErrInvalid) {
		return nil
	}
	if err != nil {
		return err
	}
	logf.FromContext(ctx).Info("a task continues the history of a former one", "former", formers[0])
	return r.adoptCode(ctx, task)
}

// codeTime is how long the gitstore may take to give a task the checkpoints of former ones: a
// worker must not wait for long. A request that takes longer is repeated, and goes on.
const codeTime = 30 * time.Second

// adoptCode has the gitstore give the task the checkpoints of what it has adopted.
func (r *Reconciler) adoptCode(ctx context.Context, task *v1alpha1.Task) error {
	ctx, cancel := context.WithTimeout(ctx, codeTime)
	defer cancel()
	return codeadoption.Adopt(ctx, r.Store, r.Code, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, logf.FromContext(ctx))
}
