package prepare

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// talk makes a conversation of words, an entry each: u:text says the user, a:text
// the agent, o:text is plain output, c1 is a call, r1 its result, i1 the answer
// to a call that was interrupted.
func talk(words string) *history {
	h := &history{budget: 1 << 20}
	for _, word := range strings.Fields(words) {
		id, m := word[1:], &daemonv1.Message{}
		switch word[0] {
		case 'u':
			m.Role, m.Text = daemonv1.Role_ROLE_USER, word[2:]
		case 'a':
			m.Role, m.Text = daemonv1.Role_ROLE_ASSISTANT, word[2:]
		case 'o':
			m.Role, m.Text = daemonv1.Role_ROLE_OUTPUT, word[2:]
		case 'c':
			m.Role, m.ToolCall = daemonv1.Role_ROLE_ASSISTANT, &daemonv1.ToolCall{Id: id, Name: "shell"}
		case 'r':
			m.Role, m.ToolResult = daemonv1.Role_ROLE_TOOL, &daemonv1.ToolResult{CallId: id}
		case 'i':
			m = agent.Interrupted(id)
		}
		h.add(&daemonv1.ConversationEntry{Position: int64(len(h.entries) + 1), Message: m})
	}
	return h
}

// words undoes talk.
func words(entries []*daemonv1.ConversationEntry) string {
	var out []string
	for _, e := range entries {
		m := e.GetMessage()
		switch r := m.GetToolResult(); {
		case m.GetToolCall() != nil:
			out = append(out, "c"+m.GetToolCall().GetId())
		case r.GetInterrupted():
			out = append(out, "i"+r.GetCallId())
		case r != nil:
			out = append(out, "r"+r.GetCallId())
		default:
			out = append(out, string(strings.ToLower(m.GetRole().String())[5])+":"+m.GetText())
		}
	}
	return strings.Join(out, " ")
}

func ids(list ...string) map[string]bool {
	out := map[string]bool{}
	for _, id := range list {
		out[id] = true
	}
	return out
}

func at(n int64) *int64 { return &n }

// session is the session "s" of a ClaudeCode agent.
func session(change func(*journal.AgentSession)) *journal.AgentSession {
	a := &journal.AgentSession{Record: []byte(`{"agent":"ClaudeCode","id":"s"}`), Attempt: 1, Begun: 1, Known: journal.KnownThrough{Position: 1}}
	if change != nil {
		change(a)
	}
	return a
}

