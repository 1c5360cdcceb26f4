package task

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

const checkpointsPerPage = 100

// makeCheckpoints makes the objects for recorded checkpoints, and returns the
// name of the newest one. Their status is the checkpoint controller's.
func (r *Reconciler) makeCheckpoints(ctx context.Context, task *v1alpha1.Task, of plan.Range) (newest string, err error) {
	for after := of.After; after < of.UpTo; {
		rows, err := r.Store.CheckpointsAfter(ctx, string(task.UID), after, checkpointsPerPage)
		if err != nil {
			return "", fmt.Errorf("read the task's checkpoints after %d: %w", after, err)
		}
		if len(rows) == 0 {
			break
		}
		for _, row := range rows {
			if row.Number > of.UpTo {
				return newest, nil
			}
			if newest, err = r.makeCheckpoint(ctx, task, row); err != nil {
				return "", err
			}
			after = row.Number
		}
	}
	return newest, nil
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
