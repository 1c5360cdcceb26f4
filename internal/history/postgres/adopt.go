package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A Task that is applied anew may continue where the last one of its name stood. The history
// then changes hands: its rows get the new Task's UID, and everything that holds for a history
// holds for it on, from the numbers of checkpoints to the operations that were carried out.
// The former UID stays known: its pods may write no more, and forks of it find their source.

// Adoption returns what a task has adopted or, if it has no history yet, could adopt: the
// newest one of its name in its namespace.
func (s *Store) Adoption(ctx context.Context, task history.Task) (history.Adoption, error) {
	doing := fmt.Sprintf("find the history that the task %s/%s adopts", task.Namespace, task.Name)
	done, err := s.read().FormerTask(ctx, sqlc.FormerTaskParams{Uid: task.UID, Namespace: task.Namespace})
	if err == nil {
		start := startOf(done.Fork, done.StartFrom, done.StartUid, done.StartCheckpoint, done.StartCommit, done.StartPosition)
		return history.Adoption{Former: done.FormerUid, Done: true, Start: start, Phase: done.Phase}, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return history.Adoption{}, wrap(err, doing)
	}
	found, err := s.read().Adoptable(ctx, sqlc.AdoptableParams{Namespace: task.Namespace, Name: task.Name})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && found.Uid == task.UID {
		return history.Adoption{}, nil
	}
	start := startOf(found.Fork, found.StartFrom, found.StartUid, found.StartCheckpoint, found.StartCommit, found.StartPosition)
	return history.Adoption{Former: found.Uid, Start: start, Phase: found.Phase}, wrap(err, doing)
}

// ContinuedBy returns the UID of the task that continues the history of a former one; empty if none
// does.
func (s *Store) ContinuedBy(ctx context.Context, former history.Key) (string, error) {
	uid, err := s.read().Adopted(ctx, sqlc.AdoptedParams{FormerUid: former.UID, Namespace: former.Namespace})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return uid, wrap(err, "find the task that continues the history of the one with UID "+former.UID)
}

// Adopt gives the history of a former task to one of the same name and namespace that has none
// yet. It may be repeated. Errors: history.ErrNotFound if there is no such history any more;
// history.ErrInvalid if it was imported; history.ErrExists if the task has one of its own, or had one
// that was deleted; history.ErrUnavailable. The caller has to
// make sure that the former Task object is gone.
func (s *Store) Adopt(ctx context.Context, task history.Task, former string) error {
	doing := fmt.Sprintf("give the history of the task with UID %s to the task %s/%s with UID %s", former, task.Namespace, task.Name, task.UID)
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		// Nobody may delete or fork the history meanwhile.
		if err := q.LockDeletions(ctx); err != nil {
			return err
		}
		row, err := q.LockTaskToDelete(ctx, former)
		if errors.Is(err, pgx.ErrNoRows) {
			now, err := q.Adopted(ctx, sqlc.AdoptedParams{FormerUid: former, Namespace: task.Namespace})
			if err == nil && now == task.UID {
				return nil // repeated
			}
			return errors.Join(history.ErrNotFound, err)
		}
		if err != nil {
			return err
		}
		if err := mayAdopt(ctx, q, task, row); err != nil {
			return err
		}
		if err := handOver(ctx, q, task, former); err != nil {
			return err
		}
		if err := awaitNames(ctx, q, row.ID); err != nil {
			return err
		}
		// What the former agent called for is carried out with the rights of its own Task, or not at all.
		if err := q.DeleteToolCalls(ctx, row.ID); err != nil {
			return err
		}
		return notify(ctx, q, task, row.Attempt)
	})
}

// mayAdopt refuses a history that the task may not have, and a task that has or had one of its own.
func mayAdopt(ctx context.Context, q *sqlc.Queries, task history.Task, former sqlc.Task) error {
	if former.Namespace != task.Namespace || former.Name != task.Name {
		return fmt.Errorf("%w: the task belongs to %s/%s", history.ErrNotFound, former.Namespace, former.Name)
	}
	if former.DeletionSince.Valid {
		return fmt.Errorf("%w: it is being deleted", history.ErrNotFound)
	}
	// Somebody may import one under a former UID before an adoption is carried out again.
	imported, err := q.Imported(ctx, sqlc.ImportedParams{Uid: former.Uid, Namespace: former.Namespace})
	if err != nil {
		return err
	}
	if imported {
		return fmt.Errorf("%w: it was imported, and has no code", history.ErrInvalid)
	}
	gone, err := q.Deleted(ctx, sqlc.DeletedParams{Uid: task.UID, Namespace: task.Namespace})
	if err != nil {
		return err
	}
	if gone {
		return fmt.Errorf("%w: the task's own history was deleted", history.ErrExists)
	}
	if _, err := q.TaskAttempt(ctx, task.UID); err == nil {
		return fmt.Errorf("%w: the task has begun without it", history.ErrExists)
	} else if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return nil
}

