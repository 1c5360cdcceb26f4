package sidecar_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// long sends a line, or a part of one, in pieces as the shim does. If end is set the last
// piece ends the line.
func long(t *testing.T, a *daemontest.Shim, line string, end bool) {
	t.Helper()
	parts := slices.Collect(slices.Chunk([]byte(line), wire.MaxChunk))
	for i, part := range parts {
		a.Sent++
		if err := wire.WriteLine(a, wire.Line{Number: a.Sent, More: !end || i < len(parts)-1, Data: part}); err != nil {
			t.Fatal(err)
		}
	}
}

// whole joins a text that was recorded in pieces.
func whole(t *testing.T, w *daemontest.World, p *daemonv1.Pieces) string {
	t.Helper()
	pieces := map[string][]byte{}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if data := r.GetPiece().GetData(); data != nil {
				sum := sha256.Sum256(data)
				pieces[string(sum[:])] = data
			}
		}
	})
	var out bytes.Buffer
	for _, hash := range p.GetHashes() {
		if pieces[string(hash)] == nil {
			t.Fatalf("the piece %x is missing", hash)
		}
		out.Write(pieces[string(hash)])
	}
	if int64(out.Len()) != p.GetBytes() {
		t.Fatalf("the pieces have %d bytes, want %d", out.Len(), p.GetBytes())
	}
	return out.String()
}

// entries returns the messages of the conversation after the prompt.
func entries(w *daemontest.World) (out []*daemonv1.Message) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, e := range k.Active[1:] { // without the prompt
			out = append(out, e.GetMessage())
		}
	})
	return out
}

// expectText fails the test if a long text is another one, and shows where they differ.
func expectText(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	same := 0
	for same < min(len(got), len(want)) && got[same] == want[same] {
		same++
	}
	t.Errorf("a text of %d bytes, want %d; they differ from byte %d on: %.40q, want %.40q", len(got), len(want), same, got[same:], want[same:])
}

// finish ends the agent and the daemon.
func finish(a *daemontest.Shim, d *daemontest.Sidecar, code int) {
	a.Send(wire.TypeExit, wire.Exit{Code: code})
	a.Next(wire.TypeRelease)
	d.End()
}

// TestLongLines: a line that is too long to be held in memory is recorded whole.
func TestLongLines(t *testing.T) {
	y, z := strings.Repeat("y", 900<<10), strings.Repeat("zä\n", 2<<20)
	quoted, _ := json.Marshal(z)
	for _, tc := range []struct {
		name, line string
		check      func(t *testing.T, w *daemontest.World, m *daemonv1.Message)
	}{
		{"of one MiB", `{"type":"message","text":"` + y + `"}`, func(t *testing.T, w *daemontest.World, m *daemonv1.Message) {
			expectText(t, m.GetText(), y)
			if m.GetTextPieces() != nil {
				t.Error("the text was cut into pieces")
			}
		}},
		{"a message", `{"type":"message","text":` + string(quoted) + `}`, func(t *testing.T, w *daemontest.World, m *daemonv1.Message) {
			if m.GetRole() != daemonv1.Role_ROLE_ASSISTANT {
				t.Errorf("the message's role is %v, want the assistant's", m.GetRole())
			}
			expectText(t, whole(t, w, m.GetTextPieces()), z)
			if beginning := m.GetText(); !strings.HasPrefix(z, beginning) || len(beginning) < 4000 {
				t.Errorf("the message has %d bytes, want the first 4000 of the text at least", len(beginning))
			}
		}},
		{"a result", `{"type":"tool_result","id":"1","output":` + string(quoted) + `}`, func(t *testing.T, w *daemontest.World, m *daemonv1.Message) {
			if id := m.GetToolResult().GetCallId(); id != "1" {
				t.Errorf("the result is of call %q, want 1", id)
			}
			expectText(t, whole(t, w, m.GetToolResult().GetOutputPieces()), z)
		}},
		{"no JSON", z[:3] + strings.ReplaceAll(z, "\n", " "), func(t *testing.T, w *daemontest.World, m *daemonv1.Message) {
			if m.GetRole() != daemonv1.Role_ROLE_OUTPUT {
				t.Errorf("the message's role is %v, want output", m.GetRole())
			}
			expectText(t, whole(t, w, m.GetRawPieces()), z[:3]+strings.ReplaceAll(z, "\n", " "))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(`{"type":"message","text":"before"}`)
			long(t, a, tc.line, true)
			a.Say(`{"type":"message","text":"after"}`)
			a.Recorded()
			finish(a, d, 0)
			got := entries(w)
			if len(got) != 3 {
				t.Fatalf("%d messages were recorded, want 3", len(got))
			}
			expectText(t, got[0].GetText(), "before")
			tc.check(t, w, got[1])
			expectText(t, got[2].GetText(), "after")
			if _, err := os.Stat(filepath.Join(w.Paths().State, "long-line")); err == nil {
				t.Error("the file of the long line was not removed")
			}
		})
	}
}

