package namespaced

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
)

// MadeBy returns the call that made a task.
func (s *Store) MadeBy(ctx context.Context, task history.Key) (*history.MadeBy, error) {
	keyed, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	by, err := s.keyed.MadeBy(ctx, keyed)
	if by != nil {
		by.Task = named(by.Task)
	}
	return by, err
}
