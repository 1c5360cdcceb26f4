package postgres

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A Checkpoint that a person applies without a number stands for the moment at which it was taken. Its
// manifest may be applied again when the task continues the history of a former one: it then stands
// for the same moment, and the first object of its name does so.

// NameCheckpoint records for which checkpoint an object stands. Errors: history.ErrNotFound if the task
// has no history; history.ErrUnavailable.
func (s *Store) NameCheckpoint(ctx context.Context, task history.Key, named history.NamedCheckpoint) error {
	doing := fmt.Sprintf("record that the Checkpoint %s is the task's checkpoint %d", named.Name, named.Number)
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		rows, err := q.NameCheckpoint(ctx, sqlc.NameCheckpointParams{
			TaskUid: task.UID, Namespace: task.Namespace, Name: named.Name, Number: narrow(named.Number), ObjectUid: named.UID,
		})
		if err == nil && rows == 0 {
			err = history.ErrNotFound
		}
		return err
	})
}

// NamedCheckpoints returns the checkpoints for which an object is awaited, since the task continues the
// history of a former one, or that one of these objects stands for.
func (s *Store) NamedCheckpoints(ctx context.Context, task history.Key, objects []string) ([]history.NamedCheckpoint, error) {
	rows, err := s.read().NamedCheckpoints(ctx, sqlc.NamedCheckpointsParams{TaskUid: task.UID, Namespace: task.Namespace, ObjectUids: listOf(objects)})
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
