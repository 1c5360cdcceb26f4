package spool_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/spool"
)

// small is a volume that may have no space for another file.
type small struct{ full atomic.Bool }

func (v *small) sync(f *os.File) error {
	if v.full.Load() && strings.HasSuffix(f.Name(), ".new") {
		return unix.ENOSPC
	}
	return f.Sync()
}

func (v *small) open(t *testing.T, dir string) *spool.Spool {
	t.Helper()
	s, err := spool.OpenSyncing(dir, v.sync)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.SetFree(func(string) (uint64, uint64, error) { return 50, 100, nil })
	s.SetMargin(spool.Margin{Bytes: 1 << 30, Age: time.Hour})
	return s
}

// fill appends records of which four fill a segment.
func fill(t *testing.T, s *spool.Spool, n int) {
	t.Helper()
	for range n {
		appendTexts(t, s, nil, strings.Repeat("x", 1<<20))
	}
}

// TestATornEndIsCutOffOnAFullVolume: it is on a volume that fills that writes are torn.
func TestATornEndIsCutOffOnAFullVolume(t *testing.T) {
	v, dir := &small{}, t.TempDir()
	s := v.open(t, dir)
	appendTexts(t, s, &spool.Mark{Session: "x", Line: 2}, "a", "b")
	path := filepath.Join(dir, firstSegment)
	whole, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	appendTexts(t, s, &spool.Mark{Session: "x", Line: 3}, "c")
	s.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v.full.Store(true)
	for cut := whole.Size() + 1; cut < int64(len(data)); cut += 5 {
		if err := os.WriteFile(path, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s := v.open(t, dir)
		if s.Last() != 2 || s.Mark().Line != 2 {
			t.Fatalf("cut at %d: the spool ends with record %d and line %d, want 2 and 2", cut, s.Last(), s.Mark().Line)
		}
		if s.EndUncertain() {
			t.Fatalf("cut at %d: a torn write counts as a lost record", cut)
		}
		appendTexts(t, s, nil, fmt.Sprint(cut))
		expect(t, all(t, s, 9), "a", "b", fmt.Sprint(cut))
		s.Close()
	}
}

// TestTheMarginMakesRoomForTheNextSegment: nothing else frees space while nothing is
// shipped.
func TestTheMarginMakesRoomForTheNextSegment(t *testing.T) {
	v := &small{}
	s := v.open(t, t.TempDir())
	fill(t, s, 12)
	if err := s.Trim(12); err != nil || s.First() != 1 {
		t.Fatalf("first %d, %v", s.First(), err)
	}
	v.full.Store(true)
	err := s.Append(nil, record("no room"))
	if !errors.Is(err, unix.ENOSPC) || s.First() != 9 {
		t.Fatalf("first %d, %v", s.First(), err)
	}
	v.full.Store(false)
	appendTexts(t, s, nil, "room")
	if s.Last() != 13 {
		t.Fatalf("last %d", s.Last())
	}
}

// TestWhatTheServerLostAgainIsNoRoom: the server had everything and was restored from an older copy, so
// these records must stay.
func TestWhatTheServerLostAgainIsNoRoom(t *testing.T) {
	v := &small{}
	s := v.open(t, t.TempDir())
	fill(t, s, 12)
	for _, has := range []int64{12, 5} {
		if err := s.Trim(has); err != nil || s.First() != 1 {
			t.Fatalf("first %d, %v", s.First(), err)
		}
	}
	v.full.Store(true)
	if err := s.Append(nil, record("no room")); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if s.First() != 5 {
		t.Fatalf("records %d to %d are kept, and the server has them through 5", s.First(), s.Last())
	}
}

// TestTheSpoolIsUnsureBeforeItsEndIsCutOff: after a kill in between, the spool would seem
// complete.
func TestTheSpoolIsUnsureBeforeItsEndIsCutOff(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a")
	path := filepath.Join(dir, firstSegment)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	appendTexts(t, s, nil, "b")
	s.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[before.Size()+20] ^= 0xff
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	unsure := filepath.Join(dir, "end-lost")
	if err := os.Symlink("nowhere/at-all", unsure); err != nil {
		t.Fatal(err)
	}
	if _, err := spool.Open(dir); err == nil {
		t.Fatal("that the end is lost could not be noted")
	}
	if err := os.Remove(unsure); err != nil {
		t.Fatal(err)
	}
	if s = open(t, dir); !s.EndUncertain() || s.Last() != 1 {
		t.Fatalf("last %d, unsure %v", s.Last(), s.EndUncertain())
	}
}
