package checkpoint

import (
	"context"
	"errors"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// A Checkpoint that a person applies without a number stands for the moment at which it was taken. The
// history keeps its name with that moment: applied again to a task that continues the history of a
// former one, it stands for the same moment, and no other is taken.

// recall returns the checkpoint that an object of this name stood for, of the former task that the task
// continues; nil for none.
func (r *Reconciler) recall(ctx context.Context, c *v1alpha1.Checkpoint, task *v1alpha1.Task) (*history.Checkpoint, error) {
	if a := task.Status.Adoption; a == nil || a.TaskUID == "" {
		return nil, nil
	}
	key := history.Key{Namespace: task.Namespace, UID: string(task.UID)}
	number, err := r.Store.ClaimCheckpoint(ctx, key, c.Name, string(c.UID))
	if errors.Is(err, history.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	row, err := r.Store.Checkpoint(ctx, key, number)
	return &row, err
}

// recordName records for which checkpoint an object stands that was applied without a number, once for
// each task that has the history.
func (r *Reconciler) recordName(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint) error {
	if _, _, ours := resources.CheckpointNumber(c); ours || c.Spec.Number != nil || c.Status.Number == row.Number && c.Status.TaskUID == row.TaskUID {
		return nil
	}
	return r.Store.NameCheckpoint(ctx, history.Key{Namespace: c.Namespace, UID: row.TaskUID},
		history.NamedCheckpoint{Name: c.Name, UID: string(c.UID), Number: row.Number})
}
