package task

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	// keepSnapshots is the number of objects for automatic snapshots that a task has; the
	// history store keeps the snapshots themselves for longer.
	keepSnapshots = 20
	// snapshotsPerPage is the number of snapshots read from the history store at a time.
	snapshotsPerPage = 200
)

// makeSnapshots creates the objects for the automatic snapshots after the given number, and
// returns the number of the newest. Their status belongs to the conversationsnapshot
// controller.
func (r *Reconciler) makeSnapshots(ctx context.Context, task *v1alpha1.Task, after int64) (newest int64, err error) {
	rows, err := r.newestSnapshots(ctx, task, after)
	if err != nil || len(rows) == 0 {
		return after, err
	}
	for _, row := range rows {
		// An object that exists was created before, or is somebody else's: a snapshot is
		// not worth a second name.
		if err := r.Client.Create(ctx, resources.NewSnapshot(task, row)); err != nil && !apierrors.IsAlreadyExists(err) {
			return after, fmt.Errorf("create ConversationSnapshot %s: %w", resources.SnapshotName(task.Name, row.Ordinal), err)
		}
		after = row.Ordinal
	}
	return after, r.pruneSnapshots(ctx, task, after)
}

// newestSnapshots returns the snapshots to create objects for, oldest first.
func (r *Reconciler) newestSnapshots(ctx context.Context, task *v1alpha1.Task, after int64) ([]history.Snapshot, error) {
	var rows []history.Snapshot
	for {
		page, err := r.Store.SnapshotsAfter(ctx, string(task.UID), after, snapshotsPerPage)
		if err != nil {
			return nil, fmt.Errorf("read the snapshots of the task's conversation after %d: %w", after, err)
		}
		rows = append(rows, page...)
		rows = rows[max(0, len(rows)-keepSnapshots):]
		if len(page) < snapshotsPerPage {
			return rows, nil
		}
		after = page[len(page)-1].Ordinal
	}
}

// pruneSnapshots deletes all objects of automatic snapshots but the newest.
func (r *Reconciler) pruneSnapshots(ctx context.Context, task *v1alpha1.Task, newest int64) error {
	list := &v1alpha1.ConversationSnapshotList{}
	err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingLabels{v1alpha1.LabelTaskUID: string(task.UID)})
	if err != nil {
		return fmt.Errorf("list the ConversationSnapshots of the task: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		uid, ordinal, ok := resources.SnapshotOrdinal(s)
		if !ok || uid != string(task.UID) || ordinal > newest-keepSnapshots || s.DeletionTimestamp != nil {
			continue
		}
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, s, client.Preconditions{UID: &s.UID})); err != nil {
			return fmt.Errorf("delete ConversationSnapshot %s: %w", s.Name, err)
		}
	}
	return nil
}
