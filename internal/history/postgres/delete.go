package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// sweepPatience is how long a deletion waits for rows that others hold.
const sweepPatience = 30 * time.Second

// ClaimDeletion is to be called right before the code of a task is deleted: no other task can adopt its
// history from then on, and DeleteTask ends what was begun. It returns the UIDs of the former tasks
// whose histories the task has adopted, and may be repeated. Errors: history.ErrNotFound if another
// task has adopted the history; history.ErrUnavailable.
func (s *Store) ClaimDeletion(ctx context.Context, uid string) (formers []string, err error) {
	err = s.write(ctx, "begin to delete the history of the task with UID "+uid, func(q *sqlc.Queries) error {
		if formers, err = claimDeletion(ctx, q, uid); err != nil {
			return err
		}
		return q.BeginCodeDeletion(ctx, uid)
	})
	return formers, err
}

// claimToDelete claims a history whose code is not deleted yet: releaseDeletion may give it back.
func (s *Store) claimToDelete(ctx context.Context, uid string) error {
	return s.write(ctx, "claim the history of the task with UID "+uid, func(q *sqlc.Queries) error {
		_, err := claimDeletion(ctx, q, uid)
		return err
	})
}

func claimDeletion(ctx context.Context, q *sqlc.Queries, uid string) (formers []string, err error) {
	if err := q.LockDeletions(ctx); err != nil {
		return nil, err
	}
	_, err = q.LockTaskToDelete(ctx, uid)
	if errors.Is(err, pgx.ErrNoRows) {
		adopted, err := q.IsFormer(ctx, uid)
		if err == nil && adopted {
			err = fmt.Errorf("%w: another task has adopted the history of the one with UID %s", history.ErrNotFound, uid)
		}
		return nil, err // a task that never began has no history to adopt
	}
	if err != nil {
		return nil, err
	}
	if err := q.ClaimDeletion(ctx, uid); err != nil {
		return nil, err
	}
	rows, err := q.FormerTasks(ctx, uid)
	for _, row := range rows {
		formers = append(formers, row.FormerUid)
	}
	return formers, err
}

// releaseDeletion ends a deletion of which nothing came, and reports whether it has: not one whose code
// may be gone.
func (s *Store) releaseDeletion(ctx context.Context, uid string) (bool, error) {
	released, err := s.read().ReleaseDeletion(ctx, uid)
	return released > 0, wrap(err, "keep the history of the task with UID "+uid)
}