func TestWhatTheAgentIsTold(t *testing.T) {
	t.Parallel()
	has := func(list ...string) agent.Session {
		return agent.Session{Results: ids(list...), ResultCount: len(list)}
	}
	counts := func(n int) agent.Session { return agent.Session{ResultCount: n} }
	tests := []struct {
		name         string
		conversation string
		session      *journal.AgentSession
		refused      string
		files        agent.Session
		err          error
		kind, prompt string
		why          string
	}{
		{name: "first start", conversation: "u:do", kind: "New", prompt: "do"},
		{name: "nothing is asked for", kind: "New"},
		{name: "the prompt was not heard", conversation: "u:do o:starting", session: session(nil), kind: "New", prompt: "do"},
		{name: "intact session", conversation: "u:do c1 r1 a:done u:more", session: session(nil), files: has("1"), kind: "Session", prompt: "more"},
		{name: "intact session, two messages", conversation: "u:do c1 r1 a:done u:more u:please", session: session(nil), files: has("1"), kind: "Session", prompt: "more\n\nplease"},
		{name: "the agent was interrupted", conversation: "u:do c1 r1", session: session(nil), files: has("1"), kind: "Session", prompt: continuePrompt},
		{name: "session lacks the last result", conversation: "u:do c1 r1 c2 r2 u:go", session: session(nil), files: has("1"),
			kind: "Session", prompt: "[c2 r2]\n\ngo", why: "2 messages"},
		{name: "session lacks results in the middle", conversation: "u:do c1 c2 r2 r1 a:hm u:go", session: session(nil), files: has("2"), kind: "Session", prompt: "[c1 r1]\n\ngo"},
		{name: "session that is counted lacks the last result", conversation: "u:do c1 r1 c2 r2 u:go", session: session(nil), files: counts(1), kind: "Session", prompt: "[c2 r2]\n\ngo"},
		{name: "session that tells nothing is believed", conversation: "u:do c1 r1 c2 r2 u:go", session: session(nil), files: counts(-1), kind: "Session", prompt: "go"},
		{name: "interrupted call", conversation: "u:do c1 r1 c2 i2 u:go", session: session(nil), files: has("1"), kind: "Session", prompt: "[c2 i2]\n\ngo"},
		{name: "interrupted call, counted", conversation: "u:do c1 r1 c2 i2 c3 r3 u:go", session: session(nil), files: counts(2), kind: "Session", prompt: "[c2 i2]\n\ngo"},
		{name: "what was told is not told again", conversation: "u:do c1 r1 c2 r2 u:go c3 r3 u:more",
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: has("1", "3"), kind: "Session", prompt: "more"},
		{name: "what was told is not told again, counted", conversation: "u:do c1 r1 c2 r2 u:go c3 r3 u:more",
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: counts(2), kind: "Session", prompt: "more"},
		{name: "what was not heard is told again", conversation: "u:do c1 r1 c2 r2 u:go o:error",
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: has("1"), kind: "Session", prompt: "[c2 r2]\n\ngo"},
		{name: "session that began with a rendered conversation", conversation: "u:do c1 r1 u:go c2 r2 c3 r3 u:more",
			session: session(func(a *journal.AgentSession) { a.Begun, a.Known.Position = 4, 4 }), files: has("2"), kind: "Session", prompt: "[c3 r3]\n\nmore"},

		{name: "restored where the conversation stands", conversation: "u:do c1 r1 c2 r2 u:go",
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(5) }), files: counts(-1), kind: "Session", prompt: "go"},
		{name: "restored from before", conversation: "u:do c1 r1 a:one c2 r2 a:two u:go",
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: counts(-1), kind: "Session", prompt: "[a:one c2 r2 a:two]\n\ngo"},
		{name: "restored from before, with results", conversation: "u:do c1 r1 a:one c2 r2 a:two u:go",
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1"), kind: "Session", prompt: "[a:one c2 r2 a:two]\n\ngo"},
		{name: "restored files are ahead of the checkpoint", conversation: "u:do c1 r1 a:one c2 r2 a:two u:go",
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1", "2"), kind: "Session", prompt: "[a:two]\n\ngo"},
		{name: "restored, and a user's message in between", conversation: "u:do c1 r1 u:also c2 r2 u:go",
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1"), kind: "Session", prompt: "[u:also c2 r2]\n\ngo"},
		{name: "restored, started, and not heard", conversation: "u:do c1 r1 c2 r2 u:go",
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked = at(3), &journal.KnownThrough{Position: 6, Results: 1}
			}), files: has("1"),
			kind: "Session", prompt: "[c2 r2]\n\ngo"},
		{name: "restored, started, and heard", conversation: "u:do c1 r1 c2 r2 u:go a:yes u:more",
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked = at(3), &journal.KnownThrough{Position: 6, Results: 1}
			}), files: has("1"),
			kind: "Session", prompt: "more"},
		{name: "restored from when it had heard", conversation: "u:do c1 r1 c2 r2 u:go a:yes c3 r3 u:more",
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked, a.RestoredAt = at(3), &journal.KnownThrough{Position: 6, Results: 1}, at(7)
			}), files: has("1"), kind: "Session", prompt: "[c3 r3]\n\nmore"},
		{name: "restored from when it had not heard", conversation: "u:do c1 r1 c2 r2 u:go u:more",
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked, a.RestoredAt = at(3), &journal.KnownThrough{Position: 6, Results: 1}, at(6)
			}), files: has("1"), kind: "Session", prompt: "[c2 r2]\n\ngo\n\nmore"},

		{name: "session that began beyond a gap", conversation: "o:gap u:do c1 r1 c2 r2 u:go", session: session(func(a *journal.AgentSession) {
			a.Begun, a.Known, a.Asked = 40, journal.KnownThrough{Position: 50, Results: 9}, &journal.KnownThrough{Position: 60, Results: 9}
		}), files: has("1"), kind: "Session", prompt: "[c2 r2]\n\ngo"},

		{name: "no session is known", conversation: "u:do c1 r1 u:go", kind: "Rendered", prompt: "{u:do c1 r1}\n\ngo", why: "no session"},
		{name: "session file gone", conversation: "u:do c1 r1", session: session(nil), err: fmt.Errorf("x: %w", fs.ErrNotExist), kind: "Rendered", prompt: "{u:do c1 r1}\n\n" + continuePrompt, why: "session s is not in its home"},
		{name: "session file not readable", conversation: "u:do c1 r1", session: session(nil), err: errors.New("a named pipe"), kind: "Rendered", prompt: "{u:do c1 r1}\n\n" + continuePrompt, why: "a named pipe"},
		{name: "refused session", conversation: "u:do c1 r1 u:go", session: session(nil), refused: "s", files: has("1"), kind: "Rendered", prompt: "{u:do c1 r1}\n\ngo", why: "did not resume"},
		{name: "another session was refused", conversation: "u:do c1 r1 u:go", session: session(nil), refused: "r", files: has("1"), kind: "Session", prompt: "go"},
		{name: "another agent", conversation: "u:do c1 r1 u:go",
			session: session(func(a *journal.AgentSession) { a.Record = []byte(`{"agent":"Codex","id":"s"}`) }), files: has("1"),
			kind: "Rendered", prompt: "{u:do c1 r1}\n\ngo", why: "another agent, Codex"},
		{name: "session in which nothing was said", conversation: "u:do c1 r1 u:go",
			session: session(func(a *journal.AgentSession) { a.Begun, a.Known.Position = 4, 4 }), files: has("1"), kind: "Rendered", prompt: "{u:do c1 r1}\n\ngo"},
		{name: "plain output is no part of it", conversation: "u:do o:x c1 r1 o:y u:go o:z", kind: "Rendered", prompt: "{u:do o:x c1 r1 o:y o:z}\n\ngo"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			told, pending, head := talk(tt.conversation).split()
			r := knowledge{agentType: "ClaudeCode", session: tt.session, refused: tt.refused, past: told, pending: pending, head: head,
				find: func(id string) (agent.Session, error) { return tt.files, tt.err },
				render: renderer{
					conversation: func(e []*daemonv1.ConversationEntry) string { return "{" + words(e) + "}" },
					missing:      func(e []*daemonv1.ConversationEntry) string { return "[" + words(e) + "]" },
				}}
			m := r.decide()
			if string(m.kind) != tt.kind || m.prompt != tt.prompt || !strings.Contains(m.message, tt.why) {
				t.Fatalf("memory %s, prompt %q (%s)", m.kind, m.prompt, m.message)
			}
			if (m.id != "") != (m.kind == "Session") {
				t.Fatalf("session %q", m.id)
			}
			// Killed before the agent started, and run again: the same.
			r.session = m.session
			if d := cmp.Diff(m, r.decide(), cmp.AllowUnexported(memory{})); d != "" {
				t.Fatalf("the second time (-first +second):\n%s", d)
			}
		})
	}
}

