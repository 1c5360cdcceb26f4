package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// maxOperations bounds the completed operations that a TaskState lists.
const maxOperations = 100

// locked is a task whose row is locked by the transaction, with its active branch.
type locked struct {
	task   history.Task
	row    sqlc.Task
	branch sqlc.Branch
	// preface is a system message to add before the next record; empty for none.
	preface string
	// withdrawn are the tools of the calls that a move has taken back before they were answered.
	withdrawn []string
}

// lockTask locks the task's row. It returns history.ErrNotFound if the UID belongs to a
// task of another namespace or name, since the caller's UID is not to be trusted.
func lockTask(ctx context.Context, q *sqlc.Queries, task history.Task) (locked, error) {
	row, err := q.LockTask(ctx, task.UID)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := refuseDeleted(ctx, q, task); err != nil {
			return locked{}, err
		}
	}
	if errors.Is(err, pgx.ErrNoRows) || err == nil && (row.Namespace != task.Namespace || row.Name != task.Name) {
		return locked{}, fmt.Errorf("%w: the task %s/%s with UID %s has not begun; begin an attempt first",
			history.ErrNotFound, task.Namespace, task.Name, task.UID)
	}
	if err != nil {
		return locked{}, err
	}
	branch, err := q.Branch(ctx, row.ActiveBranch)
	return locked{task: task, row: row, branch: branch}, err
}

// refuseDeleted returns history.ErrFenced if the task's history was deleted, or belongs to
// another task now.
func refuseDeleted(ctx context.Context, q *sqlc.Queries, task history.Task) error {
	gone, err := q.Deleted(ctx, sqlc.DeletedParams{Uid: task.UID, Namespace: task.Namespace})
	if !gone && err == nil {
		return refuseFormer(ctx, q, task)
	}
	if err == nil {
		err = fmt.Errorf("%w: the history of the task %s/%s was deleted, and no attempt of it may write any more",
			history.ErrFenced, task.Namespace, task.Name)
	}
	return err
}

// fence refuses writers of an attempt older than the newest one.
func (l locked) fence(attempt int64) error {
	if attempt < l.row.Attempt {
		return fmt.Errorf("%w: attempt %d of the task %s/%s may no longer write, since attempt %d has begun",
			history.ErrFenced, attempt, l.row.Namespace, l.row.Name, l.row.Attempt)
	}
	return nil
}

// sameLast returns history.ErrForeign if one of the records has the sequence of the last
// stored one but is a different record.
func (l locked) sameLast(records []history.Record) error {
	for _, r := range records {
		if r.Sequence == l.row.LastSequence && r.ID != 0 && l.row.LastRecordID != 0 && int64(r.ID) != l.row.LastRecordID {
			return fmt.Errorf("%w: record %d of the task %s/%s", history.ErrForeign, r.Sequence, l.row.Namespace, l.row.Name)
		}
	}
	return nil
}

// head returns the state of the active branch.
func (l locked) head() (conversation.Log, error) { return logOf(l.branch) }