// TestLongLineIsResumed after the connection, or the daemon, was lost in the middle of it:
// acknowledged pieces are not sent again.
func TestLongLineIsResumed(t *testing.T) {
	for _, lose := range []string{"connection", "daemon"} {
		t.Run(lose, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			text := strings.Repeat("0123456789abcde\\n", 512<<10)
			line := `{"type":"message","text":"` + text + `"}`
			a.Say("plain")
			sent := 0
			for _, end := range []int{3 << 20, 5 << 20, len(line) / wire.MaxChunk * wire.MaxChunk} {
				long(t, a, line[sent:end], false)
				sent = end
				a.Recorded()
				a.Close()
				if lose == "daemon" {
					w = w.CopyVolume() // as after a kill
					d = w.Start(1)
				}
				a = w.Dial("s")
				if a.Welcome.Line != int64(1+end/wire.MaxChunk) {
					t.Fatalf("lines through %d are recorded, want %d", a.Welcome.Line, 1+end/wire.MaxChunk)
				}
			}
			long(t, a, line[sent:]+" ", true)
			a.Say(`{"type":"message","text":"after"}`)
			a.Recorded()
			finish(a, d, 0)
			got := entries(w)
			if len(got) != 3 {
				t.Fatalf("%d messages were recorded, want 3", len(got))
			}
			expectText(t, whole(t, w, got[1].GetTextPieces()), strings.ReplaceAll(text, `\n`, "\n"))
			expectText(t, got[2].GetText(), "after")
		})
	}
}

const (
	geminiInit   = `{"type":"init","session_id":"g-1","model":"gemini-2.5-flash"}`
	geminiCall   = `{"type":"tool_use","tool_name":"shell","tool_id":"c-1","parameters":{}}`
	geminiResult = `{"type":"tool_result","tool_id":"c-1","status":"success","output":"ok"}`
)

func delta(text string) string {
	return `{"type":"message","role":"assistant","content":"` + text + `","delta":true}`
}

// TestDeltas: a message that is streamed in parts is recorded once and whole, even if the
// daemon is lost in the middle of it; its lines are not acknowledged before its end.
func TestDeltas(t *testing.T) {
	for _, lose := range []string{"nothing", "connection", "daemon"} {
		t.Run(lose, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Agent = "GeminiCLI"
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(geminiInit, geminiCall, geminiResult)
			a.Recorded()
			a.Say(delta("one "), delta("two "))
			if lose != "nothing" {
				a.Close()
				if lose == "daemon" {
					w = w.CopyVolume()
					d = w.Start(1)
				}
				a = w.Dial("s")
				if a.Welcome.Line != 3 {
					t.Fatalf("lines through %d are recorded, want 3", a.Welcome.Line)
				}
				a.Say(delta("one "), delta("two "))
			}
			a.Say(delta("three"))
			finish(a, d, 0)
			expectLines(t, w, "user Do it.", "call c-1", "result c-1", "assistant one two three")
		})
	}
}

