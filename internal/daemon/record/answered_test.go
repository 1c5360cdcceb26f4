package record_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// stopped is a call that was answered.
func stopped(id string) agentstate.Answered {
	return agentstate.Answered{ID: id, Message: "stopped " + id, Details: map[string]string{"tool": "task_stop"}}
}

// shows is a line in which the agent shows the result of a tool.
func shows(result string) string {
	return fmt.Sprintf(`{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"call-1","content":[{"type":"text","text":%q}]}]},"session_id":"s"}`, result)
}

// noted returns for each record of the spool the message of its event, or "message".
func noted(t *testing.T, s *spool.Spool) (all []string) {
	t.Helper()
	records, err := s.Read(0, 1000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		switch e := r.GetEvent(); {
		case e == nil:
			all = append(all, "message")
		case e.GetDetails()["delivered"] != "":
			all = append(all, e.GetMessage()+", delivered")
		default:
			all = append(all, e.GetMessage())
		}
	}
	return all
}

func add(t *testing.T, r *record.Recorder, epoch int, number int64, line string) {
	t.Helper()
	if _, err := r.Add(t.Context(), epoch, wire.Line{Number: number, Data: []byte(line)}); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, r *record.Recorder, calls ...agentstate.Answered) {
	t.Helper()
	for _, a := range calls {
		if err := r.CallAnswered(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

// The event about an answered call follows the result that shows the answer, in one write, although
// the daemon was killed between the two, or before that write.
func TestAnAnswerThatTheAgentShowsIsDelivered(t *testing.T) {
	folder := t.TempDir()
	r, s := recorder(t, folder)
	epoch := attach(t, r, 0)
	add(t, r, epoch, 1, callsATool)
	if _, err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer(t, r, stopped("7"), stopped("77"))
	add(t, r, epoch, 2, shows("Task a stops.\n[call 7]"))
	s.Close()

	r, s = recorder(t, folder)
	if err := r.Replay(); err != nil {
		t.Fatal(err)
	}
	epoch = attach(t, r, 1)
	add(t, r, epoch, 2, shows("Task a stops.\n[call 7]"))
	add(t, r, epoch, 3, shows("the file has: [call 7]"))
	if _, err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"message", "message", "stopped 7, delivered", "message"}, noted(t, s)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]agentstate.Answered{stopped("77")}, r.State().Answered); diff != "" {
		t.Errorf("calls whose answers are awaited (-want +got):\n%s", diff)
	}
}

func TestTheServerIsToldWhichAnswersWereDelivered(t *testing.T) {
	folder := t.TempDir()
	r, s := recorder(t, folder)
	attach(t, r, 0)
	answer(t, r, stopped("1"), stopped("2"))
	if err := r.Delivered(t.Context(), []string{"2", "of somebody else"}); err != nil {
		t.Fatal(err)
	}
	expectUntold(t, r, "2")
	s.Close()

	r, _ = recorder(t, folder) // the server may not have the event yet
	if err := r.Replay(); err != nil {
		t.Fatal(err)
	}
	attach(t, r, 0)
	expectUntold(t, r, "2")
	if err := r.Delivered(t.Context(), []string{"1"}); err != nil {
		t.Fatal(err)
	}
	r.Told([]string{"2"})
	expectUntold(t, r, "1")
}

func expectUntold(t *testing.T, r *record.Recorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.Untold()); diff != "" {
		t.Errorf("calls of which the server may not know (-want +got):\n%s", diff)
	}
}

func TestAnAgentThatEndsItsTurnHasItsAnswers(t *testing.T) {
	for reached, want := range map[bool][]string{
		true:  {"stopped 1, delivered", "stopped 2, delivered"},
		false: {"stopped 1 (the agent has not got this answer)", "stopped 2 (the agent has not got this answer)"},
	} {
		r, s := recorder(t, t.TempDir())
		attach(t, r, 0)
		answer(t, r, stopped("1"), stopped("2"), stopped("1"))
		for range 2 {
			if err := r.EndCalls(t.Context(), reached); err != nil {
				t.Fatal(err)
			}
		}
		got := noted(t, s)
		if strings.HasPrefix(got[0], "stopped 2") { // the repeated call was answered last
			got[0], got[1] = got[1], got[0]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}
}

// A supervisor that calls on and on without showing results does not make the state grow.
func TestAnsweredCallsAreBounded(t *testing.T) {
	r, s := recorder(t, t.TempDir())
	attach(t, r, 0)
	for n := range 70 {
		answer(t, r, stopped(fmt.Sprint(n)))
	}
	if n := len(r.State().Answered); n != 64 {
		t.Errorf("%d calls wait for their answers to reach the agent, want 64", n)
	}
	if got := noted(t, s); len(got) != 6 || got[0] != "stopped 0 (the agent has not got this answer)" {
		t.Errorf("of the calls too many, the timeline has %q", got)
	}
}