// Begin opens an attempt: it raises the fence to it and returns the task's state. If the
// task has no row yet, Begin creates it; only then is the source used, and the
// conversation begins at its checkpoint. Errors: history.ErrFenced if a newer attempt has
// begun or the task's history was deleted; history.ErrNotFound if the source is not a
// checkpoint of this namespace, and may not be lost or may still arrive;
// history.ErrUnavailable.
func (s *Store) Begin(ctx context.Context, task history.Task, attempt int64, source *history.Source, options history.BeginOptions) (history.TaskState, error) {
	var state history.TaskState
	doing := fmt.Sprintf("begin attempt %d of the task %s/%s", attempt, task.Namespace, task.Name)
	err := s.write(ctx, doing, func(q *sqlc.Queries) error {
		if err := refuseDeleted(ctx, q, task); err != nil {
			return err
		}
		created, err := q.InsertTask(ctx, sqlc.InsertTaskParams{
			Uid: task.UID, Namespace: task.Namespace, Name: task.Name, Attempt: attempt,
		})
		if err != nil {
			return err
		}
		lost := false
		if created > 0 {
			if lost, err = firstBranch(ctx, q, task, source); err != nil {
				return err
			}
		}
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if lost {
			if err := s.recordSourceLost(ctx, q, &l, *source); err != nil {
				return err
			}
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		began, every := l.row.Attempt, max(options.SnapshotEveryMessages, 0)
		if created > 0 || attempt > l.row.Attempt || every != l.row.SnapshotEvery {
			if attempt > l.row.Attempt {
				l.row.Requests = nil
			}
			l.row.Attempt, l.row.SnapshotEvery = attempt, every
			if err := l.save(ctx, q); err != nil {
				return err
			}
		}
		if options.Contract != "" && options.Contract != l.row.Contract {
			if err := q.SetTaskContract(ctx, sqlc.SetTaskContractParams{Uid: task.UID, Contract: options.Contract}); err != nil {
				return err
			}
		}
		if attempt > began && l.row.ProblemReason != "" {
			if err := l.setProblem(ctx, q, history.Problem{}); err != nil {
				return err
			}
		}
		if created > 0 {
			err := q.ListTask(ctx, sqlc.ListTaskParams{Uid: task.UID, Namespace: task.Namespace, Name: task.Name})
			if err != nil {
				return err
			}
		}
		state, err = stateOf(ctx, q, l.row, l.branch)
		return err
	})
	if sourceMissing(err) {
		s.awaitSource(ctx, task)
	}
	return state, err
}

// Report stores what stops the daemon of an attempt from working, or with nil that
// nothing does. Errors: history.ErrFenced, history.ErrNotFound if the task has not begun,
// history.ErrTooSoon if another problem was stored a moment ago, history.ErrUnavailable.
func (s *Store) Report(ctx context.Context, task history.Task, attempt int64, problem *history.Problem) error {
	reported := history.Problem{}
	if problem != nil {
		reported = *problem
	}
	doing := fmt.Sprintf("store a problem of attempt %d of the task %s/%s", attempt, task.Namespace, task.Name)
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		if (history.Problem{Reason: l.row.ProblemReason, Message: l.row.ProblemMessage}) == reported {
			return nil
		}
		changed, err := q.ReportProblem(ctx, sqlc.ReportProblemParams{
			Uid: l.row.Uid, Reason: reported.Reason, Message: reported.Message, Seconds: s.limits.ProblemEvery.Seconds(),
		})
		if err == nil && changed == 0 {
			err = fmt.Errorf("%w: %s", history.ErrTooSoon, doing)
		}
		if err != nil {
			return err
		}
		return notify(ctx, q, l.task, l.row.Attempt)
	})
}

func (l *locked) setProblem(ctx context.Context, q *sqlc.Queries, problem history.Problem) error {
	l.row.ProblemReason, l.row.ProblemMessage = problem.Reason, problem.Message
	return q.SetProblem(ctx, sqlc.SetProblemParams{Uid: l.row.Uid, Reason: problem.Reason, Message: problem.Message})
}

// save writes the task's row and notifies listeners.
func (l locked) save(ctx context.Context, q *sqlc.Queries) error {
	err := q.SetTaskHead(ctx, sqlc.SetTaskHeadParams{
		Uid: l.row.Uid, Attempt: l.row.Attempt, LastSequence: l.row.LastSequence,
		LastRecordID: l.row.LastRecordID, LostRecords: l.row.LostRecords,
		CheckpointCount: l.row.CheckpointCount, RequestedCheckpoints: l.row.RequestedCheckpoints, LatestCheckpoint: l.row.LatestCheckpoint,
		SnapshotEvery: l.row.SnapshotEvery, SnapshotCount: l.row.SnapshotCount, Tools: l.row.Tools, Models: l.row.Models, StoredBytes: l.row.StoredBytes,
		AgentEnd: l.row.AgentEnd, ActiveAt: l.row.ActiveAt, WorkedAt: l.row.WorkedAt, Requests: l.row.Requests, Holds: l.row.Holds,
		SpentInputTokens: l.row.SpentInputTokens, SpentOutputTokens: l.row.SpentOutputTokens,
		SpentCostMicroUsd: l.row.SpentCostMicroUsd, SpentToolCalls: l.row.SpentToolCalls, SpentThrough: l.row.SpentThrough,
		ContractCostMicroUsd: l.row.ContractCostMicroUsd, SpentMonth: l.row.SpentMonth, MonthCostMicroUsd: l.row.MonthCostMicroUsd,
		StoredAttempt: l.row.StoredAttempt, AgentAttempt: l.row.AgentAttempt, AgentSince: l.row.AgentSince,
	})
	if err != nil {
		return err
	}
	return notify(ctx, q, l.task, l.row.Attempt)
}

