package fakehistory

import (
	"cmp"
	"context"
	"slices"

	"github.com/clew-dev/clew/internal/history"
)

// Adoption implements the controllers' stores. Of several former tasks it names any.
func (s *Store) Adoption(_ context.Context, t history.Task) (history.Adoption, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if former, ok := s.adopted[t.UID]; ok {
		return history.Adoption{Former: former, Done: true, Start: s.specs[t.Key()].Start, Phase: s.specs[t.Key()].Membership.Phase}, s.unavailable()
	}
	former := ""
	for uid, k := range s.tasks {
		if uid != t.UID && s.tasks[t.UID] == nil && k.state.Namespace == t.Namespace && k.state.Name == t.Name &&
			(former == "" || k.order > s.tasks[former].order) {
			former = uid
		}
	}
	kept := s.specs[history.Key{Namespace: t.Namespace, UID: former}]
	return history.Adoption{Former: former, Start: kept.Start, Phase: kept.Membership.Phase}, s.unavailable()
}

// Adopt implements the controllers' stores.
func (s *Store) Adopt(_ context.Context, t history.Task, former string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tasks[former]
	if err := s.unavailable(); err != nil || k == nil {
		return cmp.Or(err, history.ErrNotFound)
	}
	delete(s.tasks, former)
	from, to := history.Key{Namespace: t.Namespace, UID: former}, t.Key()
	if kept, ok := s.specs[from]; ok {
		if own, has := s.specs[to]; has {
			own.Start = kept.Start
			kept = own
		}
		s.specs[to] = kept
		delete(s.specs, from)
	}
	k.state.Task, s.tasks[t.UID], s.adopted[t.UID] = t, k, former
	k.awaitNames()
	for i := range k.checkpoints {
		k.checkpoints[i].TaskUID = t.UID
	}
	return nil
}

// GoBackToFormer restores the store to an older copy, in which a task has yet to adopt its history.
func (s *Store) GoBackToFormer(t history.Task) {
	s.mu.Lock()
	former, k := s.adopted[t.UID], s.tasks[t.UID]
	delete(s.tasks, t.UID)
	delete(s.adopted, t.UID)
	k.state.Task.UID, s.tasks[former] = former, k
	for i := range k.checkpoints {
		k.checkpoints[i].TaskUID = former
	}
	s.mu.Unlock()
	s.notify(history.Notification{})
}

// ContinuedBy implements the controllers' stores.
func (s *Store) ContinuedBy(_ context.Context, former history.Key) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := former.UID
	for again := true; again; {
		again = false
		for uid, of := range s.adopted {
			if of == now {
				now, again = uid, true
			}
		}
	}
	if now == former.UID {
		now = ""
	}
	return now, s.unavailable()
}

// FormerTasks implements the controllers' stores.
func (s *Store) FormerTasks(_ context.Context, taskUID string) (formers []history.FormerTask, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for former := s.adopted[taskUID]; former != ""; former = s.adopted[former] {
		formers = append(formers, history.FormerTask{UID: former})
	}
	slices.Reverse(formers)
	return formers, s.unavailable()
}
