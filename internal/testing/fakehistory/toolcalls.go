package fakehistory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// Call stores a call of a supervisor's tool, tells those who listen, and returns its id.
func (s *Store) Call(task history.Task, tool, arguments string) string {
	s.mu.Lock()
	id := fmt.Sprintf("call-%04d", len(s.calls)+1)
	s.calls = append(s.calls, history.ToolCall{ID: id, Task: task, Attempt: 1, Tool: tool, Arguments: []byte(arguments), Made: time.Now()})
	s.mu.Unlock()
	s.tell(history.ToolCallNotification{Task: task, ID: id})
	return id
}

// TakeBackCalls removes the calls of a task that have no answer, as when its conversation is taken back,
// and tells those who listen.
func (s *Store) TakeBackCalls(task history.Task) {
	s.mu.Lock()
	var ended []string
	for i := range s.calls {
		if c := &s.calls[i]; c.Task == task && c.Answer == nil {
			ended = append(ended, c.ID)
			c.ID, c.Answer = "", &toolcall.Answer{} // the others keep their places
		}
	}
	s.mu.Unlock()
	for _, id := range ended {
		s.tell(history.ToolCallNotification{Task: task, ID: id, Answered: true})
	}
}

// tell notifies those who listen, unless the store is down.
func (s *Store) tell(n history.ToolCallNotification) {
	s.mu.Lock()
	var listeners []func(history.ToolCallNotification)
	if !s.down {
		for _, l := range s.callListeners {
			listeners = append(listeners, l)
		}
	}
	s.mu.Unlock()
	for _, l := range listeners {
		l(n)
	}
}

// ToolCall implements the controllers' stores.
func (s *Store) ToolCall(_ context.Context, taskUID, id string) (history.ToolCall, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.indexOfCall(id)
	if i < 0 || s.calls[i].Task.UID != taskUID {
		return history.ToolCall{}, fmt.Errorf("%w: call %s", history.ErrNotFound, id)
	}
	return s.calls[i], s.unavailable()
}

// PendingToolCalls implements the controllers' stores.
func (s *Store) PendingToolCalls(_ context.Context, after int64, limit int) (pending []history.ToolCall, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = after
	for i := int(after); i < len(s.calls) && len(pending) < limit; i++ {
		if s.calls[i].Answer == nil {
			pending = append(pending, s.calls[i])
			next = int64(i + 1)
		}
	}
	return pending, next, s.unavailable()
}

// NoteToolCall implements the controllers' stores.
func (s *Store) NoteToolCall(_ context.Context, id, note string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	i := s.indexOfCall(id)
	if i < 0 {
		return fmt.Errorf("%w: call %s", history.ErrNotFound, id)
	}
	s.calls[i].Noted = note
	return nil
}

// AnswerToolCall implements the controllers' stores.
func (s *Store) AnswerToolCall(_ context.Context, id string, answer toolcall.Answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	i := s.indexOfCall(id)
	if i < 0 {
		return fmt.Errorf("%w: call %s", history.ErrNotFound, id)
	}
	if s.calls[i].Answer == nil {
		s.calls[i].Answer, s.calls[i].Answered, s.calls[i].Arguments = &answer, time.Now(), nil
	}
	return nil
}

// ListenToolCalls implements the controllers' stores.
func (s *Store) ListenToolCalls(ctx context.Context, callback func(history.ToolCallNotification)) error {
	s.mu.Lock()
	number := s.next
	s.next++
	s.callListeners[number] = callback
	s.mu.Unlock()
	callback(history.ToolCallNotification{})
	<-ctx.Done()
	s.mu.Lock()
	delete(s.callListeners, number)
	s.mu.Unlock()
	return ctx.Err()
}

// indexOfCall returns the index of a call; -1 if there is none. The caller holds mu.
func (s *Store) indexOfCall(id string) int {
	return slices.IndexFunc(s.calls, func(c history.ToolCall) bool { return c.ID == id })
}