// TaskState returns the state of a task; history.ErrNotFound if it has never begun.
func (s *Store) TaskState(ctx context.Context, taskUID string) (history.TaskState, error) {
	var state history.TaskState
	err := s.snapshot(ctx, "read the state of the task with UID "+taskUID, func(q *sqlc.Queries) error {
		found, err := q.Task(ctx, taskUID)
		if err != nil {
			return err
		}
		state, err = stateOf(ctx, q, found.Task, found.Branch)
		state.ActiveSeconds = found.ActiveSeconds
		return err
	})
	return state, err
}

// PushedCheckpoints returns the numbers of the task's checkpoints that were reported as
// durable, and of those that were reported as lost.
func (s *Store) PushedCheckpoints(ctx context.Context, taskUID string) (durable, lost []int64, err error) {
	rows, err := s.read().PushedCheckpoints(ctx, taskUID)
	for _, row := range rows {
		if row.Lost {
			lost = append(lost, int64(row.Number))
		} else {
			durable = append(durable, int64(row.Number))
		}
	}
	return durable, lost, wrap(err, "list the durable checkpoints of the task with UID "+taskUID)
}

// maxUnpushed bounds what UnpushedCheckpoints and DamagedObjects return.
const maxUnpushed = 10

// UnpushedCheckpoints returns the numbers of the task's checkpoints that only its volume may have: they
// are neither durable nor lost. Of many, it returns the first.
func (s *Store) UnpushedCheckpoints(ctx context.Context, taskUID string) ([]int64, error) {
	rows, err := s.read().UnpushedCheckpoints(ctx, sqlc.UnpushedCheckpointsParams{TaskUid: taskUID, UpToRows: maxUnpushed})
	return numbers(rows), wrap(err, "list the checkpoints of the task with UID "+taskUID+" that are not in the gitstore")
}

// DamagedObjects returns the numbers of the task's checkpoints whose objects are known to be damaged, and
// which its volume may heal. Of many, it returns the first.
func (s *Store) DamagedObjects(ctx context.Context, taskUID string) ([]int64, error) {
	rows, err := s.read().DamagedObjects(ctx, sqlc.DamagedObjectsParams{TaskUid: taskUID, UpToRows: maxUnpushed})
	return numbers(rows), wrap(err, "list the damaged checkpoints of the task with UID "+taskUID)
}

// RecordedTransitions returns the number up to which all transitions of the task are
// recorded; the largest possible number if the task's history was deleted.
func (s *Store) RecordedTransitions(ctx context.Context, namespace, taskUID string) (int64, error) {
	n, err := s.read().RecordedTransitions(ctx, sqlc.RecordedTransitionsParams{TaskUid: taskUID, Namespace: namespace})
	return n, wrap(err, "read which transitions of the task with UID "+taskUID+" are recorded")
}

// maxNamed bounds the tasks of one name that TasksNamed returns.
const maxNamed = 100

