package task

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// checkpointsPerPage is the number of objects created for one task at a time. The rest
// follow with its next writes, plan.Limits.RefreshEvery apart, so that a task with
// thousands of checkpoints does not delay the others.
const checkpointsPerPage = 50

// makeCheckpoints creates objects for a page of recorded checkpoints and for the newest
// one. It returns the name of the newest object, which is empty if that checkpoint has none, and
// the number up to which none is missing. Their status belongs to the checkpoint controller.
func (r *Reconciler) makeCheckpoints(ctx context.Context, task *v1alpha1.Task, of plan.Range) (newest string, through int64, err error) {
	newest, through, err = r.makeCheckpointPage(ctx, task, of.After, of.UpTo, checkpointsPerPage)
	if err == nil && through < of.UpTo {
		newest, _, err = r.makeCheckpointPage(ctx, task, of.UpTo-1, of.UpTo, 1)
	}
	return newest, through, err
}

// makeCheckpointPage creates the objects for a number of checkpoints after the given one,
// and returns the name of the last object and the number up to which none is missing.
func (r *Reconciler) makeCheckpointPage(ctx context.Context, task *v1alpha1.Task, after, upTo int64, size int) (last string, through int64, err error) {
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

// makeCheckpoint creates the object for one recorded checkpoint and returns its name,
// unless the object that requested it, or one created before, represents it already. If other
// objects have its names, the checkpoint has no object, as if retention had deleted it, and
// goes by its number: the task must not wait until somebody deletes them.
func (r *Reconciler) makeCheckpoint(ctx context.Context, task *v1alpha1.Task, row history.Checkpoint) (string, error) {
	if row.RequestedByUID != "" && row.RequestedByName != "" {
		requested, err := read[v1alpha1.Checkpoint](ctx, r.Live, task.Namespace, row.RequestedByName)
		if err != nil {
			return "", err
		}
		if requested != nil && string(requested.UID) == row.RequestedByUID && (requested.Status.Number == 0 || requested.Status.Number == row.Number) {
			return requested.Name, nil
		}
		if requested != nil && requested.Status.TaskUID == string(task.UID) && requested.Status.Number == row.Number {
			return requested.Name, nil // it was requested of the former task that this one continues
		}
	}
	names := []string{resources.CheckpointName(task.Name, row.Number), resources.CheckpointNameOr(task, row.Number)}
	// The first name may have been in use when the object got the second, and be free now. The
	// cache suffices: it had every object when this manager started.
	second, err := read[v1alpha1.Checkpoint](ctx, r.Client, task.Namespace, names[1])
	if err != nil {
		return "", err
	}
	if second != nil && represents(second, task, row.Number) {
		return second.Name, nil
	}
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
		if found != nil && represents(found, task, row.Number) {
			return name, nil
		}
	}
	logf.FromContext(ctx).Info("a checkpoint has no object, because other objects have its names", "checkpoint", row.Number, "names", names)
	return "", nil
}

// represents reports whether an object stands for the task's checkpoint with that number.
func represents(c *v1alpha1.Checkpoint, task *v1alpha1.Task, number int64) bool {
	uid, labelled, ok := resources.CheckpointNumber(c)
	return ok && uid == string(task.UID) && labelled == number ||
		c.Spec.Number != nil && c.Status.TaskUID == string(task.UID) && c.Status.Number == number
}

// checkpointsByTask is the cache's index of Checkpoints by the UID of the task in their
// status.
const checkpointsByTask = "checkpointOfTask"

// checkpoints lists the task's Checkpoints as the cache has them, to be read only. They are
// found by their status, which nobody else can write, while anybody can write labels.
func (r *Reconciler) checkpoints(ctx context.Context, task *v1alpha1.Task) ([]v1alpha1.Checkpoint, error) {
	list := &v1alpha1.CheckpointList{}
	err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{checkpointsByTask: string(task.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the task's checkpoints: %w", err)
	}
	return list.Items, nil
}

// highestCheckpoint returns the highest number among the task's Checkpoints.
func highestCheckpoint(task *v1alpha1.Task, checkpoints []v1alpha1.Checkpoint) int64 {
	highest := ptr.Deref(task.Status.CheckpointObjectsThrough, 0)
	if latest := task.Status.LatestCheckpoint; latest != nil { // the cache may lag behind
		highest = max(highest, latest.Number)
	}
	for i := range checkpoints {
		highest = max(highest, checkpoints[i].Status.Number)
	}
	return highest
}
