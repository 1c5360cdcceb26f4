package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// MoveConversation goes back to the turn boundary of a checkpoint of the same task, or of
// a position on its active branch. In one transaction, it creates a branch that begins
// there, makes it the active one and records the operation. Checkpoint 0 is the beginning
// of the task's first branch: before the first message, including the prompt, or, for a
// task forked with its conversation, after the last inherited message. After a move
// there, the prompt is said again. Anew, the branch begins with no message at all. Calls of tools that
// have no answer are taken back with the conversation. A completed operation is not repeated; its
// position is returned. Errors: history.ErrNotFound if the task, the checkpoint or the position is
// unknown, history.ErrFenced, history.ErrLimitReached, history.ErrUnavailable.
func (s *Store) MoveConversation(ctx context.Context, task history.Task, attempt int64, op history.MoveOperation) (history.Position, error) {
	var result history.Position
	doing := fmt.Sprintf("move the conversation of the task %s/%s", task.Namespace, task.Name)
	err := s.write(ctx, doing, func(q *sqlc.Queries) error {
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		done, err := l.doneMove(ctx, q, op.ID)
		if err != nil {
			return err
		}
		if done != nil {
			result = *done
			return nil
		}
		if err := s.admitMove(ctx, q, &l, op); err != nil {
			return err
		}
		result, err = l.move(ctx, q, attempt, op)
		if err != nil {
			return err
		}
		if err := l.recordOperation(ctx, q, attempt, op, result, time.Now()); err != nil {
			return err
		}
		l.row.Attempt = max(l.row.Attempt, attempt)
		return l.save(ctx, q)
	})
	return result, err
}

// doneMove returns where a completed operation left the conversation; nil if it is not
// completed.
func (l *locked) doneMove(ctx context.Context, q *sqlc.Queries, id string) (*history.Position, error) {
	done, err := q.Operation(ctx, sqlc.OperationParams{TaskUid: l.task.UID, OperationID: clean(id)})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && done.Refused != "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &history.Position{Branch: done.Branch, Position: done.Position, ToolCalls: done.ToolCalls}, nil
}

// moveOrRefuse carries out the move of a record, unless it is completed. A move to an
// unknown place is recorded as refused: later records continue from the current position.
func (l *locked) moveOrRefuse(ctx context.Context, q *sqlc.Queries, attempt int64, r history.Record) error {
	op := *r.Move
	if op.AfterSequence >= r.Sequence {
		op.AfterSequence = 0 // of a history that was replaced
	}
	if r.Attempt > 0 && r.Attempt < attempt {
		attempt = r.Attempt
	}
	done, err := l.doneMove(ctx, q, op.ID)
	if err != nil || done != nil {
		return err
	}
	to, err := l.move(ctx, q, attempt, op)
	if errors.Is(err, history.ErrNotFound) || errors.Is(err, history.ErrInvalid) || errors.Is(err, history.ErrLimitReached) {
		return l.refuseMove(ctx, q, attempt, r, err)
	}
	if err != nil {
		return err
	}
	return l.recordOperation(ctx, q, attempt, op, to, plausibleTime(r.Time))
}

// refuseMove records that a move could not be carried out, and adds an event.
func (l *locked) refuseMove(ctx context.Context, q *sqlc.Queries, attempt int64, r history.Record, why error) error {
	before, err := l.head()
	if err != nil {
		return err
	}
	at, message := position(l.branch, before), clip.Marked(clean(why.Error()), maxRefusal)
	err = q.NoteOperation(ctx, sqlc.NoteOperationParams{
		TaskUid: l.task.UID, OperationID: clean(r.Move.ID), Attempt: attempt, Checkpoint: r.Move.Checkpoint, AskedPosition: r.Move.Position,
		Reason: clean(r.Move.Reason), Branch: at.Branch, Position: at.Position, ToolCalls: at.ToolCalls, Refused: message,
	})
	if err != nil {
		return err
	}
	var row sqlc.InsertEventsParams
	appendEvent(&row, history.Event{
		ID: history.RecordEventID(l.task.UID, r.Sequence), Task: l.task, Time: plausibleTime(r.Time),
		Type: history.EventTypeRewind, Reason: reasonMoveRefused, Actor: "clew", Attempt: attempt, Checkpoint: r.Move.Checkpoint,
		Message: "the conversation could not be moved and stays where it is: " + message,
	}, nil)
	_, err = q.InsertEvents(ctx, row)
	return err
}

// move creates the new branch in an attempt, unless the operation keeps the position.
func (l *locked) move(ctx context.Context, q *sqlc.Queries, attempt int64, op history.MoveOperation) (history.Position, error) {
	before, err := l.head()
	if err != nil || op.KeepPosition {
		return position(l.branch, before), err
	}
	target, err := l.movePoint(ctx, q, op)
	if errors.Is(err, pgx.ErrNoRows) {
		return history.Position{}, fmt.Errorf("%w: the conversation cannot go back to checkpoint %d of the task %s/%s",
			history.ErrNotFound, op.Checkpoint, l.task.Namespace, l.task.Name)
	}
	if err != nil {
		return history.Position{}, err
	}
	b, err := branchAt(ctx, q, l.task.UID, target, op.Reason)
	if err != nil {
		return history.Position{}, err
	}
	l.branch, l.row.ActiveBranch = b, b.ID
	if err := l.endToolCalls(ctx, q, attempt); err != nil {
		return history.Position{}, err
	}
	after, err := logOf(b)
	return position(b, after), err
}