// TasksNamed returns the tasks of a name that have begun, newest first; of many, only the
// newest ones.
func (s *Store) TasksNamed(ctx context.Context, namespace, name string) ([]history.NamedTask, error) {
	rows, err := s.read().TasksNamed(ctx, sqlc.TasksNamedParams{Namespace: namespace, Name: name, UpToRows: maxNamed})
	tasks := make([]history.NamedTask, 0, len(rows))
	for _, row := range rows {
		tasks = append(tasks, history.NamedTask{UID: row.Uid, Began: row.CreatedAt})
	}
	return tasks, wrap(err, fmt.Sprintf("list the tasks named %s/%s", namespace, name))
}

// GoneTask returns the newest task of a name, of which the caller has found that it is gone;
// history.ErrNotFound if there is none. A history that was imported is none.
func (s *Store) GoneTask(ctx context.Context, namespace, name string) (history.GoneTask, error) {
	row, err := s.read().GoneTask(ctx, sqlc.GoneTaskParams{Namespace: namespace, Name: name})
	return history.GoneTask{UID: row.Uid, State: row.LastState}, wrap(err, fmt.Sprintf("read how the last task named %s/%s ended", namespace, name))
}

// Attempt returns the newest attempt that has begun; history.ErrNotFound if none has.
func (s *Store) Attempt(ctx context.Context, taskUID string) (int64, error) {
	attempt, err := s.read().TaskAttempt(ctx, taskUID)
	return attempt, wrap(err, "read the attempt of the task with UID "+taskUID)
}

func stateOf(ctx context.Context, q *sqlc.Queries, t sqlc.Task, b sqlc.Branch) (history.TaskState, error) {
	log, err := logOf(b)
	if err != nil {
		return history.TaskState{}, err
	}
	state := history.TaskState{
		Task:            history.Task{Namespace: t.Namespace, Name: t.Name, UID: t.Uid},
		Attempt:         t.Attempt,
		LastSequence:    t.LastSequence,
		LastRecordID:    uint64(t.LastRecordID),
		LostRecords:     t.LostRecords,
		LeftOutRecords:  t.LeftOutRecords,
		Position:        position(b, log),
		Totals:          totals(log.Position, log.Totals),
		Spent:           spentOf(t),
		CheckpointCount: t.CheckpointCount,
		OpenToolCalls:   log.OpenIDs(),
	}
	if len(t.AgentEnd) > 0 {
		state.AgentEnd = &history.AgentEnd{}
		if err := json.Unmarshal(t.AgentEnd, state.AgentEnd); err != nil {
			return state, fmt.Errorf("read how the agent ended: %w", err)
		}
	}
	state.ActiveAt, state.AgentAttempt, state.AgentSince = t.ActiveAt.Time, t.AgentAttempt, t.AgentSince.Time
	state.WorkedAt = t.WorkedAt.Time
	state.StoredAttempt = t.StoredAttempt
	if state.Requests, err = requestsOf(t.Requests); err != nil {
		return state, err
	}
	if state.Holds, err = holdsOf(t.Holds); err != nil {
		return state, err
	}
	if t.ProblemReason != "" {
		state.Problem = &history.Problem{Reason: t.ProblemReason, Message: t.ProblemMessage}
	}
	if state.Problem == nil && t.LimitMessage != "" {
		state.Problem = &history.Problem{Reason: history.ReasonLimitReached, Message: t.LimitMessage}
	}
	operations, err := q.LatestOperations(ctx, sqlc.LatestOperationsParams{TaskUid: t.Uid, UpToRows: maxOperations})
	if err != nil {
		return state, err
	}
	for _, o := range slices.Backward(operations) {
		move := history.MoveResult{ID: o.OperationID, Refused: o.Refused,
			Position: history.Position{Branch: o.Branch, Position: o.Position, ToolCalls: o.ToolCalls}}
		state.Moves = append(state.Moves, move)
		if o.Refused == "" {
			state.CompletedOperations = append(state.CompletedOperations, o.OperationID)
		}
	}
	if t.LatestCheckpoint == 0 {
		return state, nil
	}
	row, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: t.Uid, Number: narrow(t.LatestCheckpoint)})
	if err != nil {
		return state, err
	}
	latest, err := checkpointOf(row)
	state.Latest = &latest
	return state, err
}
