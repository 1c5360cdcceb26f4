package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// point is a turn boundary of a branch with the sums and the digest up to it. The zero
// value is the empty conversation.
type point struct {
	branch   int64
	number   int64
	position int64
	totals   conversation.Totals
	digest   conversation.Digest
}

// checkpointPoint returns the point that a checkpoint's position snaps to.
func checkpointPoint(ctx context.Context, q *sqlc.Queries, taskUID string, number int64) (point, error) {
	c, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: taskUID, Number: narrow(number)})
	if err != nil {
		return point{}, err
	}
	if c.Boundary == c.Position {
		return point{
			branch: c.BranchID, number: c.BranchNumber, position: c.Position,
			totals: conversation.Totals{
				ToolCalls: c.ToolCalls, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens, CostMicroUSD: c.CostMicroUsd,
			},
			digest: conversation.Digest(c.Digest),
		}, nil
	}
	b, err := q.Branch(ctx, c.BranchID)
	if err != nil {
		return point{}, err
	}
	return pointAt(ctx, q, b, c.Boundary)
}

// CheckpointBoundary returns the turn boundary to which a rewind to a checkpoint moves the
// conversation: where the checkpoint was taken, or, if a tool call was waiting for its result
// then, the newest boundary before it. Errors: history.ErrNotFound if the checkpoint is not
// recorded in that namespace.
func (s *Store) CheckpointBoundary(ctx context.Context, task history.Key, number int64) (history.Position, history.Totals, error) {
	var p point
	doing := fmt.Sprintf("find the turn boundary of checkpoint %d of the task with UID %s in namespace %s", number, task.UID, task.Namespace)
	err := s.snapshot(ctx, doing, func(q *sqlc.Queries) error {
		c, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: task.UID, Number: narrow(number)})
		if err == nil && c.Namespace != task.Namespace {
			err = pgx.ErrNoRows
		}
		if err != nil {
			return err
		}
		p, err = checkpointPoint(ctx, q, task.UID, number)
		return err
	})
	if err != nil {
		return history.Position{}, history.Totals{}, err
	}
	return history.Position{Branch: branchName(p.number), Position: p.position, ToolCalls: p.totals.ToolCalls}, totals(p.position, p.totals), nil
}

// basePoint returns the point at which a branch begins.
func basePoint(b sqlc.Branch) point {
	return point{
		branch: b.ID, number: b.Number, position: b.BasePosition,
		totals: conversation.Totals{
			ToolCalls: b.BaseToolCalls, InputTokens: b.BaseInputTokens, OutputTokens: b.BaseOutputTokens, CostMicroUSD: b.BaseCostMicroUsd,
		},
		digest: conversation.Digest(b.BaseDigest),
	}
}

// pointAt returns the point at a turn boundary of a branch, but never before its base.
func pointAt(ctx context.Context, q *sqlc.Queries, b sqlc.Branch, boundary int64) (point, error) {
	if boundary <= b.BasePosition {
		return basePoint(b), nil
	}
	e, err := q.Entry(ctx, sqlc.EntryParams{BranchID: b.ID, Position: boundary})
	if errors.Is(err, pgx.ErrNoRows) {
		return point{}, fmt.Errorf("%w: message %d of branch %d is missing", history.ErrCorrupted, boundary, b.ID)
	}
	if err != nil {
		return point{}, err
	}
	return point{
		branch: b.ID, number: b.Number, position: boundary,
		totals: conversation.Totals{
			ToolCalls: e.ToolCalls, InputTokens: e.InputTokens, OutputTokens: e.OutputTokens, CostMicroUSD: e.CostMicroUsd,
		},
		digest: conversation.Digest(e.Digest),
	}, nil
}

