package spool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/spool"
)

const firstSegment = "00000000000000000001.log"

// TestAFlippedBitCostsOneRecordAtMost flips bits anywhere in the log: everything that is
// read back was written, at most one record is missing, and a loss is never silent.
func TestAFlippedBitCostsOneRecordAtMost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const n = 30
	whole := t.TempDir()
	s := open(t, whole)
	for i := range n {
		appendTexts(t, s, &spool.Mark{Session: "x", Line: int64(i + 1)}, fmt.Sprint(i+1))
	}
	s.Close()
	data, err := os.ReadFile(filepath.Join(whole, firstSegment))
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		dir := t.TempDir()
		damaged := append([]byte(nil), data...)
		damaged[random.IntN(len(data))] ^= 1 << random.IntN(8)
		if err := os.WriteFile(filepath.Join(dir, firstSegment), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		records, err := s.Read(0, 100, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.GetMessage().GetText() != fmt.Sprint(r.GetSequence()) {
				t.Fatalf("record %d says %q", r.GetSequence(), r.GetMessage().GetText())
			}
		}
		if len(records) < n-1 {
			t.Fatalf("%d of %d records are left, want all but one at least", len(records), n)
		}
		if len(records) < n && s.DamagedBytes() == 0 {
			t.Fatalf("%d of %d records are left, but no byte is reported as damaged", len(records), n)
		}
		if s.Last() < n && !s.EndUncertain() {
			t.Fatal("the newest record is lost, and its sequence would be given again")
		}
		s.Close()
	}
}

func TestALostEndIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a")
	path := filepath.Join(dir, firstSegment)
	before, _ := os.Stat(path)
	appendTexts(t, s, nil, "b", "c")
	s.Close()
	data, _ := os.ReadFile(path)
	data[before.Size()+20] ^= 0xff
	os.WriteFile(path, data, 0o600)
	for range 2 { // it is not forgotten by a restart
		s = open(t, dir)
		if s.Last() != 1 || !s.EndUncertain() {
			t.Fatalf("last %d, unsure %v", s.Last(), s.EndUncertain())
		}
		s.Close()
	}
	s = open(t, dir)
	if err := s.SkipTo(3); err != nil {
		t.Fatal(err)
	}
	appendTexts(t, s, nil, "d")
	s.Close()
	s = open(t, dir)
	expect(t, all(t, s, 9), "a", "d")
	if s.Last() != 4 || s.EndUncertain() {
		t.Fatalf("last %d, unsure %v", s.Last(), s.EndUncertain())
	}
}

func TestDamageInAnOlderSegmentIsFoundWhenItIsRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	big := strings.Repeat("x", 1<<20)
	for range 10 {
		appendTexts(t, s, nil, big)
	}
	s.Close()
	path := filepath.Join(dir, firstSegment)
	data, _ := os.ReadFile(path)
	data[1<<20+1<<19] ^= 1
	os.WriteFile(path, data, 0o600)
	s = open(t, dir)
	var sequences []int64
	for after := int64(0); after < 10; after = sequences[len(sequences)-1] {
		records, err := s.Read(after, 100, 10<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			sequences = append(sequences, r.GetSequence())
		}
	}
	if fmt.Sprint(sequences) != "[1 3 4 5 6 7 8 9 10]" || s.DamagedBytes() == 0 {
		t.Fatalf("%v are left, %d damaged bytes", sequences, s.DamagedBytes())
	}
}

// TestTheNewestSegmentIsSyncedBeforeItIsBelieved: a killed daemon may have left data in the
// page cache only.
func TestTheNewestSegmentIsSyncedBeforeItIsBelieved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a")
	s.Close()
	var synced []string
	s, err := spool.OpenSyncing(dir, func(f *os.File) error { synced = append(synced, filepath.Base(f.Name())); return f.Sync() })
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	expect(t, synced, firstSegment)
	failed := errors.New("the disk failed")
	if _, err := spool.OpenSyncing(dir, func(*os.File) error { return failed }); !errors.Is(err, failed) {
		t.Fatalf("what cannot be synced is believed: %v", err)
	}
}

