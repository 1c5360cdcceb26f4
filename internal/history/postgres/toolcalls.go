package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
	"github.com/clew-dev/clew/internal/toolcall"
)

// toolCallChannel is the LISTEN/NOTIFY channel for calls of tools. The payload is the call's id, its
// task's UID, namespace and name, and whether it was made or has ended, separated by spaces.
const toolCallChannel = "clew_tool_calls"

// What the payload of a notification ends with. A call that was taken back has ended as one that was
// answered.
const (
	callMade     = "made"
	callAnswered = "answered"
)

const (
	// maxUnanswered bounds the calls of a task that wait to be carried out, each of which has its
	// arguments.
	maxUnanswered = 20
	// maxAnswered and maxAnsweredBytes bound the answered calls of a task that are kept.
	maxAnswered      = 1000
	maxAnsweredBytes = 32 << 20
	// maxDeliveredAtOnce bounds the ids of delivered answers that come with a call.
	maxDeliveredAtOnce = 100
)

// lostAnswer takes the place of an answer that has reached the agent, and that the database has lost
// since.
const lostAnswer = "The call was carried out before, and you have had the answer. Clew's history, restored from an older copy since, has it no more."

// CallTool returns the stored call that a wish of an agent is: the one with its key, or, without a key,
// one with the same tool and arguments whose answer is not known to have reached the agent, and that was
// made in the conversation as it stands, or else a new one. Listeners are notified of one that has no
// answer, each time. It notes which answers have reached the agent before that.
// Errors: history.ErrFenced; history.ErrNotFound if no attempt has begun; history.ErrExists if the key
// is that of a call of another tool, or with other arguments; history.ErrUnanswered if too many calls of
// the task are; history.ErrLimitReached if a new one exceeds a limit of the task or its namespace (see
// Limits); history.ErrInvalid; history.ErrUnavailable.
func (s *Store) CallTool(ctx context.Context, task history.Task, attempt int64, call history.NewToolCall) (found history.ToolCall, err error) {
	doing := fmt.Sprintf("store a call of %s by the task %s/%s", call.Tool, task.Namespace, task.Name)
	if len(call.Arguments) > toolcall.MaxArguments || len(call.Delivered) > maxDeliveredAtOnce {
		return found, fmt.Errorf("%w: %s: it has %d bytes of arguments and %d delivered calls, and may have %d and %d",
			history.ErrInvalid, doing, len(call.Arguments), len(call.Delivered), toolcall.MaxArguments, maxDeliveredAtOnce)
	}
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		if err := deliver(ctx, q, l.row.ID, call.Delivered); err != nil {
			return err
		}
		digest := toolcall.Digest(v1alpha1.AgentTool(call.Tool), call.Arguments)
		row, err := sameCall(ctx, q, l.row.ID, call.Key, digest)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			row, err = s.addToolCall(ctx, q, l, attempt, call, digest)
		case err == nil && !row.Answered.Valid: // whoever carries it out may have missed it, or rest after a failure
			err = notifyToolCall(ctx, q, row.ID, l.task, callMade)
		}
		if err != nil {
			return err
		}
		found = toolCallOf(row, l.task)
		return nil
	})
	return found, err
}

// deliver notes that the answers to calls of a task have reached its agent.
func deliver(ctx context.Context, q *sqlc.Queries, taskID int32, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return q.DeliverToolCalls(ctx, sqlc.DeliverToolCallsParams{Lost: lostAnswer, TaskID: taskID, Ids: ids})
}

// sameCall finds the call that a wish was stored as; pgx.ErrNoRows if it is a new one.
func sameCall(ctx context.Context, q *sqlc.Queries, taskID int32, key, digest string) (sqlc.ToolCall, error) {
	if key == "" {
		return q.UndeliveredToolCall(ctx, sqlc.UndeliveredToolCallParams{TaskID: taskID, Digest: digest})
	}
	row, err := q.ToolCallByKey(ctx, sqlc.ToolCallByKeyParams{TaskID: taskID, CallKey: key})
	if err == nil && row.Digest != digest {
		err = fmt.Errorf("%w: a call of %s with the id %q and other arguments", history.ErrExists, row.Tool, key)
	}
	return row, err
}

