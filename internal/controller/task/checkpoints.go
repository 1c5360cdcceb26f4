package task

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// checkpointsPerPage is how many objects are made for one task at a time. The
// rest follow with its next writes, plan.Limits.RefreshEvery apart, so that a
// task with thousands of them holds up no other.
const checkpointsPerPage = 50

// makeCheckpoints makes objects for a page of recorded checkpoints, and for the
// newest of all, whose name it returns; all through that number have one then.
// Their status is the checkpoint controller's.
func (r *Reconciler) makeCheckpoints(ctx context.Context, task *v1alpha1.Task, of plan.Range) (newest string, through int64, err error) {
	newest, through, err = r.makePage(ctx, task, of.After, of.UpTo, checkpointsPerPage)
	if err == nil && through < of.UpTo {
		newest, _, err = r.makePage(ctx, task, of.UpTo-1, of.UpTo, 1)
	}
	return newest, through, err
}

// makePage makes the objects for so many checkpoints after a number, and
// returns the name of the last and the number through which none is left out.
func (r *Reconciler) makePage(ctx context.Context, task *v1alpha1.Task, after, upTo int64, size int) (last string, through int64, err error) {
	rows, err := r.Store.CheckpointsAfter(ctx, string(task.UID), after, size)
	if err != nil {
		return "", after, fmt.Errorf("read the task's checkpoints after %d: %w", after, err)
	}
	for _, row := range rows {
		if row.Number > upTo {
			return last, upTo, nil
		}
		if last, err = r.makeCheckpoint(ctx, task, row); err != nil {
			return "", after, err
		}
		after = row.Number
	}
	if len(rows) < size {
		after = upTo
	}
	return last, after, nil
}

// makeCheckpoint makes the object for one recorded checkpoint, unless the one
// that asked for it, or one made before, stands for it.
func (r *Reconciler) makeCheckpoint(ctx context.Context, task *v1alpha1.Task, row history.Checkpoint) (string, error) {
	if row.RequestedByUID != "" && row.RequestedByName != "" {
		asked, err := read[v1alpha1.Checkpoint](ctx, r.Live, task.Namespace, row.RequestedByName)
		if err != nil {
			return "", err
		}
		if asked != nil && string(asked.UID) == row.RequestedByUID && (asked.Status.Number == 0 || asked.Status.Number == row.Number) {
			return asked.Name, nil
		}
	}
	names := []string{resources.CheckpointName(task.Name, row.Number), resources.CheckpointNameOr(task, row.Number)}
	for _, name := range names {
		err := r.Client.Create(ctx, resources.NewCheckpoint(task, name, row))
		if err == nil {
			return name, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("create Checkpoint %s: %w", name, err)
		}
		found, err := read[v1alpha1.Checkpoint](ctx, r.Live, task.Namespace, name)
		if err != nil {
			return "", err
		}
		if found == nil {
			continue
		}
		if uid, number, ok := resources.CheckpointNumber(found); ok && uid == string(task.UID) && number == row.Number {
			return name, nil
		}
	}
	return "", fmt.Errorf("checkpoint %d of the task has no object, since others have the names %q and %q: delete one of them", row.Number, names[0], names[1])
}

// checkpointsByTask is the cache's index of Checkpoints by the UID of the task
// whose checkpoint their status says they stand for.
const checkpointsByTask = "checkpointOfTask"

// highestCheckpoint is the highest number that a Checkpoint of the task stands
// for. Its status says so, which nobody else can write, as labels can be.
func (r *Reconciler) highestCheckpoint(ctx context.Context, task *v1alpha1.Task) (int64, error) {
	list := &v1alpha1.CheckpointList{}
	// Nothing of what is listed is written to.
	err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{checkpointsByTask: string(task.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list the task's checkpoints: %w", err)
	}
	highest := ptr.Deref(task.Status.CheckpointObjectsThrough, 0)
	if latest := task.Status.LatestCheckpoint; latest != nil { // the cache may lag behind
		highest = max(highest, latest.Number)
	}
	for i := range list.Items {
		highest = max(highest, list.Items[i].Status.Number)
	}
	return highest, nil
}
