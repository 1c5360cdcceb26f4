// Package startpoint reads what package plan needs to resolve the moment of a task from
// which another one starts, for the controllers of Tasks and of Forks.
//
// It promises that a moment is looked up only in what was recorded in the source's own
// namespace, and that a history store that is down is an answer, not an error.
package startpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// Store is the part of the history store that knows moments. Its errors wrap those of
// package history.
type Store interface {
	// TaskState returns what the store knows about a task.
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	// Checkpoint returns the record of one checkpoint.
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
	// CheckpointsBefore lists the checkpoints before a number, or the newest if that is 0, in
	// descending order.
	CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error)
	// TasksNamed returns the tasks of a name that have a history, newest first.
	TasksNamed(ctx context.Context, namespace, name string) ([]history.NamedTask, error)
	// EarlierNamespace reports whether an earlier namespace of that name has left a history of a
	// task, which is not this one's.
	EarlierNamespace(ctx context.Context, namespace, name string) (bool, error)
	// ContinuedBy returns the UID of the task that continues the history of a former one; empty if
	// none does.
	ContinuedBy(ctx context.Context, former history.Key) (string, error)
	// RecordedTransitions returns math.MaxInt64 for a task whose history was deleted.
	RecordedTransitions(ctx context.Context, namespace, taskUID string) (int64, error)
	// ResolvePosition finds the turn boundary at or before a position in the active branch,
	// and the newest checkpoint that is not after it.
	ResolvePosition(ctx context.Context, taskUID string, query history.PositionQuery) (history.Resolved, error)
}

// Find reads what startFrom names in a namespace, from the API server and the history store. A source
// that another task continues is that one.
func Find(ctx context.Context, live client.Reader, store Store, namespace string, from *v1alpha1.StartFrom) (plan.Source, error) {
	found := plan.Source{}
	task := &v1alpha1.Task{}
	exists, err := get(ctx, live, namespace, from.TaskRef.Name, task)
	if err != nil {
		return found, err
	}
	if from.TaskUID != "" && (!exists || from.TaskUID != string(task.UID)) {
		now, err := store.ContinuedBy(ctx, history.Key{Namespace: namespace, UID: from.TaskUID})
		if err != nil {
			answered(ctx, from.TaskRef.Name, err, &found)
			return found, nil
		}
		from = from.DeepCopy()
		from.TaskUID = cmp.Or(now, from.TaskUID)
	}
	if !exists || from.TaskUID != "" && from.TaskUID != string(task.UID) {
		return found, fromKept(ctx, live, store, namespace, from, &found)
	}
	found.Task = task
	at := plan.StartPoint(from, task)
	if query, recorded := plan.RecordedPoint(at); recorded {
		fromStore(ctx, store, task, at, query, &found)
		return found, nil
	}
	name := ""
	if at != nil {
		name = at.CheckpointRef.Name
	} else if latest := task.Status.LatestCheckpoint; latest != nil {
		name = latest.Name
	}
	if name == "" {
		return found, nil
	}
	checkpoint := &v1alpha1.Checkpoint{}
	if exists, err = get(ctx, live, namespace, name, checkpoint); exists {
		found.Checkpoint = checkpoint
	}
	return found, err
}

// get reads an object, and reports whether it exists.
func get(ctx context.Context, live client.Reader, namespace, name string, object client.Object) (bool, error) {
	err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

// fromStore asks the history store for a moment. If the store cannot answer, Known stays
// false.
func fromStore(ctx context.Context, store Store, task *v1alpha1.Task, at *v1alpha1.StartPoint, query *history.PositionQuery, found *plan.Source) {
	uid := string(task.UID)
	state, err := store.TaskState(ctx, uid)
	if errors.Is(err, history.ErrNotFound) {
		err = nil
	}
	if err == nil {
		found.Behind = plan.Lags(&task.Status, state)
		err = lookUp(ctx, store, history.Key{Namespace: task.Namespace, UID: uid}, at, query, found)
	}
	answered(ctx, task.Name, err, found)
}

// answered notes whether the history store could answer.
func answered(ctx context.Context, source string, err error, found *plan.Source) {
	switch {
	case err == nil, errors.Is(err, history.ErrNotFound), errors.Is(err, history.ErrInvalid):
		found.Known = true
	case errors.Is(err, history.ErrCorrupted):
		found.Known, found.Damaged = true, err.Error()
	default:
		logf.FromContext(ctx).Info("could not resolve the moment to start from", "source", source, "error", err.Error())
	}
}

// lookUp asks for a checkpoint's number, or for a position.
func lookUp(ctx context.Context, store Store, task history.Key, at *v1alpha1.StartPoint, query *history.PositionQuery, found *plan.Source) error {
	if query == nil {
		c, err := store.Checkpoint(ctx, task, *at.CheckpointNumber)
		if err == nil {
			found.Record = &c
		}
		return err
	}
	resolved, err := store.ResolvePosition(ctx, task.UID, *query)
	if err != nil {
		return err
	}
	found.Found = &resolved
	found.Record, err = withIntegrity(ctx, store, task, resolved.Checkpoint)
	return err
}

// withIntegrity returns a checkpoint with what is known of its integrity, which only
// Store.Checkpoint tells; nil for nil.
func withIntegrity(ctx context.Context, store Store, task history.Key, c *history.Checkpoint) (*history.Checkpoint, error) {
	if c == nil {
		return nil, nil
	}
	whole, err := store.Checkpoint(ctx, task, c.Number)
	return &whole, err
}
