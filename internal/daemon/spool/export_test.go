package spool

import (
	"os"
	"time"
)

// OpenSyncing opens a spool whose files are synced by a function of the test's.
func OpenSyncing(dir string, sync func(*os.File) error) (*Spool, error) { return open(dir, sync) }

// SetClock makes the spool take the time from a function.
func (s *Spool) SetClock(now func() time.Time) { s.now = now }

// SetFree makes the spool ask a function for the room on its volume.
func (s *Spool) SetFree(free func(string) (free, total uint64, err error)) { s.free = free }

// SetMostKept makes the spool keep something of so many older segments.
func (s *Spool) SetMostKept(n int) { s.maxKept = n }
