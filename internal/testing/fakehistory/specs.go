package fakehistory

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
)

// KeepSpec implements the controllers' stores.
func (s *Store) KeepSpec(_ context.Context, task history.Key, kept history.KeptSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	s.specs[task] = kept
	return nil
}

// KeptSpec implements the controllers' stores.
func (s *Store) KeptSpec(_ context.Context, task history.Key) (history.KeptSpec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, ok := s.specs[task]
	if err := s.unavailable(); err != nil || ok {
		return kept, err
	}
	return kept, history.ErrNotFound
}

// ForgetSpec forgets the spec of a task, as if it had ended before specs were kept.
func (s *Store) ForgetSpec(task history.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.specs, task)
}
