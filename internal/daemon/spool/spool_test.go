package spool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func open(t *testing.T, dir string) *spool.Spool {
	t.Helper()
	s, err := spool.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func record(text string) *daemonv1.Record {
	return &daemonv1.Record{Body: &daemonv1.Record_Message{Message: &daemonv1.Message{Text: text}}}
}

func appendTexts(t *testing.T, s *spool.Spool, mark *spool.Mark, texts ...string) {
	t.Helper()
	var records []*daemonv1.Record
	for _, x := range texts {
		records = append(records, record(x))
	}
	if err := s.Append(mark, records...); err != nil {
		t.Fatal(err)
	}
}

// all reads everything from the oldest kept record on, n records at a time.
func all(t *testing.T, s *spool.Spool, n int) []string {
	t.Helper()
	out := []string{}
	after := s.First() - 1
	for {
		records, err := s.Read(after, n, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			return out
		}
		for _, r := range records {
			if r.Sequence <= after {
				t.Fatalf("record %d follows %d", r.Sequence, after)
			}
			after = r.Sequence
			out = append(out, r.GetMessage().GetText())
		}
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, ",") != strings.Join(want, ",") {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAppendReadReopen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if s.Last() != 0 || s.First() != 1 {
		t.Fatalf("a new spool reaches from %d to %d", s.First(), s.Last())
	}
	appendTexts(t, s, nil, "a", "b", "c")
	appendTexts(t, s, &spool.Mark{Session: "x", Line: 7, State: "s\x00t"}, "d")
	for n := 1; n < 6; n++ {
		expect(t, all(t, s, n), "a", "b", "c", "d")
	}
	if _, err := spool.Open(dir); !errors.Is(err, spool.ErrLocked) {
		t.Fatalf("a second holder gets %v", err)
	}
	s.Close()
	s = open(t, dir)
	appendTexts(t, s, nil, "e")
	expect(t, all(t, s, 2), "a", "b", "c", "d", "e")
	if m := s.Mark(); m != (spool.Mark{Session: "x", Line: 7, State: "s\x00t"}) {
		t.Fatalf("mark %v", m)
	}
	if got, _ := s.Read(s.Last(), 10, 100); len(got) != 0 {
		t.Fatalf("after the last there is %v", got)
	}
}

func TestMaxBytesGivesAtLeastOne(t *testing.T) {
	s := open(t, t.TempDir())
	appendTexts(t, s, nil, strings.Repeat("x", 1000), "b")
	got, err := s.Read(0, 10, 10)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d records, %v", len(got), err)
	}
}

// TestTornTail truncates the file at every byte of the last batch: the whole batch is gone,
// and everything before it is there.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, &spool.Mark{Session: "x", Line: 1}, "a")
	path := filepath.Join(dir, "00000000000000000001.log")
	before, _ := os.Stat(path)
	appendTexts(t, s, &spool.Mark{Session: "x", Line: 2}, "b", "c")
	s.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := before.Size(); cut < int64(len(whole)); cut++ {
		for _, fill := range []string{"", strings.Repeat("\x00", 50)} {
			if err := os.WriteFile(path, append(whole[:cut:cut], fill...), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, dir)
			expect(t, all(t, s, 9), "a")
			if s.Mark().Line != 1 {
				t.Fatalf("mark %v", s.Mark())
			}
			appendTexts(t, s, nil, "z")
			expect(t, all(t, s, 9), "a", "z")
			s.Close()
		}
	}
}

func TestDamageIsPutAside(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a")
	path := filepath.Join(dir, "00000000000000000001.log")
	before, _ := os.Stat(path)
	appendTexts(t, s, nil, "b")
	appendTexts(t, s, nil, "c")
	s.Close()
	data, _ := os.ReadFile(path)
	data[before.Size()+10] ^= 0xff
	os.WriteFile(path, data, 0o600)
	s = open(t, dir)
	expect(t, all(t, s, 9), "a", "c")
	if s.DamagedBytes() == 0 || s.EndUncertain() {
		t.Fatalf("%d damaged bytes, unsure %v", s.DamagedBytes(), s.EndUncertain())
	}
	if m, _ := filepath.Glob(filepath.Join(dir, "damaged-*")); len(m) != 1 {
		t.Fatalf("put aside: %v", m)
	}
}

