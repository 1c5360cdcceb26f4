package namespaced

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// CallTool returns the stored call that a wish of an agent is.
func (s *Store) CallTool(ctx context.Context, task history.Task, attempt int64, call history.NewToolCall) (history.ToolCall, error) {
	task, err := s.task(ctx, task)
	if err != nil {
		return history.ToolCall{}, err
	}
	found, err := s.keyed.CallTool(ctx, task, attempt, call)
	found.Task = named(found.Task)
	return found, err
}

// ToolCall returns a call of a task.
func (s *Store) ToolCall(ctx context.Context, taskUID, id string) (history.ToolCall, error) {
	found, err := s.keyed.ToolCall(ctx, taskUID, id)
	found.Task = named(found.Task)
	return found, err
}

// PendingToolCalls returns calls that are not answered. The task of one may be that of an earlier
// namespace of the name: its UID says so.
func (s *Store) PendingToolCalls(ctx context.Context, after int64, limit int) (calls []history.ToolCall, next int64, err error) {
	calls, next, err = s.keyed.PendingToolCalls(ctx, after, limit)
	for i := range calls {
		calls[i].Task = named(calls[i].Task)
	}
	return calls, next, err
}

// NoteToolCall notes what is about to be done for a call.
func (s *Store) NoteToolCall(ctx context.Context, id, note string) error {
	return s.keyed.NoteToolCall(ctx, id, note)
}

// AnswerToolCall answers a call.
func (s *Store) AnswerToolCall(ctx context.Context, id string, answer toolcall.Answer) error {
	return s.keyed.AnswerToolCall(ctx, id, answer)
}

// ListenToolCalls calls callback for each call that is made or answered.
func (s *Store) ListenToolCalls(ctx context.Context, callback func(history.ToolCallNotification)) error {
	return s.keyed.ListenToolCalls(ctx, func(n history.ToolCallNotification) {
		n.Task = named(n.Task)
		callback(n)
	})
}
