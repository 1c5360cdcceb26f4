package fakehistory

import (
	"context"
	"slices"

	"github.com/clew-dev/clew/internal/history"
)

// KeepSpec implements the controllers' stores.
func (s *Store) KeepSpec(_ context.Context, task history.Key, kept history.KeptSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	if before := s.specs[task].Start; before.TaskUID != "" {
		kept.Start = before
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

// ForkedTasks implements the controllers' stores.
func (s *Store) ForkedTasks(_ context.Context, namespace, fork string) (tasks []history.ForkedTask, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, kept := range s.specs {
		if k := s.tasks[key.UID]; k != nil && key.Namespace == namespace && kept.Start.Fork == fork {
			tasks = append(tasks, history.ForkedTask{Name: k.state.Name, UID: key.UID, Start: kept.Start, OperatingMode: kept.OperatingMode})
		}
	}
	slices.SortFunc(tasks, func(a, b history.ForkedTask) int { return s.tasks[b.UID].order - s.tasks[a.UID].order })
	return tasks, s.unavailable()
}

// ForgetSpec forgets the spec of a task, as if it had ended before specs were kept.
func (s *Store) ForgetSpec(task history.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.specs, task)
}

// ForgetOperatingMode forgets whether a task was to run, as if it had ended before that was kept.
func (s *Store) ForgetOperatingMode(task history.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.specs[task]
	kept.OperatingMode = ""
	s.specs[task] = kept
}
