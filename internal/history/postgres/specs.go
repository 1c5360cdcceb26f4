package postgres

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// KeepSpec replaces the kept spec of a task. That of a task whose history was deleted is not
// kept. Errors: history.ErrUnavailable.
func (s *Store) KeepSpec(ctx context.Context, task history.Key, kept history.KeptSpec) error {
	return s.write(ctx, "keep the spec of the task with UID "+task.UID, func(q *sqlc.Queries) error {
		// Held by the deletion of a history, too.
		if err := q.LockTimeline(ctx, task.UID); err != nil {
			return err
		}
		gone, err := q.Deleted(ctx, sqlc.DeletedParams{Uid: task.UID, Namespace: task.Namespace})
		if err != nil || gone {
			return err
		}
		return q.KeepSpec(ctx, sqlc.KeepSpecParams{
			Uid: task.UID, Namespace: task.Namespace, Spec: kept.Spec, Variables: listOf(kept.Variables), Fields: listOf(kept.Fields),
		})
	})
}

// KeptSpec returns the kept spec of a task. Errors: history.ErrNotFound, history.ErrUnavailable.
func (s *Store) KeptSpec(ctx context.Context, task history.Key) (history.KeptSpec, error) {
	row, err := s.read().KeptSpec(ctx, sqlc.KeptSpecParams{Uid: task.UID, Namespace: task.Namespace})
	return history.KeptSpec{Spec: row.Spec, Variables: row.Variables, Fields: row.Fields}, wrap(err, "read the spec of the task with UID "+task.UID)
}

// listOf returns a list that is not NULL in SQL.
func listOf(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
}