// DeleteTask removes everything stored about a task: its conversation, checkpoints,
// operations and events, its entry in lists, the messages and pieces that no other task
// of the namespace shares, and their search documents. What forks inherited stays,
// without the task's name or UID. Nothing may be written for the task any more: its
// daemon is refused with history.ErrFenced, and late events are ignored. The caller has
// to check whether the Task object is gone. A second call returns history.ErrNotFound.
// Errors: history.ErrNotFound, history.ErrUnavailable, after which a repeated call
// continues.
func (s *Store) DeleteTask(ctx context.Context, uid string) (history.Deleted, error) {
	var result history.Deleted
	var messages []int64
	doing := "delete the history of the task with UID " + uid
	err := s.write(ctx, doing, func(q *sqlc.Queries) error {
		var err error
		result, messages, err = deleteTask(ctx, q, uid)
		return err
	})
	if err != nil {
		// Deleted before, but perhaps not swept yet.
		if _, swept := s.sweep(ctx); swept != nil && errors.Is(err, history.ErrNotFound) {
			return history.Deleted{}, wrap(swept, doing)
		}
		return history.Deleted{}, err
	}
	deadline := time.Now().Add(sweepPatience)
	for {
		swept, err := s.sweep(ctx)
		result.Messages += swept.messages
		result.Pieces += swept.pieces
		if err != nil {
			return result, wrap(err, doing)
		}
		left, err := s.read().MarkedAmong(ctx, messages)
		if err != nil || left == 0 {
			return result, wrap(err, doing)
		}
		if time.Now().After(deadline) {
			return result, fmt.Errorf("%w: %s: %d messages are in use by other transactions; try again", history.ErrUnavailable, doing, left)
		}
		select {
		case <-ctx.Done():
			return result, wrap(ctx.Err(), doing)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// deleteTask removes the rows of the task and returns the messages that may no longer be
// referenced.
func deleteTask(ctx context.Context, q *sqlc.Queries, uid string) (history.Deleted, []int64, error) {
	result := history.Deleted{Task: history.Task{UID: uid}}
	if err := q.LockDeletions(ctx); err != nil {
		return result, nil, err
	}
	row, err := q.LockTaskToDelete(ctx, uid)
	began := err == nil
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return result, nil, err
	}
	if err := q.LockTimeline(ctx, uid); err != nil {
		return result, nil, err
	}
	if !began {
		event, err := q.NewestEvent(ctx, uid)
		if err != nil {
			return result, nil, err
		}
		if gone, err := q.Deleted(ctx, sqlc.DeletedParams{Uid: uid, Namespace: event.Namespace}); err != nil || gone {
			return result, nil, errors.Join(err, pgx.ErrNoRows)
		}
		row.Namespace, row.Name = event.Namespace, event.TaskName
	}
	result.Task.Namespace, result.Task.Name = row.Namespace, row.Name
	if err := q.BuryTask(ctx, sqlc.BuryTaskParams{Uid: uid, Namespace: row.Namespace}); err != nil {
		return result, nil, err
	}
	if err := q.BuryFormerTasks(ctx, uid); err != nil {
		return result, nil, err
	}
	if err := q.DeleteSpec(ctx, uid); err != nil {
		return result, nil, err
	}
	if err := deleteBudgets(ctx, q, uid, row); err != nil {
		return result, nil, err
	}
	if result.Events, err = q.DeleteEvents(ctx, sqlc.DeleteEventsParams{Uid: uid, Namespace: row.Namespace}); err != nil {
		return result, nil, err
	}
	if err := q.DeleteUsage(ctx, sqlc.DeleteUsageParams{TaskUid: uid, Namespace: row.Namespace}); err != nil {
		return result, nil, err
	}
	if err := q.DeleteTransitions(ctx, sqlc.DeleteTransitionsParams{TaskUid: uid, Namespace: row.Namespace}); err != nil {
		return result, nil, err
	}
	if err := q.DeletePublications(ctx, sqlc.DeletePublicationsParams{TaskUid: uid, Namespace: row.Namespace}); err != nil {
		return result, nil, err
	}
	if _, err = q.DeleteSummary(ctx, uid); err != nil || !began {
		return result, nil, err
	}
	if err := q.MarkPendingPieces(ctx, row.ID); err != nil {
		return result, nil, err
	}
	if result.Checkpoints, err = q.DeleteCheckpoints(ctx, row.ID); err != nil {
		return result, nil, err
	}
	if err := deleteNotes(ctx, q, row.ID); err != nil {
		return result, nil, err
	}
	messages, err := deleteBranches(ctx, q, uid)
	if err != nil {
		return result, nil, err
	}
	if err := q.DeleteTask(ctx, uid); err != nil {
		return result, nil, err
	}
	if err := q.MarkMessages(ctx, messages); err != nil {
		return result, nil, err
	}
	return result, messages, notify(ctx, q, result.Task, row.Attempt)
}

// deleteBudgets removes the task's budget and, if no other history names its contract, what was spent under
// that: in the order in which SetBudgets locks both.
func deleteBudgets(ctx context.Context, q *sqlc.Queries, uid string, row sqlc.Task) error {
	if err := q.ForgetContractSpending(ctx, sqlc.ForgetContractSpendingParams{Namespace: row.Namespace, Contract: row.Contract, Uid: uid}); err != nil {
		return err
	}
	return q.DeleteTaskBudget(ctx, sqlc.DeleteTaskBudgetParams{Namespace: row.Namespace, Uid: uid})
}

// deleteNotes removes what is noted about a task beside its history.
func deleteNotes(ctx context.Context, q *sqlc.Queries, taskID int32) error {
	for _, remove := range []func(context.Context, int32) error{q.DeleteVerification, q.DeleteCheckpointNames, q.DeleteToolCalls} {
		if err := remove(ctx, taskID); err != nil {
			return err
		}
	}
	return nil
}

// deleteBranches removes the branches of the task except for what others inherit, and
// what only this task inherited from deleted tasks.
func deleteBranches(ctx context.Context, q *sqlc.Queries, uid string) ([]int64, error) {
	ancestors, err := q.AncestorBranches(ctx, uid)
	if err != nil {
		return nil, err
	}
	messages, err := q.TaskMessages(ctx, uid)
	if err != nil {
		return nil, err
	}
	if err := q.DeleteCallEffects(ctx, uid); err != nil {
		return nil, err
	}
	inherited, err := q.InheritedBranches(ctx, uid)
	if err != nil {
		return nil, err
	}
	for _, b := range inherited {
		if err := q.TrimBranch(ctx, sqlc.TrimBranchParams(b)); err != nil {
			return nil, err
		}
		if err := q.ForgetBranchSnapshots(ctx, b.ID); err != nil {
			return nil, err
		}
	}
	own, err := q.TaskBranches(ctx, uid)
	if err != nil {
		return nil, err
	}
	if err := q.DeleteBranches(ctx, own); err != nil {
		return nil, err
	}
	forsaken, err := releaseAncestors(ctx, q, ancestors)
	return append(messages, forsaken...), err
}

// releaseAncestors removes the parts of deleted tasks' branches that nobody inherits any
// more, youngest first, and returns the messages they held.
func releaseAncestors(ctx context.Context, q *sqlc.Queries, ids []int64) ([]int64, error) {
	messages, err := q.BranchMessages(ctx, ids)
	if err != nil {
		return nil, err
	}
	for {
		forsaken, err := q.ForsakenBranches(ctx, ids)
		if err != nil {
			return nil, err
		}
		if len(forsaken) == 0 {
			break
		}
		if err := q.DeleteBranches(ctx, forsaken); err != nil {
			return nil, err
		}
	}
	needed, err := q.NeededBranches(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, b := range needed {
		if err := q.TrimBranch(ctx, sqlc.TrimBranchParams(b)); err != nil {
			return nil, err
		}
	}
	return messages, nil
}
