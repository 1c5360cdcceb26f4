package fakehistory

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
)

// SetRewind records a rewind of the task.
func (s *Store) SetRewind(t history.Task, rewind history.Rewind) {
	s.change(t, func(k *task) {
		if k.rewinds == nil {
			k.rewinds = map[string]history.Rewind{}
		}
		k.rewinds[rewind.ID] = rewind
	})
}

// Rewind implements the controllers' stores.
func (s *Store) Rewind(_ context.Context, task history.Key, id string) (history.Rewind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.Rewind{}, err
	}
	if k := s.find(task); k != nil {
		if found, ok := k.rewinds[id]; ok {
			return found, nil
		}
	}
	return history.Rewind{ID: id}, nil
}