// movePoint returns the point that the operation leads to.
func (l *locked) movePoint(ctx context.Context, q *sqlc.Queries, op history.MoveOperation) (point, error) {
	switch {
	case op.Anew:
		return point{}, nil
	case op.Position != 0 && op.AfterSequence > 0:
		return l.recordPoint(ctx, q, op.AfterSequence)
	case op.Position != 0:
		return boundaryPoint(ctx, q, l.branch, op.Position)
	case op.Checkpoint != 0:
		p, err := checkpointPoint(ctx, q, l.task.UID, op.Checkpoint)
		if errors.Is(err, pgx.ErrNoRows) && op.AfterSequence > 0 {
			return l.recordPoint(ctx, q, op.AfterSequence)
		}
		return p, err
	}
	return l.beginning(ctx, q)
}

// recordPoint returns the point of the active branch after one of the task's records. If
// that record is lost, it is the point after the message that reports the gap. If the
// task has started over since, it is the point after the new prompt, which nobody would
// say again.
func (l *locked) recordPoint(ctx context.Context, q *sqlc.Queries, sequence int64) (point, error) {
	position, err := q.PositionAfter(ctx, sqlc.PositionAfterParams{BranchID: l.branch.ID, TaskUid: l.task.UID, Sequence: sequence})
	if err != nil {
		return point{}, err
	}
	if position == 0 {
		first, err := q.FirstOwnMessage(ctx, sqlc.FirstOwnMessageParams{BranchID: l.branch.ID, TaskUid: l.task.UID})
		if errors.Is(err, pgx.ErrNoRows) || err == nil && (first.Role != string(conversation.RoleUser) || !first.StartedOver) {
			return l.beginning(ctx, q)
		}
		if err != nil {
			return point{}, err
		}
		position = first.Position
	}
	return boundaryPoint(ctx, q, l.branch, position)
}

// placesOf returns the points, by checkpoint number, at which those of a batch's
// checkpoints were taken that are sent again and not stored yet. Finding a point is
// costly, so it is done only for checkpoints that will be stored.
func (l *locked) placesOf(ctx context.Context, q *sqlc.Queries, b *batch) (map[int32]point, error) {
	places := maps.Clone(b.placed)
	if len(places) > 0 {
		known, err := q.KnownCheckpoints(ctx, sqlc.KnownCheckpointsParams{TaskID: b.id, Numbers: slices.Sorted(maps.Keys(places))})
		if err != nil {
			return nil, err
		}
		for _, number := range known {
			delete(places, number)
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	branch, err := q.Branch(ctx, l.branch.ID) // as the batch left it
	if err != nil {
		return nil, err
	}
	at := locked{task: l.task, branch: branch}
	bySequence, byNumber := map[int64]point{}, make(map[int32]point, len(places))
	for number, sequence := range places {
		p, ok := bySequence[sequence]
		if !ok {
			if p, err = at.recordPoint(ctx, q, sequence); err != nil {
				return nil, err
			}
			bySequence[sequence] = p
		}
		byNumber[number] = p
	}
	return byNumber, nil
}

// place assigns a checkpoint to a point instead of the head.
func place(row *sqlc.InsertCheckpointParams, p point) {
	if p.branch == 0 {
		return // there is no position before the first message
	}
	row.BranchID, row.Position, row.Turn = p.branch, p.position, 0
	row.InputTokens, row.OutputTokens, row.CostMicroUsd = p.totals.InputTokens, p.totals.OutputTokens, p.totals.CostMicroUSD
}

// beginning returns the point at which the task's own conversation begins.
func (l *locked) beginning(ctx context.Context, q *sqlc.Queries) (point, error) {
	first, err := q.BranchByNumber(ctx, sqlc.BranchByNumberParams{TaskUid: l.task.UID, Number: 1})
	if err != nil {
		return point{}, err
	}
	p := basePoint(first)
	p.branch = first.ParentID.Int64
	return p, nil
}

// recordOperation records that the operation is completed, and adds an event.
func (l *locked) recordOperation(ctx context.Context, q *sqlc.Queries, attempt int64, op history.MoveOperation, to history.Position, at time.Time) error {
	details, err := detailsOf(op.Rewound)
	if err != nil {
		return err
	}
	err = q.NoteOperation(ctx, sqlc.NoteOperationParams{
		TaskUid: l.task.UID, OperationID: clean(op.ID), Attempt: attempt, Checkpoint: op.Checkpoint, AskedPosition: op.Position, Reason: clean(op.Reason),
		Branch: to.Branch, Position: to.Position, ToolCalls: to.ToolCalls, Details: details,
	})
	if err != nil {
		return err
	}
	if op.KeepPosition {
		return nil
	}
	_, err = q.InsertEvents(ctx, moveEvent(l.task, attempt, op, to, at, l.withdrawn))
	return err
}

func moveEvent(task history.Task, attempt int64, op history.MoveOperation, to history.Position, at time.Time, withdrawn []string) sqlc.InsertEventsParams {
	var row sqlc.InsertEventsParams
	message := fmt.Sprintf("the conversation continues from message %d, on %s (%s)", to.Position, to.Branch, clean(op.Reason))
	if to.Position == 0 {
		message = fmt.Sprintf("the conversation starts over, on %s (%s)", to.Branch, clean(op.Reason))
	}
	appendEvent(&row, history.Event{
		ID: history.OperationEventID(task.UID, op.ID), Task: task, Time: at,
		Type: history.EventTypeRewind, Reason: reasonConversationMoved, Actor: "clew",
		Message: message + withdrawal(withdrawn), Attempt: attempt, Checkpoint: op.Checkpoint,
	}, nil)
	return row
}

// withdrawal returns the end of a sentence about calls of these tools that were taken back; "" for none.
func withdrawal(tools []string) string {
	switch n := len(tools); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; the call of %s that had no answer is withdrawn", tools[0])
	default:
		return fmt.Sprintf("; the %d calls of tools that had no answer are withdrawn: %s", n, strings.Join(tools, ", "))
	}
}
