package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A Checkpoint that a person applies without a number stands for the moment at which it was taken. Its
// manifest may be applied again when the task continues the history of a former one: it then stands
// for the same moment, and the first object of its name does so.

const (
	// maxNames bounds the names of a task: whoever may create Checkpoints can use any number of them
	// one after the other.
	maxNames = 1000
	// nameCost is roughly what the row of a name takes besides the name.
	nameCost = 128
)

// NameCheckpoint records for which checkpoint an object stands. The newest names of a task stay, and
// count as part of its history. Errors: history.ErrNotFound if the task has no history;
// history.ErrUnavailable.
func (s *Store) NameCheckpoint(ctx context.Context, task history.Key, named history.NamedCheckpoint) error {
	doing := fmt.Sprintf("record that the Checkpoint %s is the task's checkpoint %d", named.Name, named.Number)
	return s.changeNames(ctx, doing, task, func(q *sqlc.Queries, taskID int32) error {
		return q.NameCheckpoint(ctx, sqlc.NameCheckpointParams{TaskID: taskID, Name: named.Name, Number: narrow(named.Number), ObjectUid: named.UID})
	})
}

// ForgetCheckpointName forgets for which checkpoint an object stands that was deleted, unless another
// object has its name. Errors: history.ErrNotFound if the task has no history; history.ErrUnavailable.
func (s *Store) ForgetCheckpointName(ctx context.Context, task history.Key, named history.NamedCheckpoint) error {
	return s.changeNames(ctx, "forget the name of the Checkpoint "+named.Name, task, func(q *sqlc.Queries, taskID int32) error {
		if err := q.DeleteCheckpointName(ctx, sqlc.DeleteCheckpointNameParams{TaskID: taskID, Name: named.Name, ObjectUid: named.UID}); err != nil {
			return err
		}
		return q.GiveUpRequested(ctx, sqlc.GiveUpRequestedParams{TaskID: taskID, Number: narrow(named.Number), Name: named.Name})
	})
}

// changeNames changes the names of a task.
func (s *Store) changeNames(ctx context.Context, doing string, task history.Key, change func(q *sqlc.Queries, taskID int32) error) error {
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		row, err := q.LockTask(ctx, task.UID)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && row.Namespace != task.Namespace {
			return history.ErrNotFound
		}
		if err != nil {
			return err
		}
		return chargeNames(ctx, q, row.ID, func() error { return change(q, row.ID) })
	})
}

// chargeNames changes the names of a task whose row is locked, bounds them, and adds what they take
// to what the task has stored.
func chargeNames(ctx context.Context, q *sqlc.Queries, taskID int32, change func() error) error {
	sizes := sqlc.NamesBytesParams{TaskID: taskID, Each: nameCost}
	before, err := q.NamesBytes(ctx, sizes)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if err := q.DropOldNames(ctx, sqlc.DropOldNamesParams{TaskID: taskID, Most: maxNames}); err != nil {
		return err
	}
	after, err := q.NamesBytes(ctx, sizes)
	if err != nil || after == before {
		return err
	}
	return q.AddStoredBytes(ctx, sqlc.AddStoredBytesParams{TaskID: taskID, More: after - before})
}

// awaitNames lets the names of a history that changes hands wait for the first object of each.
func awaitNames(ctx context.Context, q *sqlc.Queries, taskID int32) error {
	return chargeNames(ctx, q, taskID, func() error {
		if err := q.NameRequested(ctx, sqlc.NameRequestedParams{TaskID: taskID, Most: maxNames}); err != nil {
			return err
		}
		return q.AwaitNames(ctx, taskID)
	})
}

// NamedCheckpoints returns those of the names for which an object is awaited, since the task continues
// the history of a former one, or that one of these objects has.
func (s *Store) NamedCheckpoints(ctx context.Context, task history.Key, names, objects []string) ([]history.NamedCheckpoint, error) {
	rows, err := s.read().NamedCheckpoints(ctx, sqlc.NamedCheckpointsParams{
		TaskUid: task.UID, Namespace: task.Namespace, Names: listOf(names), ObjectUids: listOf(objects),
	})
	named := make([]history.NamedCheckpoint, 0, len(rows))
	for _, row := range rows {
		named = append(named, history.NamedCheckpoint{Name: row.Name, UID: row.ObjectUid, Number: int64(row.Number)})
	}
	return named, wrap(err, "read the names of the checkpoints of the task with UID "+task.UID)
}

// ClaimCheckpoint makes an object stand for the checkpoint that an object of its name stood for, of the
// former task whose history this one continues, and returns the number. Only the first object of a
// name can; it may be repeated. Errors: history.ErrNotFound if there is none; history.ErrUnavailable.
func (s *Store) ClaimCheckpoint(ctx context.Context, task history.Key, name, object string) (number int64, err error) {
	err = s.write(ctx, "find the checkpoint that the Checkpoint "+name+" stands for", func(q *sqlc.Queries) error {
		found, err := q.ClaimCheckpoint(ctx, sqlc.ClaimCheckpointParams{TaskUid: task.UID, Namespace: task.Namespace, Name: name, ObjectUid: object})
		number = int64(found)
		return err
	})
	return number, err
}
