package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Publication returns what a task has pushed to a ref of its repository last, or the task whose
// history it has adopted. Errors: history.ErrNotFound if that is nothing;
// history.ErrUnavailable.
func (s *Store) Publication(ctx context.Context, task history.Key, ref string) (history.Publication, error) {
	doing := "read what the task with UID " + task.UID + " has published"
	row, err := s.read().Publication(ctx, sqlc.PublicationParams{TaskUid: task.UID, Namespace: task.Namespace, Ref: ref})
	if errors.Is(err, pgx.ErrNoRows) {
		return history.Publication{}, fmt.Errorf("%w: nothing to %s", history.ErrNotFound, ref)
	}
	return history.Publication{Ref: ref, Commit: row.Commit, Onto: row.Onto, Checkpoint: row.Checkpoint, Time: row.Time, Number: row.Number}, wrap(err, doing)
}

// setPublications stores what the events say was published.
func setPublications(ctx context.Context, q *sqlc.Queries, events []history.Event) error {
	for _, e := range events {
		if e.Publication == nil {
			continue
		}
		err := q.SetPublication(ctx, sqlc.SetPublicationParams{
			TaskUid: e.Task.UID, Namespace: e.Task.Namespace, Ref: e.Publication.Ref,
			Commit: e.Publication.Commit, Onto: e.Publication.Onto, Checkpoint: e.Checkpoint, Time: e.Time, Number: e.Publication.Number,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