// handOver changes the UID of a history. Its row is locked.
func handOver(ctx context.Context, q *sqlc.Queries, task history.Task, former string) error {
	for _, uid := range []string{former, task.UID} {
		if err := q.LockTimeline(ctx, uid); err != nil {
			return err
		}
	}
	// What was listed of the new task so far is only that it waits.
	if _, err := q.DeleteSummary(ctx, task.UID); err != nil {
		return err
	}
	if err := q.ForgetTransitions(ctx, former); err != nil {
		return err
	}
	if err := q.MoveSummary(ctx, sqlc.MoveSummaryParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	if err := q.MoveCallEffects(ctx, sqlc.MoveCallEffectsParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	if err := q.MoveEvents(ctx, sqlc.MoveEventsParams{Uid: task.UID, FormerUid: former, Namespace: task.Namespace}); err != nil {
		return err
	}
	if err := q.MoveUsage(ctx, sqlc.MoveUsageParams{Uid: task.UID, FormerUid: former, Namespace: task.Namespace}); err != nil {
		return err
	}
	if err := q.DeleteUsage(ctx, sqlc.DeleteUsageParams{TaskUid: former, Namespace: task.Namespace}); err != nil {
		return err
	}
	if err := q.MoveSpec(ctx, sqlc.MoveSpecParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	if err := q.MoveStart(ctx, sqlc.MoveStartParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	if err := q.DeleteSpec(ctx, former); err != nil {
		return err
	}
	if err := q.DeleteTaskBudget(ctx, sqlc.DeleteTaskBudgetParams{Namespace: task.Namespace, Uid: former}); err != nil {
		return err
	}
	if err := q.MovePublications(ctx, sqlc.MovePublicationsParams{Uid: task.UID, FormerUid: former, Namespace: task.Namespace}); err != nil {
		return err
	}
	if err := q.MoveTask(ctx, sqlc.MoveTaskParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	if err := q.MoveAdoptions(ctx, sqlc.MoveAdoptionsParams{Uid: task.UID, FormerUid: former}); err != nil {
		return err
	}
	return q.InsertAdoption(ctx, sqlc.InsertAdoptionParams{Uid: task.UID, FormerUid: former, Namespace: task.Namespace})
}

// Operations returns those of the keys under which a completed operation of the task is
// recorded, however long ago.
func (s *Store) Operations(ctx context.Context, task history.Key, keys []string) ([]string, error) {
	rows, err := s.read().NamedOperations(ctx, sqlc.NamedOperationsParams{TaskUid: task.UID, Namespace: task.Namespace, OperationIds: keys})
	found := make([]string, 0, len(rows))
	for _, row := range rows {
		found = append(found, row.OperationID)
	}
	return found, wrap(err, "read which operations of the task with UID "+task.UID+" were carried out")
}

// FormerTasks returns the former tasks whose history a task continues, the earliest first.
func (s *Store) FormerTasks(ctx context.Context, taskUID string) ([]history.FormerTask, error) {
	rows, err := s.read().FormerTasks(ctx, taskUID)
	formers := make([]history.FormerTask, 0, len(rows))
	for _, row := range rows {
		formers = append(formers, history.FormerTask{UID: row.FormerUid, NamespaceUID: row.NamespaceUid})
	}
	return formers, wrap(err, "read which tasks' history the task with UID "+taskUID+" continues")
}

// Adoptions lists adoptions in the order of the former tasks' UIDs, after the given one.
func (s *Store) Adoptions(ctx context.Context, afterFormer string, limit int) ([]history.TaskAdoption, error) {
	rows, err := s.read().Adoptions(ctx, sqlc.AdoptionsParams{After: afterFormer, UpToRows: int32(limit)})
	adoptions := make([]history.TaskAdoption, 0, len(rows))
	for _, row := range rows {
		adoptions = append(adoptions, history.TaskAdoption{
			Task: history.Key{Namespace: row.Namespace, UID: row.Uid}, Former: history.FormerTask{UID: row.FormerUid, NamespaceUID: row.NamespaceUid},
		})
	}
	return adoptions, wrap(err, "list adopted histories")
}

// refuseFormer returns history.ErrFenced if another task continues the task's history.
func refuseFormer(ctx context.Context, q *sqlc.Queries, task history.Task) error {
	now, err := q.Adopted(ctx, sqlc.AdoptedParams{FormerUid: task.UID, Namespace: task.Namespace})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%w: the task %s/%s with UID %s continues this history, and no attempt of the former one may write any more",
			history.ErrFenced, task.Namespace, task.Name, now)
	}
	return err
}
