// Package rewindtarget reads what the history store knows about the target of a rewind, on
// which plan decides: for the manager, which carries rewinds out, and for the server, which says
// beforehand what one would do.
package rewindtarget

import (
	"cmp"
	"context"
	"errors"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// Store is what is needed of the history store. Its errors wrap those of package history.
type Store interface {
	// Checkpoint returns the record of one checkpoint.
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
	// Rewind returns what is recorded about a rewind of the task.
	Rewind(ctx context.Context, task history.Key, id string) (history.Rewind, error)
	// ResolvePosition finds the turn boundary at or before a position in the active branch, and
	// the newest checkpoint that is not after it.
	ResolvePosition(ctx context.Context, taskUID string, query history.PositionQuery) (history.Resolved, error)
}

// Observe adds to o what the store knows about the target of a rewind of o.Task, unless the
// target is a Checkpoint object or a commit. What the store cannot answer stays unknown, and
// is the error.
func Observe(ctx context.Context, store Store, r *v1alpha1.Rewind, o *plan.Observed) error {
	key := history.Key{Namespace: o.Task.Namespace, UID: string(o.Task.UID)}
	if r.To.UndoOf != "" {
		found, err := store.Rewind(ctx, key, r.To.UndoOf)
		if err != nil {
			return err
		}
		o.RewindUndone = plan.RewindUndone{Known: true, Found: found}
	}
	var err error
	if number := plan.CheckpointOf(r, *o); number != 0 {
		if o.RewindRecord, err = Checkpoint(ctx, store, key, number); err != nil {
			return err
		}
	}
	query, ok := plan.PositionOf(r)
	if !ok {
		return nil
	}
	found, err := store.ResolvePosition(ctx, key.UID, query)
	if err == nil && found.Checkpoint != nil {
		record, unread := Checkpoint(ctx, store, key, found.Checkpoint.Number)
		if unread != nil {
			return unread
		}
		found.Checkpoint = cmp.Or(record.Found, found.Checkpoint)
	}
	switch {
	case err == nil:
		o.RewindPosition = plan.RewindPosition{Known: true, Found: &found}
	case errors.Is(err, history.ErrNotFound), errors.Is(err, history.ErrInvalid):
		o.RewindPosition.Known = true
	case errors.Is(err, history.ErrCorrupted):
		o.RewindPosition = plan.RewindPosition{Known: true, Damaged: err.Error()}
	default:
		return err
	}
	return nil
}

// ObserveDone adds to o, which has the history, what the store knows about the rewind of o.Task that is complete
// there, and not in the status. What the store cannot answer stays unknown, and is the error.
func ObserveDone(ctx context.Context, store Store, o *plan.Observed) error {
	id := plan.DoneRewind(*o)
	if id == "" {
		return nil
	}
	found, err := store.Rewind(ctx, history.Key{Namespace: o.Task.Namespace, UID: string(o.Task.UID)}, id)
	switch {
	case err == nil:
		o.RewindDone = plan.RewindDone{Known: true, Found: found}
	case errors.Is(err, history.ErrCorrupted): // as if nothing were recorded: it stays so
		o.RewindDone.Known = true
	default:
		return err
	}
	return nil
}

// Checkpoint returns what is recorded of a task's checkpoint of a number, with its integrity.
// What the store cannot answer stays unknown, and is the error.
func Checkpoint(ctx context.Context, store Store, task history.Key, number int64) (plan.RewindRecord, error) {
	found, err := store.Checkpoint(ctx, task, number)
	switch {
	case err == nil:
		return plan.RewindRecord{Known: true, Found: &found}, nil
	case errors.Is(err, history.ErrNotFound):
		return plan.RewindRecord{Known: true}, nil
	}
	return plan.RewindRecord{}, err
}
