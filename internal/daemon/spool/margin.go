package spool

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Margin bounds the acknowledged records that are kept, by size and by age, whichever is
// reached first. The zero value keeps none.
type Margin struct {
	Bytes int64
	Age   time.Duration
}

// scarce is the share of the volume, as a divisor, below which free space is too scarce for
// a margin.
const scarce = 10

// SetMargin sets the margin.
func (s *Spool) SetMargin(m Margin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.margin = m
}

// Trim records that the server has everything through the given sequence and nothing beyond
// it, whatever was reported before, and drops what lies outside the margin, in whole
// segments. On a volume that is nearly full the entire margin is dropped.
func (s *Spool) Trim(through int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.CheckOwner(); err != nil {
		return err
	}
	now := s.now()
	var kept int64
	drop := 0 // segments before this index are dropped
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

// acknowledged returns the number of segments that contain nothing after sequence through;
// the newest one never counts.
func (s *Spool) acknowledged(through int64) int {
	n := slices.IndexFunc(s.segments[1:], func(next *segment) bool { return next.first > through+1 })
	if n < 0 {
		return len(s.segments) - 1
	}
	return n
}

// drop removes the oldest n segments, except their permanent records.
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

// withRoom calls do, which needs space. If there is none, it drops the acknowledged
// segments older than kept, and calls do again.
func (s *Spool) withRoom(kept *segment, do func() error) error {
	err := do()
	if noRoom(err) && s.broken == nil && s.dropAcknowledged(kept) {
		err = do()
	}
	return err
}

func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// dropAcknowledged drops the acknowledged segments older than kept, and reports whether
// that freed space.
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
