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

// taken is the record of a checkpoint with some changed files.
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
			case r.GetToolRequest() != nil:
				what = "request " + r.GetToolRequest().GetId()
			case r.GetToolRequestEnd() != nil:
				what = "end of request " + r.GetToolRequestEnd().GetId()
			}
			after = r.GetSequence()
			out = append(out, fmt.Sprint(after, " ", what))
		}
	}
}

// TestCheckpointsAndMovesAreKeptForGood: a server that lost more than the margin needs the
// records of what people can restore.
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
		r, err := s.Record(12)
		if err != nil {
			t.Fatal(err)
		}
		if r.GetMove() == nil {
			t.Fatalf("record 12 is not the move: %v", r)
		}
		if r.GetId() == 0 {
			t.Fatalf("the kept record has lost its id: %v", r)
		}
		s.Close()
		s = open(t, dir)
	}
	if err := s.Reset(30, 30); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.kept")); len(left) != 0 || len(sequences(t, s)) != 0 {
		t.Fatalf("the spool was emptied, and holds %v", left)
	}
}

// TestRequestsAreKeptForGood: a person may answer a call long after its record was stored, and a server that
// is given the request again has to know whether it still waits.
func TestRequestsAreKeptForGood(t *testing.T) {
	s := open(t, t.TempDir())
	asks := func(id string) *daemonv1.Record {
		return &daemonv1.Record{Body: &daemonv1.Record_ToolRequest{ToolRequest: &daemonv1.ToolRequest{Id: id}}}
	}
	ends := &daemonv1.Record{Body: &daemonv1.Record_ToolRequestEnd{ToolRequestEnd: &daemonv1.ToolRequestEnd{Id: "1-a"}}}
	if err := s.Append(nil, asks("1-a"), asks("1-b"), ends); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 9)
	if err := s.Trim(s.Last()); err != nil {
		t.Fatal(err)
	}
	if s.First() < 4 {
		t.Fatalf("nothing was dropped: first %d", s.First())
	}
	expect(t, sequences(t, s)[:3], "1 request 1-a", "2 request 1-b", "3 end of request 1-a")
}

// TestAFullVolumeKeepsCheckpointsToo: nothing frees space for them, since the agent, which
// has filled the volume, takes all space that becomes free. The daemon may be killed at any
// time.
func TestAFullVolumeKeepsCheckpointsToo(t *testing.T) {
	dir, left := t.TempDir(), t.TempDir()
	copies := 0
	s, err := spool.OpenSyncing(dir, func(f *os.File) error {
		if strings.HasSuffix(f.Name(), ".kept.new") {
			return unix.ENOSPC
		}
		if strings.HasSuffix(f.Name(), ".kept") {
			copies++
			if err := os.CopyFS(filepath.Join(left, fmt.Sprint(copies)), os.DirFS(dir)); err != nil {
				t.Error(err)
			}
		}
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	fill(t, s, 2)
	if err := s.Append(nil, taken(1, 1)); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 1)
	if err := s.Append(nil, taken(2, 500)); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 4)
	if err := s.Trim(s.Last()); err != nil {
		t.Fatal(err)
	}
	kept := strings.TrimSuffix(firstSegment, ".log") + ".kept"
	info, err := os.Stat(filepath.Join(dir, kept))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 4<<10 {
		t.Fatalf("the file of kept records has %d bytes", info.Size())
	}
	if s.First() != 7 {
		t.Fatalf("the spool begins with record %d, want 7", s.First())
	}
	want := []string{"3 checkpoint 1, 1 files", "5 checkpoint 2, 0 files"}
	expect(t, sequences(t, s)[:2], want...)
	if copies < 2 {
		t.Fatalf("a kill at %d places was tried", copies)
	}
	for n := range copies {
		dir := filepath.Join(left, fmt.Sprint(n+1))
		expect(t, sequences(t, open(t, dir))[:2], want...)
		if info, err := os.Stat(filepath.Join(dir, kept)); err != nil || info.Size() > 4<<10 {
			t.Fatalf("killed at place %d: %v, %v", n+1, info, err)
		}
	}
}

// TestASegmentThatAKillKeptWholeIsMadeSmaller: it has the name of a file of permanent
// records, but the whole content.
func TestASegmentThatAKillKeptWholeIsMadeSmaller(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Append(nil, taken(1, 1)); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 5)
	s.Close()
	path := filepath.Join(dir, firstSegment)
	kept := strings.TrimSuffix(path, ".log") + ".kept"
	if err := os.Rename(path, kept); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	expect(t, sequences(t, s), "1 checkpoint 1, 1 files", "6 message")
	if info, err := os.Stat(kept); err != nil || info.Size() > 1<<10 {
		t.Fatalf("the kept segment was not reduced: %v, %v", info, err)
	}
}

func TestASpoolThatIsEmptiedKeepsNothing(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Append(nil, taken(1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.SkipTo(9); err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(9); err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(9, 9); err != nil {
		t.Fatal(err)
	}
	expect(t, sequences(t, s))
}

// TestOfAgesAgoNothingIsKept: otherwise an agent could make the spool slower without end.
func TestOfAgesAgoNothingIsKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.SetMaxKept(2)
	for number := range int64(4) {
		if err := s.Append(nil, taken(number+1, 1)); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 4)
	}
	if err := s.Append(nil, move("Rewind/1")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Trim(s.Last()); err != nil {
			t.Fatal(err)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "*.kept")); len(files) != 2 {
			t.Fatalf("%d files are kept", len(files))
		}
		expect(t, sequences(t, s), "11 checkpoint 3, 1 files", "16 checkpoint 4, 1 files", "21 move Rewind/1")
		s.Close()
		s = open(t, dir)
		s.SetMaxKept(2)
	}
}
