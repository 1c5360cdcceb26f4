package spool

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Margin says how much is kept of what the server has acknowledged, whichever
// is reached first. The zero value keeps nothing.
type Margin struct {
	Bytes int64
	Age   time.Duration
}

// scarce is the share of the volume, as a divisor, below which free space is too
// precious for a margin.
const scarce = 10

// Keep sets the margin.
func (s *Spool) Keep(m Margin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.margin = m
}

// Trim says that the server has everything through the given sequence, and nothing
// beyond, whatever was said before: what lies outside of the margin goes, whole
// segments at a time. On a volume that is nearly full all of it goes.
func (s *Spool) Trim(through int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.Owned(); err != nil {
		return err
	}
	now := s.now()
	var kept int64
	drop := 0 // segments before this index go
	full := s.nearlyFull()
	has := s.acknowledged(through)
	for _, seg := range s.segments[has:] {
		seg.acknowledged = time.Time{}
	}
	for i := has - 1; i >= 0; i-- {
		seg := s.segments[i]
		if seg.acknowledged.IsZero() {
			seg.acknowledged = now
		}
		kept += seg.size
		if full || kept > s.margin.Bytes || now.Sub(seg.acknowledged) >= s.margin.Age {
			drop = max(drop, i+1)
		}
	}
	return s.drop(drop)
}

// acknowledged is how many segments hold nothing that comes after a sequence;
// the newest one never counts.
func (s *Spool) acknowledged(through int64) int {
	n := slices.IndexFunc(s.segments[1:], func(next *segment) bool { return next.first > through+1 })
	if n < 0 {
		return len(s.segments) - 1
	}
	return n
}

// drop removes the oldest n segments, but for what is kept of them for good.
func (s *Spool) drop(n int) error {
	for range n {
		if err := s.dropOldest(); err != nil {
			return err
		}
	}
	return s.forgetOldest()
}

func (s *Spool) dropOldest() error {
	seg := s.segments[0]
	lasting, err := lastingOf(seg)
	if err == nil {
		err = s.keep(seg, lasting)
	}
	if noRoom(err) {
		return s.keepInPlace(seg, lasting)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(seg.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("trim the spool: %w", err)
	}
	s.segments = s.segments[1:]
	return nil
}

// withRoom does something that needs room. If there is none the margin is given up
// for it, as far as it is older than the segment that is kept.
func (s *Spool) withRoom(kept *segment, do func() error) error {
	err := do()
	if noRoom(err) && s.broken == nil && s.dropAcknowledged(kept) {
		err = do()
	}
	return err
}

func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// dropAcknowledged gives up the margin, and says whether that made room.
func (s *Spool) dropAcknowledged(kept *segment) bool {
	n := slices.IndexFunc(s.segments, func(seg *segment) bool { return seg == kept || seg.acknowledged.IsZero() })
	return n > 0 && s.drop(n) == nil
}

func (s *Spool) nearlyFull() bool {
	free, total, err := s.free(s.dir)
	return err == nil && free < total/scarce
}

func freeSpace(dir string) (free, total uint64, err error) {
	var st unix.Statfs_t
	err = unix.Statfs(dir, &st)
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), err
}
