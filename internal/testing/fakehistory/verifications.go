package fakehistory

import (
	"context"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

// SetIntegrity records the outcome of a verification of a checkpoint, by which a request for it is carried
// out.
func (s *Store) SetIntegrity(t history.Task, number int64, i history.Integrity) {
	s.change(t, func(k *task) {
		i.Requests = k.checkpoints[number-1].Integrity.Requests
		if !i.Requests.Pending.IsZero() {
			i.Requests = history.Requests{Answered: i.Requests.Pending}
		}
		k.checkpoints[number-1].Integrity = i
	})
}

// ReportDamage implements the controllers' stores.
func (s *Store) ReportDamage(_ context.Context, key history.Key, number int64, damage string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	k := s.find(key)
	if k == nil || number > int64(len(k.checkpoints)) {
		return history.ErrNotFound
	}
	k.checkpoints[number-1].Integrity = history.Integrity{Damage: damage, Found: time.Now(), Verified: time.Now()}
	return nil
}

// RequestVerification implements the controllers' stores. A test verifies with SetIntegrity.
func (s *Store) RequestVerification(_ context.Context, key history.Key, number int64, since time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	k := s.find(key)
	if k == nil || number > int64(len(k.checkpoints)) {
		return history.ErrNotFound
	}
	k.requested = append(k.requested, number)
	k.checkpoints[number-1].Integrity.Requests.Pending = since
	return nil
}

// DamagedObjects implements the controllers' stores.
func (s *Store) DamagedObjects(_ context.Context, taskUID string) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return nil, err
	}
	var damaged []int64
	for _, k := range s.tasks {
		for _, c := range k.checkpoints {
			if k.state.Task.UID == taskUID && c.Integrity.Damage != "" && !c.Integrity.MessagesOnly && !c.Lost {
				damaged = append(damaged, c.Number)
			}
		}
	}
	return damaged, nil
}

// RequestedVerifications returns the checkpoints of a task that were requested to be verified.
func (s *Store) RequestedVerifications(t history.Task) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.find(t.Key()); k != nil {
		return slices.Clone(k.requested)
	}
	return nil
}

// UnpushedCheckpoints implements the controllers' stores.
func (s *Store) UnpushedCheckpoints(_ context.Context, taskUID string) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return nil, err
	}
	var unpushed []int64
	for _, k := range s.tasks {
		for _, c := range k.checkpoints {
			if k.state.Task.UID == taskUID && !c.Durable && !c.Lost {
				unpushed = append(unpushed, c.Number)
			}
		}
	}
	return unpushed, nil
}

// VerifiedTasks implements the controllers' stores.
func (s *Store) VerifiedTasks(_ context.Context, _ time.Time, each func([]history.VerifiedTask) error) error {
	s.mu.Lock()
	var all []history.VerifiedTask
	err := s.unavailable()
	for _, k := range s.tasks {
		t := history.VerifiedTask{Task: k.state.Task}
		for _, c := range k.checkpoints {
			switch {
			case c.Integrity.Damage != "":
				t.Damaged = append(t.Damaged, c.Number)
			case !c.Integrity.Verified.IsZero():
				t.Intact = append(t.Intact, c.Number)
			}
		}
		all = append(all, t)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return each(all)
}
