package fakehistory

import (
	"context"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/internal/history"
)

// Snapshot implements the controllers' stores. The digest is derived from the position.
func (s *Store) Snapshot(_ context.Context, task history.Key, query history.SnapshotQuery) (history.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.Snapshot{}, err
	}
	k := s.find(task)
	if k == nil {
		return history.Snapshot{}, history.ErrNotFound
	}
	if query.Checkpoint > int64(len(k.checkpoints)) || query.Position > k.state.Position.Position {
		return history.Snapshot{}, history.ErrNotFound
	}
	if k.corrupted != nil {
		return history.Snapshot{}, k.corrupted
	}
	snapshot := history.Snapshot{
		Kind: history.SnapshotManual, Position: k.state.Position, Totals: k.state.Totals, Checkpoint: int64(len(k.checkpoints)),
	}
	switch {
	case query.Checkpoint > 0:
		c := k.checkpoints[query.Checkpoint-1]
		snapshot.Kind, snapshot.Position, snapshot.Checkpoint = history.SnapshotCheckpoint, c.Position, c.Number
	case query.Position > 0:
		snapshot.Position.Position = query.Position
	}
	snapshot.Digest = fmt.Sprintf("digest-%d-%d", query.Checkpoint, query.Position)
	if query.Position == 0 {
		snapshot.Digest = fmt.Sprintf("digest-%d", query.Checkpoint)
	}
	return snapshot, nil
}

// AddSnapshot records another automatic snapshot of the task and assigns its ordinal.
func (s *Store) AddSnapshot(t history.Task, snapshot history.Snapshot) history.Snapshot {
	s.change(t, func(k *task) {
		snapshot.Ordinal, snapshot.Kind = int64(len(k.snapshots)+1), history.SnapshotAutomatic
		k.snapshots = append(k.snapshots, snapshot)
	})
	return snapshot
}

// SetCorrupted makes Snapshot return an error that wraps history.ErrCorrupted; an empty
// why resets that.
func (s *Store) SetCorrupted(t history.Task, why string) {
	s.change(t, func(k *task) {
		k.corrupted = nil
		if why != "" {
			k.corrupted = fmt.Errorf("%w: %s", history.ErrCorrupted, why)
		}
	})
}

// SnapshotsAfter implements the controllers' stores.
func (s *Store) SnapshotsAfter(_ context.Context, taskUID string, afterOrdinal int64, limit int) ([]history.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return nil, err
	}
	k := s.tasks[taskUID]
	if k == nil || afterOrdinal >= int64(len(k.snapshots)) {
		return nil, nil
	}
	rows := k.snapshots[afterOrdinal:]
	return slices.Clone(rows[:min(limit, len(rows))]), nil
}
