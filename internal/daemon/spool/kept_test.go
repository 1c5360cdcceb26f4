package spool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func move(id string) *daemonv1.Record {
	return &daemonv1.Record{Body: &daemonv1.Record_Move{Move: &daemonv1.Move{OperationId: id}}}
}

// taken is a checkpoint that changed so many files.
func taken(number int64, files int) *daemonv1.Record {
	c := &daemonv1.CheckpointRecord{Number: number}
	for n := range files {
		c.Changes = append(c.Changes, &daemonv1.FileChange{Path: fmt.Sprintf("a/folder/file-%d", n), Action: "Added"})
	}
	return &daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: c}}
}

// sequences lists the records that can be read, as "sequence body".
func sequences(t *testing.T, s *spool.Spool) []string {
	t.Helper()
	var out []string
	for after := int64(0); ; {
		records, err := s.Read(after, 2, 10<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			return out
		}
		for _, r := range records {
			what := "message"
			switch {
			case r.GetMove() != nil:
				what = "move " + r.GetMove().GetOperationId()
			case r.GetCheckpoint() != nil:
				what = fmt.Sprintf("checkpoint %d, %d files", r.GetCheckpoint().GetNumber(), len(r.GetCheckpoint().GetChanges()))
			}
			after = r.GetSequence()
			out = append(out, fmt.Sprint(after, " ", what))
		}
	}
}

// TestCheckpointsAndMovesAreKeptForGood: what people go back to must be told to a
// server that lost more than the margin holds.
func TestCheckpointsAndMovesAreKeptForGood(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, r := range []*daemonv1.Record{taken(1, 2), move("Rewind/1"), taken(2, 500)} {
		fill(t, s, 5)
		if err := s.Append(nil, r); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, s, 4)
	for range 2 {
		if err := s.Trim(s.Last()); err != nil {
			t.Fatal(err)
		}
		if s.First() < 15 {
			t.Fatalf("first %d", s.First())
		}
		got := sequences(t, s)
		expect(t, got[:3], "6 checkpoint 1, 2 files", "12 move Rewind/1", "18 checkpoint 2, 0 files")
		if r, err := s.Record(12); err != nil || r.GetMove() == nil || r.GetId() == 0 {
			t.Fatalf("%v, %v", r, err)
		}
		s.Close()
		s = open(t, dir)
	}
	if err := s.Reset(30); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.kept")); len(left) != 0 || len(sequences(t, s)) != 0 {
		t.Fatalf("the spool was emptied, and holds %v", left)
	}
}

// TestAFullVolumeKeepsCheckpointsToo: the segment that goes makes the room.
func TestAFullVolumeKeepsCheckpointsToo(t *testing.T) {
	dir := t.TempDir()
	s, err := spool.OpenSyncing(dir, func(f *os.File) error {
		_, gone := os.Stat(filepath.Join(dir, firstSegment))
		if strings.HasSuffix(f.Name(), ".kept.new") && gone == nil {
			return unix.ENOSPC
		}
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Append(nil, taken(1, 1)); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 5)
	if err := s.Trim(s.Last()); err != nil {
		t.Fatal(err)
	}
	if got := sequences(t, s); s.First() != 6 || got[0] != "1 checkpoint 1, 1 files" {
		t.Fatalf("first %d, %v", s.First(), got)
	}
}
