package fakehistory

import "github.com/clew-dev/clew/internal/history"

// AddHoldEnd records how a hold of the task's agent ended.
func (s *Store) AddHoldEnd(t history.Task, end history.HoldEnd) {
	s.change(t, func(k *task) { k.state.Holds = append(k.state.Holds, end) })
}
