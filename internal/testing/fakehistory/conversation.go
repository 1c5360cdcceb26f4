package fakehistory

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// Say records messages of a task's agent.
func (s *Store) Say(t history.Task, texts ...string) {
	s.change(t, func(task *task) { task.said = append(task.said, texts...) })
}

// TaskConversation returns the last messages of a task's agent.
func (s *Store) TaskConversation(_ context.Context, query history.ConversationQuery) (page history.EntryPage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return page, err
	}
	task := s.find(history.Key{Namespace: query.Namespace, UID: query.UID})
	if task == nil {
		return page, fmt.Errorf("%w: the task %s", history.ErrNotFound, query.UID)
	}
	for i, text := range task.said[max(0, len(task.said)-query.Last):] {
		page.Entries = append(page.Entries, history.Entry{Position: int64(i + 1), Message: conversation.Message{Role: conversation.RoleAssistant, Text: text}})
	}
	return page, nil
}
