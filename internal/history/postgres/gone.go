package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A history is deleted in three steps: it is claimed, so that no task adopts it any more, then its
// code is deleted, and then its rows, by which the code is found. Whoever ends in between leaves
// the claim, and the next pass goes on.

// claimGoneTasks claims the histories whose Task has been gone for the retention, and that were
// last written before it. One that cannot be claimed now is left to the next time, as are those for which
// there is no time left: whoever has many may not hold up the others.
func (m *maintainer) claimGoneTasks(ctx context.Context) error {
	if err := m.noteGoneTasks(ctx); err != nil {
		return err
	}
	ends := time.Now().Add(cmp.Or(m.options.ClaimTime, claimTime))
	for {
		gone, err := m.store.read().GoneTasks(ctx, sqlc.GoneTasksParams{
			Seconds: m.options.MessageRetention.Seconds(), AfterID: m.looked, UpToRows: sweepBatch,
		})
		if err != nil {
			return wrap(err, "list the histories that have exceeded their retention")
		}
		if len(gone) == 0 {
			m.looked = 0
			return nil
		}
		for _, row := range gone {
			m.looked = row.ID
			task := history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}
			if err := m.claimGone(ctx, task); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				m.log(task).Info("a history that has exceeded its retention could not be deleted; trying again in the next pass", "error", err.Error())
			}
			if time.Now().After(ends) {
				m.store.log.Info("not all histories that have exceeded their retention were looked at in time; going on in the next pass")
				return nil
			}
		}
	}
}

// noteGoneTasks notes since when the Task of each history is gone, by the clock of the database. A
// Task that is made while the others are listed may be noted, and is no longer from the next time
// on.
func (m *maintainer) noteGoneTasks(ctx context.Context) error {
	live, err := m.options.LiveTasks(ctx)
	if err != nil {
		return fmt.Errorf("list the Tasks that exist: %w", err)
	}
	return m.inBatches(ctx, "note which tasks are gone", func(q *sqlc.Queries) (int64, error) {
		return q.NoteGoneTasks(ctx, sqlc.NoteGoneTasksParams{Live: listOf(live), UpToRows: goneBatch})
	})
}

// claimGone claims a task's history unless its Task is there, or one that may yet adopt it. A Task
// that is made after that finds no history to adopt, or has adopted this one before it is claimed.
func (m *maintainer) claimGone(ctx context.Context, task history.Task) error {
	exists, err := m.exists(ctx, task)
	if err != nil || exists {
		return err
	}
	awaited, err := m.options.Awaited(ctx, task)
	if err != nil {
		return fmt.Errorf("check whether a task waits to adopt the history of %s/%s: %w", task.Namespace, task.Name, err)
	}
	if awaited {
		return nil
	}
	err = m.store.claimToDelete(ctx, task.UID)
	if errors.Is(err, history.ErrNotFound) {
		return nil // it was adopted meanwhile
	}
	return err
}

// finishDeletions deletes the histories that are claimed. One that cannot be deleted now is left to
// the next time.
func (m *maintainer) finishDeletions(ctx context.Context) error {
	if m.options.TaskExists == nil || m.options.DeleteCode == nil {
		return nil
	}
	page := sqlc.ClaimedDeletionsParams{UpToRows: sweepBatch}
	for {
		claimed, err := m.store.read().ClaimedDeletions(ctx, page)
		if err != nil || len(claimed) == 0 {
			return wrap(err, "list the histories that are being deleted")
		}
		for _, row := range claimed {
			page.AfterID = row.ID
			task := history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}
			if err := m.finishDeletion(ctx, task); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				m.log(task).Info("a history could not be deleted; trying again in the next pass", "error", err.Error())
			}
		}
	}
}

// finishDeletion deletes a claimed history, or gives it back if its Task is there again, as after the
// restore of an older copy of the cluster. A history whose code may be gone is not given back: its Task
// could not continue it, and has to be told so.
func (m *maintainer) finishDeletion(ctx context.Context, task history.Task) error {
	exists, err := m.exists(ctx, task)
	if err != nil {
		return err
	}
	if exists {
		released, err := m.store.releaseDeletion(ctx, task.UID)
		if released {
			m.log(task).Info("the Task of a history that was being deleted is there again: the history is kept")
		}
		if released || err != nil {
			return err
		}
		m.log(task).Info("the Task of a history is there again whose code is being deleted: the deletion is finished")
	}
	formers, err := m.store.ClaimDeletion(ctx, task.UID)
	if err != nil {
		return err
	}
	if err := m.options.DeleteCode(ctx, task, formers); err != nil {
		return fmt.Errorf("delete the code of the task %s/%s: %w", task.Namespace, task.Name, err)
	}
	deleted, err := m.store.DeleteTask(ctx, task.UID)
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return err
	}
	m.metrics.swept.WithLabelValues("messages").Add(float64(deleted.Messages))
	m.metrics.swept.WithLabelValues("pieces").Add(float64(deleted.Pieces))
	m.log(task).Info("deleted the history of a deleted task", "messages", deleted.Messages)
	return nil
}

// exists reports whether a Task exists that the history is of, or may be: one that says it continues a
// history of which an older copy of the database knows nothing may continue this one by way of that.
func (m *maintainer) exists(ctx context.Context, task history.Task) (bool, error) {
	adopted, err := m.store.FormerTasks(ctx, task.UID)
	if err != nil {
		return false, err
	}
	formers := make([]string, 0, len(adopted))
	for _, former := range adopted {
		formers = append(formers, former.UID)
	}
	exists, continues, err := m.options.TaskExists(ctx, task, formers)
	if err != nil {
		return false, fmt.Errorf("check whether the task %s/%s still exists: %w", task.Namespace, task.Name, err)
	}
	if exists || continues == "" {
		return exists, nil
	}
	known, err := m.store.read().KnowsTask(ctx, continues)
	return !known, wrap(err, "find the history that the task "+task.Namespace+"/"+task.Name+" says it continues")
}

// log returns a logger that names a task.
func (m *maintainer) log(task history.Task) logr.Logger {
	return m.store.log.WithValues("namespace", task.Namespace, "task", task.Name, "uid", task.UID)
}