func TestTheMarginIsKept(t *testing.T) {
	tests := []struct {
		name   string
		margin spool.Margin
		later  time.Duration
		free   uint64 // percent
		first  int64
	}{
		{"none", spool.Margin{}, 0, 50, 13},
		{"everything", spool.Margin{Bytes: 1 << 30, Age: time.Hour}, 0, 50, 1},
		{"the newest bytes", spool.Margin{Bytes: 9 << 20, Age: time.Hour}, 0, 50, 5},
		{"not for ever", spool.Margin{Bytes: 1 << 30, Age: time.Hour}, time.Hour, 50, 13},
		{"not on a volume that is nearly full", spool.Margin{Bytes: 1 << 30, Age: time.Hour}, 0, 5, 13},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			now := time.Now()
			s.SetClock(func() time.Time { return now })
			s.SetFree(func(string) (uint64, uint64, error) { return tt.free, 100, nil })
			s.SetMargin(tt.margin)
			for range 14 {
				appendTexts(t, s, nil, strings.Repeat("x", 1<<20))
			}
			for range 2 {
				if err := s.Trim(14); err != nil {
					t.Fatal(err)
				}
				now = now.Add(tt.later)
			}
			if s.First() != tt.first || s.Last() != 14 {
				t.Fatalf("records %d to %d are kept", s.First(), s.Last())
			}
		})
	}
}

// TestAFileThatShrankCostsWhatItHeld: the spool in use continues after it, with sequences
// that were never given before.
func TestAFileThatShrankCostsWhatItHeld(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a")
	path := filepath.Join(dir, firstSegment)
	intact, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	appendTexts(t, s, nil, "b", "c")
	if err := os.Truncate(path, intact.Size()); err != nil {
		t.Fatal(err)
	}
	expect(t, all(t, s, 10), "a")
	appendTexts(t, s, nil, "d")
	expect(t, all(t, s, 10), "a", "d")
	if !s.EndUncertain() {
		t.Error("the next daemon does not ask where the records end")
	}
	s.Close()
	s = open(t, dir)
	expect(t, all(t, s, 10), "a", "d")
	if s.Last() != 4 {
		t.Errorf("it ends with %d", s.Last())
	}
}

// TestTheMarkOutlivesWhatWasLost: the daemon may be killed before it writes the next mark.
func TestTheMarkOutlivesWhatWasLost(t *testing.T) {
	mark := spool.Mark{Session: "x", Line: 7, State: "what is known"}
	kill := func(s *spool.Spool) { s.Close() }
	cut := func(t *testing.T, path string, size int64) {
		t.Helper()
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("with the whole newest segment, while no daemon ran", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		appendTexts(t, s, &mark, "a")
		fill(t, s, 5)
		kill(s)
		cut(t, filepath.Join(dir, "00000000000000000006.log"), 0)
		for range 3 {
			s := open(t, dir)
			if s.Mark() != mark || !s.EndUncertain() {
				t.Errorf("mark %v, unsure %v: the records are lost, and their sequences would be given again", s.Mark(), s.EndUncertain())
			}
			kill(s)
		}
	})
	for name, left := range map[string]bool{"with all of the segment in use": false, "with the end of the segment in use": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, firstSegment)
			s := open(t, dir)
			appendTexts(t, s, &spool.Mark{Session: "x", Line: 3}, "a")
			var size int64
			if left {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				size = info.Size()
			}
			appendTexts(t, s, &mark, "b")
			cut(t, path, size)
			all(t, s, 10) // finds it
			kill(s)
			for range 2 {
				s := open(t, dir)
				if s.Mark() != mark {
					t.Errorf("mark %v", s.Mark())
				}
				kill(s)
			}
		})
	}
}