// TestHistoryIsBounded: however long the conversation, only as much of it is in
// memory as can get into a prompt; but what is pending is whole.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := &history{budget: 100 << 10}
	long := strings.Repeat("ä", 300<<10)
	for i := range 400 {
		e := &daemonv1.ConversationEntry{Position: int64(i + 1), Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL,
			ToolResult: &daemonv1.ToolResult{CallId: fmt.Sprint(i), Output: long}}}
		h.add(e)
	}
	h.add(&daemonv1.ConversationEntry{Position: 401, Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: long}})
	told, pending, head := h.split()
	if len(told) != 400 || len(pending) != 1 || pending[0] != long || head != 401 {
		t.Fatalf("%d told, %d pending, head %d", len(told), len(pending), head)
	}
	bytes := 0
	for _, e := range told {
		bytes += sizeOf(e)
	}
	if bytes > 2<<20 {
		t.Fatalf("%d bytes are kept", bytes)
	}
	first, last := told[0].GetMessage().GetToolResult(), told[399].GetMessage().GetToolResult()
	if len(first.GetOutput()) > previewBytes || first.GetOutputPieces().GetBytes() != int64(len(long)) || len(last.GetOutput()) < 99<<10 {
		t.Fatalf("the first result has %d bytes of %d, the last %d", len(first.GetOutput()), first.GetOutputPieces().GetBytes(), len(last.GetOutput()))
	}
}

// A long conversation of ordinary messages costs little for each, too.
func TestALongConversationFitsInMemory(t *testing.T) {
	const messages = 20_000
	h := &history{budget: 400 << 10}
	bytes := 0
	for i := range messages {
		h.add(&daemonv1.ConversationEntry{Position: int64(i + 1), Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL,
			ToolResult: &daemonv1.ToolResult{CallId: fmt.Sprint(i), Output: strings.Repeat("x", 4000)}}})
	}
	told, _, _ := h.split()
	for _, e := range told {
		bytes += sizeOf(e)
	}
	if len(told) != messages || bytes > 8<<20 {
		t.Errorf("%d bytes are kept of %d messages", bytes, len(told))
	}
	if last := told[messages-1].GetMessage().GetToolResult(); len(last.GetOutput()) != 4000 {
		t.Errorf("the newest message has %d bytes", len(last.GetOutput()))
	}
}
