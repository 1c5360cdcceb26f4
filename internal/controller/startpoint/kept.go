package startpoint

import (
	"context"
	"math"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// durablePage is how many checkpoints are read at a time to find one that is in the gitstore.
const durablePage = 50

// fromKept looks up a source that does not exist any more, in the histories that are kept. Only
// errors of the API server are returned.
func fromKept(ctx context.Context, live client.Reader, store Store, namespace string, from *v1alpha1.StartFrom, found *plan.Source) error {
	name := from.TaskRef.Name
	err := keptUIDs(ctx, store, namespace, from, found)
	if err != nil || len(found.Kept) != 1 {
		answered(ctx, name, err, found)
		return nil
	}
	key, at := history.Key{Namespace: namespace, UID: found.Kept[0]}, from.Point()
	if at == nil {
		found.Record, err = newestDurable(ctx, store, key)
		if err == nil {
			found.Record, err = withIntegrity(ctx, store, key, found.Record)
		}
		answered(ctx, name, err, found)
		return nil
	}
	if at.CheckpointRef != nil { // its object may have been kept, or restored
		checkpoint := &v1alpha1.Checkpoint{}
		exists, err := get(ctx, live, namespace, at.CheckpointRef.Name, checkpoint)
		if err != nil {
			return err
		}
		if !exists || checkpoint.Status.TaskUID != key.UID {
			found.Known = true
			return nil
		}
		at = &v1alpha1.StartPoint{CheckpointNumber: &checkpoint.Status.Number}
	}
	query, _ := plan.RecordedPoint(at)
	answered(ctx, name, lookUp(ctx, store, key, at, query, found), found)
	return nil
}

// keptUIDs finds the tasks of the name whose history is kept, or the one of the UID that is
// named.
func keptUIDs(ctx context.Context, store Store, namespace string, from *v1alpha1.StartFrom, found *plan.Source) error {
	named, err := store.TasksNamed(ctx, namespace, from.TaskRef.Name)
	if err != nil {
		return err
	}
	for _, task := range named {
		if from.TaskUID == "" || task.UID == from.TaskUID {
			found.Kept = append(found.Kept, task.UID)
		}
	}
	if len(found.Kept) == 0 {
		if found.Elsewhere, err = store.EarlierNamespace(ctx, namespace, from.TaskRef.Name); err != nil {
			return err
		}
	}
	if from.TaskUID == "" || len(found.Kept) > 0 {
		return nil
	}
	through, err := store.RecordedTransitions(ctx, namespace, from.TaskUID)
	found.Deleted = err == nil && through == math.MaxInt64
	return err
}

// newestDurable returns the newest checkpoint that is in the gitstore; nil if none is.
func newestDurable(ctx context.Context, store Store, task history.Key) (*history.Checkpoint, error) {
	for before := int64(0); ; {
		page, err := store.CheckpointsBefore(ctx, task, before, durablePage)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		for i := range page {
			if page[i].Durable && !page[i].Lost {
				return &page[i], nil
			}
		}
		if before = page[len(page)-1].Number; before <= 1 {
			return nil, nil
		}
	}
}