func TestRotateAndTrim(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	big := strings.Repeat("x", 1<<20)
	for i := range 14 {
		appendTexts(t, s, &spool.Mark{Session: "x", Line: int64(i + 1)}, big)
	}
	segments := func() int { m, _ := filepath.Glob(filepath.Join(dir, "*.log")); return len(m) }
	if segments() != 4 {
		t.Fatalf("%d segments", segments())
	}
	if err := s.Trim(5); err != nil {
		t.Fatal(err)
	}
	if s.First() != 5 || len(all(t, s, 3)) != 10 {
		t.Fatalf("trimmed to %d", s.First())
	}
	if r, err := s.Read(1, 1, 1); err != nil || r[0].GetSequence() != 5 {
		t.Fatalf("after a trimmed record: %v, %v", r, err)
	}
	if err := s.Trim(14); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, dir)
	if s.Last() != 14 || s.Mark().Line != 14 {
		t.Fatalf("after reopening: last %d, mark %v", s.Last(), s.Mark())
	}
}

func TestReset(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	appendTexts(t, s, nil, "a", "b")
	for range 2 {
		if err := s.Reset(40, 40); err != nil {
			t.Fatal(err)
		}
	}
	appendTexts(t, s, nil, "c")
	s.Close()
	s = open(t, dir)
	expect(t, all(t, s, 9), "c")
	if s.Last() != 41 {
		t.Fatalf("last %d", s.Last())
	}
	if err := s.Reset(3, 3); err != nil {
		t.Fatal(err)
	}
	appendTexts(t, s, nil, "d")
	expect(t, all(t, s, 9), "d")
	if m, _ := filepath.Glob(filepath.Join(dir, "aside-*")); len(m) != 1 {
		t.Fatalf("what the server does not have is put aside: %v", m)
	}
}

func TestWait(t *testing.T) {
	s := open(t, t.TempDir())
	done := make(chan error, 1)
	go func() { done <- s.Wait(context.Background(), 0) }()
	appendTexts(t, s, nil, "a")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestKilled kills a writer at random instants: every record it reported as on disk is
// there, in order, and none is there twice.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("SPOOL_WRITER"); dir != "" {
		write(dir)
		return
	}
	dir := t.TempDir()
	acknowledged := int64(0)
	for i := range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=TestKilled$")
		cmd.Env = append(os.Environ(), "SPOOL_WRITER="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Duration(20+7*i)*time.Millisecond, func() { cmd.Process.Kill() })
		said, _ := io.ReadAll(out)
		cmd.Wait()
		if lines := strings.Fields(string(said)); len(lines) > 1 {
			fmt.Sscan(lines[len(lines)-2], &acknowledged) // the last may be torn
		}
	}
	s := open(t, dir)
	if s.Last() < acknowledged || acknowledged == 0 {
		t.Fatalf("%d were acknowledged, %d are there", acknowledged, s.Last())
	}
	for i, text := range all(t, s, 100) {
		if text != fmt.Sprint(i+1) {
			t.Fatalf("record %d says %s", i+1, text)
		}
	}
	if s.Mark().Line != s.Last() {
		t.Fatalf("the mark is at %d, the records at %d", s.Mark().Line, s.Last())
	}
}

// write appends numbers for ever and prints which of them are on disk.
func write(dir string) {
	s, err := spool.Open(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		n := s.Last()
		mark := spool.Mark{Session: "w", Line: n + 2}
		if err := s.Append(&mark, record(fmt.Sprint(n+1)), record(fmt.Sprint(n+2))); err != nil {
			os.Exit(1)
		}
		fmt.Println(n + 2)
	}
}

func TestASpoolThatAnotherProcessHasTakenIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	old, err := spool.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil { // a lock that keeps nobody out
		t.Fatal(err)
	}
	newer, err := spool.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	if err := newer.Append(nil, &daemonv1.Record{}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"append": old.Append(nil, &daemonv1.Record{}), "trim": old.Trim(1), "reset": old.Reset(7, 7), "look": old.CheckOwner(),
	} {
		if !errors.Is(err, spool.ErrTaken) || !errors.Is(err, spool.ErrBroken) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if records, err := newer.Read(0, 10, 1<<20); err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
}
