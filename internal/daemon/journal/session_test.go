package journal_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func record(id string) *daemonv1.AgentSession {
	return &daemonv1.AgentSession{Agent: "ClaudeCode", Id: id, Version: "1", Model: "m", Counted: &daemonv1.Usage{InputTokens: 7}}
}

func say(t *testing.T, s *journal.State, m *daemonv1.AgentSession) {
	t.Helper()
	if err := s.SetAgentSession(m); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, s.AgentSession.Message(), protocmp.Transform()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
}

// expectSession compares everything about the session except its record.
func expectSession(t *testing.T, s *journal.State, want journal.AgentSession) {
	t.Helper()
	want.Record = s.AgentSession.Record
	if d := cmp.Diff(want, *s.AgentSession); d != "" {
		t.Fatalf("session (-want +got):\n%s", d)
	}
}

// TestAgentSession follows the sessions of one task's agent.
func TestAgentSession(t *testing.T) {
	s := journal.State{Attempt: 1, Start: &journal.Start{Attempt: 1, Memory: "New", Position: 1}}
	if s.RunningSession() != nil {
		t.Fatal("a session is running where there is none")
	}
	if s.UsableSession() != nil {
		t.Fatal("a session is usable where there is none")
	}
	if s.AgentSession.Message() != nil {
		t.Fatal("a session is known where there is none")
	}
	if err := s.SetAgentSession(nil); err != nil || s.AgentSession != nil {
		t.Fatal("no session is noted as one")
	}
	say(t, &s, record("a"))
	if !s.SameSession(record("a")) || s.SameSession(record("b")) {
		t.Fatal("the same session is not told from another")
	}
	expectSession(t, &s, journal.AgentSession{Attempt: 1, Begun: 1, Known: journal.KnownThrough{Position: 1}})
	if id := s.RunningSession().GetId(); id != "a" {
		t.Fatalf("the running session is %q, want a", id)
	}

	// The next attempt resumes it, and the agent gives it another name.
	s.Attempt, s.Start = 2, &journal.Start{Attempt: 2, Memory: "Session", Position: 9}
	s.AgentSession.Asked = &journal.KnownThrough{Position: 9, Results: 3}
	if s.RunningSession().GetId() != "a" {
		t.Fatal("the resumed session is not the running one")
	}
	say(t, &s, record("b"))
	expectSession(t, &s, journal.AgentSession{Attempt: 2, Begun: 1, Known: journal.KnownThrough{Position: 1}, Asked: &journal.KnownThrough{Position: 9, Results: 3}})

	// The session is refused: checkpoints no longer contain it.
	s.SessionRefused = "b"
	if s.UsableSession() != nil {
		t.Fatal("a refused session goes into checkpoints")
	}
	s.Attempt, s.Start = 3, &journal.Start{Attempt: 3, Memory: "Rendered", Position: 12}
	if s.RunningSession() != nil {
		t.Fatal("a session that is not resumed is the running one")
	}
	say(t, &s, record("c"))
	expectSession(t, &s, journal.AgentSession{Attempt: 3, Begun: 12, Known: journal.KnownThrough{Position: 12}})
	if s.UsableSession() == nil {
		t.Fatal("the new session does not go into checkpoints")
	}
}

// TestSessionsAreBounded: the agent may report anything.
func TestSessionsAreBounded(t *testing.T) {
	s := journal.State{Attempt: 1}
	long := strings.Repeat("ä", 1<<20)
	if err := s.SetAgentSession(&daemonv1.AgentSession{Id: long}); err != nil || s.AgentSession != nil {
		t.Fatalf("%v, %+v", err, s.AgentSession)
	}
	m := &daemonv1.AgentSession{Id: "a", Model: long, Version: long}
	if err := s.SetAgentSession(m); err != nil {
		t.Fatal(err)
	}
	if n := len(s.AgentSession.Record); n > 1000 {
		t.Fatalf("%d bytes are kept of a session", n)
	}
	if !s.SameSession(m) {
		t.Fatal("the bounded session is taken for another")
	}
}

// TestRestoredSession: files that were restored twice without a start between are as old as
// the first time.
func TestRestoredSession(t *testing.T) {
	s := journal.State{Attempt: 1}
	s.RestoredAt(4)
	say(t, &s, record("a"))
	s.RestoreSession(s.AgentSession)
	s.RestoredAt(5)
	again := s.AgentSession
	s.RestoreSession(again)
	s.RestoredAt(8)
	if *s.AgentSession.RestoredAt != 5 || s.AgentSession.Attempt != 0 {
		t.Fatalf("the restored session is of position %d and attempt %d, want 5 and none", *s.AgentSession.RestoredAt, s.AgentSession.Attempt)
	}
	s.RestoreSession(nil)
	if s.AgentSession != nil {
		t.Fatal("a session that was not restored is still there")
	}
}
