package record_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// unhindered fails the test if it is told that something keeps output from being recorded.
type unhindered struct{ t *testing.T }

func (u unhindered) Recorded(err error) {
	if err != nil {
		u.t.Error(err)
	}
}

// recorder is one of Claude Code's output on the given volume.
func recorder(t *testing.T, folder string) (*record.Recorder, *spool.Spool) {
	t.Helper()
	s, err := spool.Open(filepath.Join(folder, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	adapter, err := agent.For(v1alpha1.AgentClaudeCode)
	if err != nil {
		t.Fatal(err)
	}
	return record.New(record.Config{
		Spool: s, Sync: func() error { return nil }, Attempt: 1,
		NewParser: func(known agentstate.State) agent.Parser {
			return adapter.NewParser(agent.ParserOptions{Session: known.Session, Outcome: known.Outcome, Run: "1"})
		},
		Price: func(tokens agent.Tokens) *daemonv1.Usage { return tokens.Usage(nil) }, LongPath: filepath.Join(folder, "long-line"),
		Problems: unhindered{t}, Log: logr.Discard(),
	}), s
}

const callsATool = `{"type":"assistant","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"call-1","name":"Bash","input":{"command":"rm -r build"}}]},"session_id":"s"}`

func attach(t *testing.T, r *record.Recorder, recorded int64) (epoch int) {
	t.Helper()
	epoch, line, err := r.Attach("session", 1)
	if err != nil {
		t.Fatal(err)
	}
	if line != recorded {
		t.Fatalf("%d lines are recorded, want %d", line, recorded)
	}
	return epoch
}

// said are the records of the spool: of a call its id, of plain output its text.
func said(t *testing.T, s *spool.Spool) (said []string) {
	t.Helper()
	records, err := s.Read(0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		said = append(said, r.GetMessage().GetText()+r.GetMessage().GetToolCall().GetId())
	}
	return said
}

func TestALineSaysWhichToolsItCallsBeforeItIsRecorded(t *testing.T) {
	r, s := recorder(t, t.TempDir())
	calls, err := r.Add(t.Context(), attach(t, r, 0), wire.Line{Number: 1, Data: []byte(callsATool)})
	if err != nil {
		t.Fatal(err)
	}
	want := []record.Call{{ID: "call-1", Name: "Bash", Input: `{"command":"rm -r build"}`}}
	if d := cmp.Diff(want, calls); d != "" {
		t.Error(d)
	}
	if recorded := said(t, s); recorded != nil {
		t.Errorf("recorded before Commit: %q", recorded)
	}
}

func TestALineThatComesAgainIsRecordedOnce(t *testing.T) {
	folder := t.TempDir()
	for round := range 2 { // the second one is that of a daemon that was killed
		r, s := recorder(t, folder)
		if err := r.Replay(); err != nil {
			t.Fatal(err)
		}
		recorded := int64(2 * round)
		epoch := attach(t, r, recorded)
		for n, line := range []string{"Warning: no terminal", callsATool} {
			if _, err := r.Add(t.Context(), epoch, wire.Line{Number: int64(n + 1), Data: []byte(line)}); err != nil {
				t.Fatal(err)
			}
		}
		line, err := r.Flush(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if line != 2 {
			t.Errorf("flushed through line %d, want 2", line)
		}
		if d := cmp.Diff([]string{"Warning: no terminal\n", "call-1"}, said(t, s)); d != "" {
			t.Errorf("in round %d: %s", round+1, d)
		}
		if heard, _ := r.LastHeard(); round == 0 && time.Since(heard) > time.Minute {
			t.Errorf("a line was last heard at %s", heard)
		}
		s.Close()
	}
}

func TestAConnectionThatWasReplacedAddsNothing(t *testing.T) {
	r, s := recorder(t, t.TempDir())
	old := attach(t, r, 0)
	attach(t, r, 0)
	if _, err := r.Add(t.Context(), old, wire.Line{Number: 1, Data: []byte("late")}); err == nil {
		t.Error("a line of a connection that was replaced was taken")
	}
	if _, err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if recorded := said(t, s); recorded != nil {
		t.Errorf("recorded: %q", recorded)
	}
}
