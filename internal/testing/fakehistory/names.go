package fakehistory

import (
	"cmp"
	"context"

	"github.com/clew-dev/clew/internal/history"
)

// NameCheckpoint implements the controllers' stores.
func (s *Store) NameCheckpoint(_ context.Context, t history.Key, named history.NamedCheckpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(t)
	if err := s.unavailable(); err != nil || k == nil {
		return cmp.Or(err, history.ErrNotFound)
	}
	k.names[named.Name] = named
	return nil
}

// ForgetCheckpointName implements the controllers' stores.
func (s *Store) ForgetCheckpointName(_ context.Context, t history.Key, named history.NamedCheckpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(t)
	if err := s.unavailable(); err != nil || k == nil {
		return cmp.Or(err, history.ErrNotFound)
	}
	if k.names[named.Name].UID == named.UID {
		delete(k.names, named.Name)
	}
	if _, another := k.names[named.Name]; !another {
		for i, c := range k.checkpoints {
			if c.Number == named.Number && c.RequestedByName == named.Name {
				k.checkpoints[i].RequestedByName = ""
			}
		}
	}
	return nil
}

// Named returns the checkpoint that an object of a name stands for.
func (s *Store) Named(t history.Key, name string) history.NamedCheckpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.find(t); k != nil {
		return k.names[name]
	}
	return history.NamedCheckpoint{}
}

// LoseNames forgets all names, as a store does that was restored from an older copy.
func (s *Store) LoseNames(t history.Key) {
	s.mu.Lock()
	if k := s.find(t); k != nil {
		clear(k.names)
		for i := range k.checkpoints {
			k.checkpoints[i].RequestedByName = ""
		}
	}
	s.mu.Unlock()
	s.notify(history.Notification{})
}

// ClaimCheckpoint implements the controllers' stores.
func (s *Store) ClaimCheckpoint(_ context.Context, t history.Key, name, object string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(t)
	if err := s.unavailable(); err != nil || k == nil {
		return 0, cmp.Or(err, history.ErrNotFound)
	}
	named, ok := k.names[name]
	if !ok || named.UID != "" && named.UID != object {
		return 0, history.ErrNotFound
	}
	named.UID = object
	k.names[name] = named
	return named.Number, nil
}

// awaitNames makes all names of checkpoints wait for an object, as the adoption of a history does.
func (k *task) awaitNames() {
	for _, c := range k.checkpoints {
		if c.RequestedByName != "" && k.names[c.RequestedByName].Number < c.Number {
			k.names[c.RequestedByName] = history.NamedCheckpoint{Name: c.RequestedByName, Number: c.Number}
		}
	}
	for name, named := range k.names {
		named.UID = ""
		k.names[name] = named
	}
}