// endToolCalls takes back the calls of a conversation that is taken back: what was called there and has no
// answer takes effect no more, and whoever calls a tool from here on has not called it before. One with
// a key may be made again, under the same id. The calls are those of the attempts before the one that goes
// back, whose agent starts after that: its own may be known already when the move is sent again.
func (l *locked) endToolCalls(ctx context.Context, q *sqlc.Queries, attempt int64) error {
	withdrawn, err := q.WithdrawToolCalls(ctx, sqlc.WithdrawToolCallsParams{TaskID: l.row.ID, Before: attempt})
	if err != nil {
		return err
	}
	l.withdrawn = nil
	for _, call := range withdrawn {
		l.withdrawn = append(l.withdrawn, call.Tool)
		if err := notifyToolCall(ctx, q, call.ID, l.task, callAnswered); err != nil {
			return err
		}
	}
	slices.Sort(l.withdrawn)
	if len(withdrawn) > 0 {
		if err := q.ChargeToolCalls(ctx, l.row.ID); err != nil {
			return err
		}
	}
	return q.EndToolCalls(ctx, sqlc.EndToolCallsParams{TaskID: l.row.ID, Before: attempt})
}

// addToolCall stores a new call of a task whose row is locked, and drops old ones.
func (s *Store) addToolCall(ctx context.Context, q *sqlc.Queries, l locked, attempt int64, call history.NewToolCall, digest string) (row sqlc.ToolCall, err error) {
	unanswered, err := q.UnansweredToolCalls(ctx, l.row.ID)
	if err != nil {
		return row, err
	}
	if unanswered >= maxUnanswered {
		return row, fmt.Errorf("%w: %d calls of the task %s/%s", history.ErrUnanswered, unanswered, l.task.Namespace, l.task.Name)
	}
	if err := s.admitToolCall(ctx, q, l, recordCost+int64(len(call.Arguments))); err != nil {
		return row, err
	}
	id, err := newToolCallID(ctx, q, l.task.UID, call)
	if err != nil {
		return row, err
	}
	row, err = q.InsertToolCall(ctx, sqlc.InsertToolCallParams{
		Attempt: attempt, TaskID: l.row.ID, ID: id, Tool: call.Tool, CallKey: call.Key,
		Digest: digest, Arguments: call.Arguments,
	})
	if err != nil {
		return row, err
	}
	if err := q.DropOldToolCalls(ctx, sqlc.DropOldToolCallsParams{TaskID: l.row.ID, Most: maxAnswered, MostBytes: maxAnsweredBytes}); err != nil {
		return row, err
	}
	if err := q.ChargeToolCalls(ctx, l.row.ID); err != nil {
		return row, err
	}
	return row, notifyToolCall(ctx, q, row.ID, l.task, callMade)
}

// admitToolCall refuses a call of so many bytes that exceeds a limit. What is answered is stored in any
// case, and counted.
func (s *Store) admitToolCall(ctx context.Context, q *sqlc.Queries, l locked, bytes int64) error {
	allowed, err := allowanceOf(ctx, q, l.task)
	if err != nil {
		return err
	}
	reached := s.taskReached(l.row.StoredBytes+allowed.used.EventBytes+allowed.used.CallBytes+bytes, 0)
	if reached == "" {
		reached, err = s.namespaceReached(ctx, q, l.task.Namespace, bytes, 0)
	}
	if err == nil && reached != "" {
		err = fmt.Errorf("%w: %s", history.ErrLimitReached, reached)
	}
	return err
}

// newToolCallID returns the id of a new call. A wish that was another call before, whose answer the agent
// has, is one that its daemon could not forget in time.
func newToolCallID(ctx context.Context, q *sqlc.Queries, taskUID string, call history.NewToolCall) (string, error) {
	if call.Key != "" || call.WishID == "" {
		return toolCallID(taskUID, call.Key), nil
	}
	id := toolCallID(taskUID, "wish "+call.WishID) // no key has a space
	known, err := q.KnowsToolCall(ctx, id)
	if known {
		id = toolCallID(taskUID, "")
	}
	return id, err
}

// toolCallID returns an id for a call. That of one with a key follows from it, so that the operations of
// a call that is made again after it was lost, with an older copy of the database, have the same ids.
func toolCallID(taskUID, key string) string {
	if key == "" {
		return strings.ToLower(rand.Text())
	}
	sum := sha256.Sum256([]byte(taskUID + "\n" + key))
	return hex.EncodeToString(sum[:16])
}

// ToolCall returns a call of a task; history.ErrNotFound if there is none.
func (s *Store) ToolCall(ctx context.Context, taskUID, id string) (history.ToolCall, error) {
	row, err := s.read().ToolCall(ctx, sqlc.ToolCallParams{ID: id, TaskUid: taskUID})
	return toolCallOf(row.ToolCall, history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}),
		wrap(err, "read the call "+id+" of the task with UID "+taskUID)
}

