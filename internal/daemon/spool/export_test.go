package spool

import (
	"os"
	"time"
)

// OpenSyncing opens a spool that syncs files with the given function.
func OpenSyncing(dir string, sync func(*os.File) error) (*Spool, error) { return open(dir, sync) }

// SetClock makes the spool use now as its clock.
func (s *Spool) SetClock(now func() time.Time) { s.now = now }

// SetFree makes the spool use free to find the free space of its volume.
func (s *Spool) SetFree(free func(string) (free, total uint64, err error)) { s.free = free }

// SetMaxKept sets the maximum number of files of permanent records.
func (s *Spool) SetMaxKept(n int) { s.maxKept = n }