// TestEndlessDelta: a streamed message that the shim cannot keep is recorded before its end.
func TestEndlessDelta(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent = "GeminiCLI"
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	part := strings.Repeat("x", 32<<10)
	for range 192 {
		a.Say(delta(part))
	}
	for a.Acked < 100 {
		a.Next(wire.TypeAck)
	}
	finish(a, d, 0)
	length := 0
	for _, m := range entries(w) {
		length += len(m.GetText())
	}
	if length != 192*len(part) {
		t.Errorf("%d bytes of text were recorded, want %d", length, 192*len(part))
	}
}

// TestAgentSession: the agent's session is in the journal and in each checkpoint, and a
// session that the agent refuses is noted.
func TestAgentSession(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent, w.Policy.EveryToolCalls = "GeminiCLI", 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(geminiInit, geminiCall, geminiResult)
	a.Recorded()
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	session := &daemonv1.AgentSession{Id: "g-1", Agent: "GeminiCLI", Model: "gemini-2.5-flash"}
	if diff := cmp.Diff(session, latest(w).GetSession(), protocmp.Transform()); diff != "" {
		t.Errorf("session in the checkpoint (-want +got):\n%s", diff)
	}
	finish(a, d, 1)
	read := func() journal.State {
		j, err := journal.Open(filepath.Join(w.Paths().State, "journal.json"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return j.State()
	}
	s := read()
	if id := s.AgentSession.Message().GetId(); id != "g-1" {
		t.Errorf("the session in the journal is %q, want g-1", id)
	}
	if s.SessionRefused != "" {
		t.Errorf("the journal has %q as refused, want none", s.SessionRefused)
	}
	for _, tc := range []struct {
		name, refused string
		lines         []string
		exit          wire.Exit
	}{
		{"told to end", "", nil, wire.Exit{Code: 143, Terminating: true}},
		{"a signal", "", nil, wire.Exit{Code: 137}},
		{"said something", "", []string{geminiInit, delta("Hello.")}, wire.Exit{Code: 1}},
		{"an error of the model's API", "", []string{geminiInit, `{"type":"result","status":"error","error":{"type":"unknown","message":"[API Error: {\"error\":{\"code\":500,\"message\":\"on fire\"}}]"},"stats":{}}`}, wire.Exit{Code: 244}},
		{"an error of the model's API, with a plain exit code", "", []string{geminiInit, `{"type":"result","status":"error","error":{"type":"unknown","message":"[API Error: {\"error\":{\"code\":429,\"message\":\"slow down\"}}]"},"stats":{}}`}, wire.Exit{Code: 1}},
		{"an API that cannot be reached", "", []string{geminiInit}, wire.Exit{Code: 1, LastErrors: "TypeError: fetch failed: connect ECONNREFUSED 10.0.0.1:443"}},
		{"a program that says that it has no such session", "g-1", nil, wire.Exit{Code: 42, LastErrors: "Error resuming session: No previous sessions found for this project."}},
		{"an error alone", "g-1", []string{geminiInit, "Error resuming session"}, wire.Exit{Code: 42}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := w.Copy(t)
			j, err := journal.Open(filepath.Join(w.Paths().State, "journal.json"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Update(func(s *journal.State) error {
				s.Attempt, s.Start = 2, &journal.Start{Attempt: 2, Memory: "Session"}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			d := w.Start(2)
			a := w.Dial("s-2")
			a.Say(tc.lines...)
			a.Send(wire.TypeExit, tc.exit)
			a.Next(wire.TypeRelease)
			d.Terminate()
			<-d.Done()
			j, err = journal.Open(filepath.Join(w.Paths().State, "journal.json"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := j.State().SessionRefused; got != tc.refused {
				t.Errorf("refused %q, want %q", got, tc.refused)
			}
		})
	}
}

// TestMasking: a value that is escaped in the line, so that the shim does not find it, is
// masked in the message.
func TestMasking(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Mask = mask.New([]byte("sk-test-0123456789"))
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	hidden := `sk-\u0074est-0123456789`
	a.Say(`{"type":"message","text":"`+hidden+`"}`, `{"type":"tool_call","id":"1","name":"x","input":{"a":"sk-test-0123456789"}}`,
		`{"type":"tool_result","id":"1","output":"`+hidden+`"}`, "plain sk-test-0123456789", `{"type":"message","text":"x","more":"sk-test-0123456789"}`)
	long(t, a, `{"type":"message","text":"`+strings.Repeat("x", wire.MaxChunk*20-40)+`sk-test-0123456789"}`, true)
	a.Recorded()
	finish(a, d, 0)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if text := fmt.Sprint(r) + string(r.GetPiece().GetData()); strings.Contains(text, "0123456789") {
				t.Errorf("a record has the value: %.300s", text)
			}
		}
	})
	got := entries(w)
	if len(got) != 6 {
		t.Fatalf("%d messages were recorded, want 6", len(got))
	}
	expectText(t, got[0].GetText(), "[masked]")
	expectText(t, got[1].GetToolCall().GetInput(), `{"a":"[masked]"}`)
}

// TestSessionFileLags: a checkpoint waits, for a short time, until the agent has saved the
// result that it has printed.
func TestSessionFileLags(t *testing.T) {
	for _, written := range []bool{true, false} {
		w := daemontest.NewWorld(t, nil)
		w.Agent, w.Policy.EveryToolCalls = "ClaudeCode", 1
		w.Prepare(1, nil)
		d := w.Start(1)
		a := w.Dial("s")
		result := `{"type":"user","message":{"role":"user","content":[{"tool_use_id":"t-1","type":"tool_result","content":"ok"}]},"session_id":"s-1","uuid":"u-1"}`
		dir := filepath.Join(w.Paths().Home, ".claude/projects/-workspace")
		file := filepath.Join(dir, "s-1.jsonl")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		a.Say(claudeInit, claudeCall, result)
		if written {
			time.AfterFunc(150*time.Millisecond, func() { _ = os.WriteFile(file, []byte(result+"\n"), 0o600) })
		}
		printed := time.Now()
		a.Next(wire.TypeFreeze)
		if _, err := os.Stat(file); (err == nil) != written {
			t.Errorf("the agent was stopped %v after its output; the session file exists: %v, want %v", time.Since(printed), err == nil, written)
		}
		a.Next(wire.TypeThaw)
		finish(a, d, 0)
	}
}

// TestLongIDs: the ids and names of calls are kept until the calls are answered, so their
// length and their number are bounded.
func TestLongIDs(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	id := strings.Repeat("x", 20<<10)
	a.Say(`{"type":"tool_call","id":"`+id+`","name":"`+id+`"}`, `{"type":"tool_result","id":"`+id+`","output":"ok"}`)
	for n := range conversation.MaxOpenCalls + 10 {
		a.Say(fmt.Sprintf(`{"type":"tool_call","id":"%d","name":"Bash"}`, n))
	}
	a.Recorded()
	finish(a, d, 0)
	got := entries(w)
	call, result := got[0].GetToolCall(), got[1].GetToolResult()
	for what, text := range map[string]string{"id": call.GetId(), "name": call.GetName()} {
		if len(text) > conversation.MaxID {
			t.Errorf("the call's %s has %d bytes, want at most %d", what, len(text), conversation.MaxID)
		}
	}
	expectText(t, result.GetCallId(), call.GetId())
	interrupted := 0
	for _, m := range got {
		if m.GetToolResult().GetInterrupted() {
			interrupted++
		}
	}
	if interrupted != conversation.MaxOpenCalls {
		t.Errorf("%d calls were remembered, want %d", interrupted, conversation.MaxOpenCalls)
	}
}