// boundaryPoint returns the point that a position of a branch snaps to, inherited
// messages included. It lies on the branch that holds the position.
func boundaryPoint(ctx context.Context, q *sqlc.Queries, b sqlc.Branch, position int64) (point, error) {
	if position < 1 || position > b.HeadPosition {
		return point{}, fmt.Errorf("%w: message %d of a conversation of %d messages", history.ErrNotFound, position, b.HeadPosition)
	}
	holder, err := q.BranchHolding(ctx, sqlc.BranchHoldingParams{BranchID: b.ID, Position: position})
	if err != nil {
		return point{}, err
	}
	e, err := q.Entry(ctx, sqlc.EntryParams{BranchID: holder.ID, Position: position})
	if errors.Is(err, pgx.ErrNoRows) {
		return point{}, fmt.Errorf("%w: message %d of branch %d is missing", history.ErrCorrupted, position, holder.ID)
	}
	if err != nil {
		return point{}, err
	}
	return pointAt(ctx, q, holder, e.Boundary)
}

// maxBranches bounds the branches of a task: finding a position of a conversation may
// have to visit each.
const maxBranches = 10_000

// branchAt creates a branch of the task that begins at the point, and makes it the active
// one.
func branchAt(ctx context.Context, q *sqlc.Queries, taskUID string, p point, reason string) (sqlc.Branch, error) {
	b, err := q.InsertBranch(ctx, sqlc.InsertBranchParams{
		TaskUid: taskUID, ParentID: pgtype.Int8{Int64: p.branch, Valid: p.branch != 0}, Reason: clean(reason),
		BasePosition: p.position, BaseToolCalls: p.totals.ToolCalls, BaseInputTokens: p.totals.InputTokens,
		BaseOutputTokens: p.totals.OutputTokens, BaseCostMicroUsd: p.totals.CostMicroUSD, BaseDigest: p.digest[:],
		Most: maxBranches,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return b, fmt.Errorf("%w: the conversation has %d branches, the most that a task may have; continue in a fork of the task", history.ErrLimitReached, maxBranches)
	}
	if err != nil {
		return b, err
	}
	return b, q.SetActiveBranch(ctx, sqlc.SetActiveBranchParams{Uid: taskUID, Branch: b.ID})
}

// ResolvePosition returns the turn boundary of the task's active branch that the query
// leads to, and the checkpoint that belongs to it. Errors:
// history.ErrInvalid unless exactly one field of the query is set, history.ErrNotFound if
// the task is unknown or its conversation is shorter.
func (s *Store) ResolvePosition(ctx context.Context, taskUID string, query history.PositionQuery) (history.Resolved, error) {
	var result history.Resolved
	doing := "find a position in the conversation of the task with UID " + taskUID
	if err := query.Validate(); err != nil {
		return result, wrap(err, doing)
	}
	err := s.snapshot(ctx, doing, func(q *sqlc.Queries) error {
		found, err := q.Task(ctx, taskUID)
		if err != nil {
			return err
		}
		if result.Asked, err = askedPosition(ctx, q, found.Branch, query); err != nil {
			return err
		}
		p, err := resolve(ctx, q, found.Branch, result.Asked)
		if err != nil {
			return err
		}
		result.Position = history.Position{Branch: branchName(p.number), Position: p.position, ToolCalls: p.totals.ToolCalls}
		result.Totals, result.Snapped = totals(p.position, p.totals), p.position != result.Asked
		if result.AfterSequence, err = sequenceAt(ctx, q, taskUID, found.Branch, p.position); err != nil {
			return err
		}
		if query.Time.IsZero() {
			result.Checkpoint, err = checkpointBefore(ctx, q, taskUID, found.Branch, p.position, endOfTime())
			return err
		}
		if err := checkpointAt(ctx, q, taskUID, found.Branch, query, &result); err != nil {
			return err
		}
		result.Elsewhere, err = checkpointElsewhere(ctx, q, taskUID, found.Branch, query, result.Checkpoint)
		return err
	})
	return result, err
}

// checkpointAt finds the checkpoint that has the state of a time: the newest one taken by then. That
// may have been taken while a tool call waited for its result, behind the turn boundary. If the last
// message had none by then, it is the task's next one, if nothing but that message led to it.
func checkpointAt(ctx context.Context, q *sqlc.Queries, taskUID string, b sqlc.Branch, query history.PositionQuery, result *history.Resolved) (err error) {
	result.Checkpoint, err = checkpointBefore(ctx, q, taskUID, b, result.Asked, query.Through())
	if err != nil || result.Snapped || result.Asked < 1 || result.Checkpoint != nil && result.Checkpoint.Position.Position == result.Asked {
		return err
	}
	next, err := q.FirstCheckpointAfter(ctx, sqlc.FirstCheckpointAfterParams{TaskUid: taskUID, After: query.Through()})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && (next.Position != result.Asked || v1alpha1.CheckpointTrigger(next.Trigger).BetweenRuns()) {
		return nil
	}
	if err != nil {
		return err
	}
	// Behind a message that the branch inherits, a checkpoint of the branch itself is of a later state.
	holder, err := q.BranchHolding(ctx, sqlc.BranchHoldingParams{BranchID: b.ID, Position: result.Asked})
	if err != nil || holder.ID != next.BranchID {
		return err
	}
	if message, err := q.Entry(ctx, sqlc.EntryParams{BranchID: holder.ID, Position: result.Asked}); err != nil || message.Attempt != next.Attempt {
		return err // another run of the agent may have changed files without a message
	}
	result.Checkpoint, err = readCheckpoint(ctx, q, taskUID, next.Number)
	return err
}

// checkpointElsewhere returns the newest checkpoint taken by a time if it is behind the given one, and on
// a branch that the conversation has left; 0 for none.
func checkpointElsewhere(ctx context.Context, q *sqlc.Queries, taskUID string, b sqlc.Branch, query history.PositionQuery, found *history.Checkpoint) (int64, error) {
	after := int32(0)
	if found != nil {
		after = narrow(found.Number)
	}
	number, err := q.CheckpointElsewhere(ctx, sqlc.CheckpointElsewhereParams{TaskUid: taskUID, BranchID: b.ID, After: after, TakenBy: query.Through()})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return int64(number), err
}

// sequenceAt returns the task's record that created a message of a branch; 0 for an
// inherited message.
func sequenceAt(ctx context.Context, q *sqlc.Queries, taskUID string, b sqlc.Branch, position int64) (int64, error) {
	if position < 1 {
		return 0, nil
	}
	holder, err := q.BranchHolding(ctx, sqlc.BranchHoldingParams{BranchID: b.ID, Position: position})
	if err != nil || holder.TaskUid.String != taskUID {
		return 0, err
	}
	e, err := q.Entry(ctx, sqlc.EntryParams{BranchID: holder.ID, Position: position})
	return e.Sequence, err
}

// askedPosition returns the position that a query requests, before it is snapped.
func askedPosition(ctx context.Context, q *sqlc.Queries, b sqlc.Branch, query history.PositionQuery) (int64, error) {
	if !query.Time.IsZero() {
		return q.PositionAt(ctx, sqlc.PositionAtParams{BranchID: b.ID, At: query.Through()})
	}
	asked := query.Message
	if query.Back > 0 {
		asked = b.HeadPosition - query.Back
	}
	if asked < 0 || asked > b.HeadPosition {
		return 0, fmt.Errorf("%w: the conversation has %d messages", history.ErrNotFound, b.HeadPosition)
	}
	return asked, nil
}

// resolve returns the point that a position snaps to; position 0 is the beginning.
func resolve(ctx context.Context, q *sqlc.Queries, b sqlc.Branch, position int64) (point, error) {
	if position > 0 {
		return boundaryPoint(ctx, q, b, position)
	}
	return point{number: b.Number}, nil
}

// checkpointBefore returns the newest checkpoint of the task at or before a position of
// the branch, or of those it inherits from, that counts for a time; nil if there is none.
func checkpointBefore(ctx context.Context, q *sqlc.Queries, taskUID string, b sqlc.Branch, position int64, takenBy time.Time) (*history.Checkpoint, error) {
	number, err := q.CheckpointBefore(ctx, sqlc.CheckpointBeforeParams{TaskUid: taskUID, BranchID: b.ID, Upto: position, TakenBy: takenBy})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return readCheckpoint(ctx, q, taskUID, number)
}

func readCheckpoint(ctx context.Context, q *sqlc.Queries, taskUID string, number int32) (*history.Checkpoint, error) {
	row, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: taskUID, Number: number})
	if err != nil {
		return nil, err
	}
	c, err := checkpointOf(row)
	return &c, err
}