// PendingToolCalls returns the first calls, up to limit, that are not answered, oldest first, after a
// place: 0, or what the previous page returned as next. Each may have 160 KiB of arguments.
func (s *Store) PendingToolCalls(ctx context.Context, after int64, limit int) (calls []history.ToolCall, next int64, err error) {
	rows, err := s.read().PendingToolCalls(ctx, sqlc.PendingToolCallsParams{After: after, UpToRows: int32(limit)})
	next = after
	for _, row := range rows {
		calls = append(calls, toolCallOf(row.ToolCall, history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}))
		next = row.ToolCall.Ordinal
	}
	return calls, next, wrap(err, "list the calls of tools that are not answered")
}

// NoteToolCall notes what is about to be done for a call that has no answer. Errors: history.ErrNotFound if
// there is no such call; history.ErrUnavailable.
func (s *Store) NoteToolCall(ctx context.Context, id, note string) error {
	return s.write(ctx, "note what is about to be done for the call "+id, func(q *sqlc.Queries) error {
		noted, err := q.NoteToolCall(ctx, sqlc.NoteToolCallParams{Noted: note, ID: id})
		if err == nil && noted == 0 {
			err = pgx.ErrNoRows
		}
		return err
	})
}

// AnswerToolCall answers a call, and drops its arguments. A second answer changes nothing. A longer text
// than an answer may have is cut. Errors: history.ErrNotFound if there is no such call, as after the
// history of its task was deleted; history.ErrInvalid if the data is too long; history.ErrUnavailable.
func (s *Store) AnswerToolCall(ctx context.Context, id string, answer toolcall.Answer) error {
	doing := "store the answer to the call " + id
	if len(answer.Data) > toolcall.MaxData {
		return fmt.Errorf("%w: %s: its data has %d bytes, and may have %d", history.ErrInvalid, doing, len(answer.Data), toolcall.MaxData)
	}
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		row, err := q.AnswerToolCall(ctx, sqlc.AnswerToolCallParams{
			ID: id, Refused: answer.Refused, Answer: clip.Bytes(clean(answer.Text), toolcall.MaxText), Data: answer.Data,
		})
		if errors.Is(err, pgx.ErrNoRows) {
			known, err := q.KnowsToolCall(ctx, id)
			if err == nil && !known {
				err = pgx.ErrNoRows
			}
			return err
		}
		if err != nil {
			return err
		}
		if err := q.ChargeToolCalls(ctx, row.ID); err != nil {
			return err
		}
		return notifyToolCall(ctx, q, id, history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}, callAnswered)
	})
}

func toolCallOf(row sqlc.ToolCall, task history.Task) history.ToolCall {
	call := history.ToolCall{ID: row.ID, Task: task, Attempt: row.Attempt, Tool: row.Tool, Arguments: row.Arguments, Noted: row.Noted, Made: row.Made}
	if row.Answered.Valid {
		call.Answered = row.Answered.Time
		call.Answer = &toolcall.Answer{Refused: row.Refused, Text: row.Answer, Data: row.Data}
	}
	return call
}

// ListenToolCalls calls back for each call that is made or answered, until ctx ends, and returns ctx's
// error. It does so as Listen does for changes of tasks: after each connect, and when the tables have been
// replaced, it calls back with an empty notification.
func (s *Store) ListenToolCalls(ctx context.Context, callback func(history.ToolCallNotification)) error {
	return s.keepListening(ctx, "lost the connection that listens for calls of tools; reconnecting", func(heard func()) error {
		return s.listen(ctx, toolCallChannel, func(payload string) {
			heard()
			callback(toolCallNotification(payload))
		})
	})
}

// notifyToolCall sends a notification about a call when the transaction commits.
func notifyToolCall(ctx context.Context, q *sqlc.Queries, id string, task history.Task, what string) error {
	return q.NotifyToolCall(ctx, strings.Join([]string{id, task.UID, task.Namespace, task.Name, what}, " "))
}

// toolCallNotification parses a payload written by notifyToolCall. One of another form becomes an empty
// notification, which makes listeners look at everything.
func toolCallNotification(payload string) history.ToolCallNotification {
	fields := fieldsOf(payload, 5, 1)
	if fields == nil || !slices.Contains([]string{callMade, callAnswered}, fields[4]) {
		return history.ToolCallNotification{}
	}
	return history.ToolCallNotification{
		ID: fields[0], Task: history.Task{UID: fields[1], Namespace: fields[2], Name: fields[3]}, Answered: fields[4] == callAnswered,
	}
}
