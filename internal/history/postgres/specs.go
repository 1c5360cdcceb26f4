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

// KeepSpec replaces the kept spec of a task. That of a task whose history was deleted is not
// kept, and nothing of one for which the limit of its namespace leaves no room. Errors:
// history.ErrUnavailable.
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
		if kept, err = s.withinLimit(ctx, q, task, kept); err != nil {
			return err
		}
		if err := q.KeepSpec(ctx, sqlc.KeepSpecParams{
			Uid: task.UID, Namespace: task.Namespace, Spec: kept.Spec, Variables: listOf(kept.Variables), Fields: listOf(kept.Fields),
			OperatingMode: kept.OperatingMode, Fork: kept.Start.Fork, StartFrom: kept.Start.From, StartUid: kept.Start.TaskUID, StartCheckpoint: kept.Start.Checkpoint,
			StartCommit: kept.Start.Commit, StartPosition: kept.Start.Position,
			Contract: kept.Membership.Contract, Role: kept.Membership.Role, Phase: kept.Membership.Phase, ParentUid: kept.Membership.ParentUID,
		}); err != nil {
			return err
		}
		if kept.Membership.Contract == "" { // of a former task, whose history this one has adopted
			return q.LeaveContract(ctx, sqlc.LeaveContractParams{Uid: task.UID, Namespace: task.Namespace})
		}
		return joinContract(ctx, q, task, kept.Membership.Contract)
	})
}

// joinContract notes to which contract a task belongs that is listed already; "" says nothing of it. Who follows
// the contract is told of what is recorded of the task, unless that was known.
func joinContract(ctx context.Context, q *sqlc.Queries, task history.Key, contract string) error {
	if contract == "" {
		return nil
	}
	joined, err := q.JoinContract(ctx, sqlc.JoinContractParams{Contract: contract, Uid: task.UID, Namespace: task.Namespace})
	if err != nil || joined == 0 {
		return err
	}
	return notifyTimeline(ctx, q, task, contractKnown)
}

// withinLimit returns a spec, or an empty one if the limit of its namespace leaves no room for what it
// is larger than the one that is kept already.
func (s *Store) withinLimit(ctx context.Context, q *sqlc.Queries, task history.Key, kept history.KeptSpec) (history.KeptSpec, error) {
	most := s.limits.NamespaceBytes
	if most <= 0 {
		return kept, nil
	}
	used, err := s.namespaceUsage(ctx, q, task.Namespace)
	if err != nil {
		return kept, err
	}
	before, err := q.KeptSpec(ctx, sqlc.KeptSpecParams{Uid: task.UID, Namespace: task.Namespace})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return kept, err
	}
	if more := int64(len(kept.Spec) - len(before.Spec)); more > 0 && used.counted(most)+more > most {
		return history.KeptSpec{Start: kept.Start, OperatingMode: kept.OperatingMode, Membership: kept.Membership}, nil
	}
	return kept, nil
}

// KeptSpec returns the kept spec of a task. Errors: history.ErrNotFound, history.ErrUnavailable.
func (s *Store) KeptSpec(ctx context.Context, task history.Key) (history.KeptSpec, error) {
	row, err := s.read().KeptSpec(ctx, sqlc.KeptSpecParams{Uid: task.UID, Namespace: task.Namespace})
	start := startOf(row.Fork, row.StartFrom, row.StartUid, row.StartCheckpoint, row.StartCommit, row.StartPosition)
	member := history.Membership{Contract: row.Contract, Role: row.Role, Phase: row.Phase, ParentUID: row.ParentUid}
	return history.KeptSpec{Spec: row.Spec, Variables: row.Variables, Fields: row.Fields, Start: start, OperatingMode: row.OperatingMode, Membership: member}, wrap(err, "read the spec of the task with UID "+task.UID)
}

// maxForked bounds how many tasks of a Fork's name are listed: it can be used again.
const maxForked = 1000

// ForkedTasks returns the tasks that have a history and were made for a Fork of a name, newest first,
// whether or not they exist.
func (s *Store) ForkedTasks(ctx context.Context, namespace, fork string) ([]history.ForkedTask, error) {
	rows, err := s.read().ForkedTasks(ctx, sqlc.ForkedTasksParams{Namespace: namespace, Fork: fork, UpToRows: maxForked})
	tasks := make([]history.ForkedTask, 0, len(rows))
	for _, row := range rows {
		start := startOf(row.Fork, row.StartFrom, row.StartUid, row.StartCheckpoint, row.StartCommit, row.StartPosition)
		tasks = append(tasks, history.ForkedTask{Name: row.Name, UID: row.Uid, Start: start, OperatingMode: row.OperatingMode})
	}
	return tasks, wrap(err, "list the tasks that were made for the Fork "+fork)
}

func startOf(fork, from, uid string, checkpoint int64, commit string, position int64) history.Start {
	return history.Start{Fork: fork, From: from, TaskUID: uid, Checkpoint: checkpoint, Commit: commit, Position: position}
}

// listOf returns a list that is not NULL in SQL.
func listOf(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
}

// deleteIdleSpecs deletes the specs that were kept before the given time, of tasks that have not begun
// and are gone: no history contains them, and nobody can fork such a task.
func (m *maintainer) deleteIdleSpecs(ctx context.Context, before time.Time) error {
	if m.options.HasUID == nil {
		return nil
	}
	page := sqlc.IdleSpecsParams{Before: before, UpToRows: sweepBatch}
	for {
		idle, err := m.store.read().IdleSpecs(ctx, page)
		if err != nil || len(idle) == 0 {
			return wrap(err, "list the kept specs of tasks that have not begun")
		}
		for _, row := range idle {
			page.AfterTime, page.AfterUid = row.KeptAt, row.Uid
			exists, err := m.options.HasUID(ctx, row.Uid)
			if err != nil {
				return fmt.Errorf("check whether the task with UID %s still exists: %w", row.Uid, err)
			}
			if exists {
				continue
			}
			if err := m.store.write(ctx, "delete the kept spec of the task with UID "+row.Uid, func(q *sqlc.Queries) error {
				return q.DeleteIdleSpec(ctx, row.Uid)
			}); err != nil {
				return err
			}
		}
	}
}
