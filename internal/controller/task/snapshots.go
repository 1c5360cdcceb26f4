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
	// keepSnapshots is how many objects for automatic snapshots a task has; the
	// history store keeps the snapshots themselves for longer.
	keepSnapshots    = 20
	snapshotsPerPage = 200
)

// makeSnapshots makes the objects for the automatic snapshots after the one of
// that number, and returns the number of the newest. Their status is the
// conversationsnapshot controller's.
func (r *Reconciler) makeSnapshots(ctx context.Context, task *v1alpha1.Task, after int64) (newest int64, err error) {
	rows, err := r.newestSnapshots(ctx, task, after)
	if err != nil || len(rows) == 0 {
		return after, err
	}
	for _, row := range rows {
		// One that exists was made before, or somebody else's has its name: a
		// snapshot is not worth a second one.
		if err := r.Client.Create(ctx, resources.NewSnapshot(task, row)); err != nil && !apierrors.IsAlreadyExists(err) {
			return after, fmt.Errorf("create ConversationSnapshot %s: %w", resources.SnapshotName(task.Name, row.Ordinal), err)
		}
		after = row.Ordinal
	}
	return after, r.pruneSnapshots(ctx, task, after)
}

// newestSnapshots are those that objects are to be made for, oldest first.
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

// pruneSnapshots deletes the objects of automatic snapshots but the newest.
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
