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

// noProblems fails the test when output cannot be recorded.
type noProblems struct{ t *testing.T }

func (p noProblems) Recorded(err error) {
	if err != nil {
		p.t.Errorf("output cannot be recorded: %v", err)
	}
}

// recorder returns a recorder of Claude Code's output whose files are in folder.
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
		Problems: noProblems{t}, Log: logr.Discard(),
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

// recordedTexts returns for each record of the spool its text, or the id of its call.
func recordedTexts(t *testing.T, s *spool.Spool) (texts []string) {
	t.Helper()
	records, err := s.Read(0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		texts = append(texts, r.GetMessage().GetText()+r.GetMessage().GetToolCall().GetId())
	}
	return texts
}

func TestToolCallsAreReturnedBeforeTheirLineIsRecorded(t *testing.T) {
	r, s := recorder(t, t.TempDir())
	calls, err := r.Add(t.Context(), attach(t, r, 0), wire.Line{Number: 1, Data: []byte(callsATool)})
	if err != nil {
		t.Fatal(err)
	}
	want := []record.Call{{ID: "call-1", Name: "Bash", Input: `{"command":"rm -r build"}`}}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if recorded := recordedTexts(t, s); recorded != nil {
		t.Errorf("recorded before Commit: %q", recorded)
	}
}

func TestALineThatIsSentAgainIsRecordedOnce(t *testing.T) {
	folder := t.TempDir()
	for round := range 2 { // in the second round the daemon was killed and started again
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
		if diff := cmp.Diff([]string{"Warning: no terminal\n", "call-1"}, recordedTexts(t, s)); diff != "" {
			t.Errorf("records in round %d (-want +got):\n%s", round+1, diff)
		}
		if last, _ := r.LastOutput(); round == 0 && time.Since(last) > time.Minute {
			t.Errorf("the last line was added at %s, want just now", last)
		}
		s.Close()
	}
}

func TestAConnectionThatWasReplacedAddsNothing(t *testing.T) {
	r, s := recorder(t, t.TempDir())
	old := attach(t, r, 0)
	attach(t, r, 0)
	if _, err := r.Add(t.Context(), old, wire.Line{Number: 1, Data: []byte("late")}); err == nil {
		t.Error("the recorder accepted a line of a connection that was replaced")
	}
	if _, err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if recorded := recordedTexts(t, s); recorded != nil {
		t.Errorf("recorded %q, want nothing", recorded)
	}
}
