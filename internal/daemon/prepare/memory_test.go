package prepare

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// talk is a conversation, a message for each entry.
type talk []*daemonv1.Message

// history returns the conversation with positions from 1.
func (k talk) history() *history {
	h := &history{budget: 1 << 20}
	for _, m := range k {
		h.add(&daemonv1.ConversationEntry{Position: int64(len(h.entries) + 1), Message: m})
	}
	return h
}

func user(text string) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: text}
}

func assistant(text string) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: text}
}

// output is plain output, which is no part of the conversation's messages.
func output(text string) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Text: text}
}

func call(n int) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: fmt.Sprint(n), Name: "shell"}}
}

func result(n int) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: fmt.Sprint(n)}}
}

// interrupted is the result of a call that was interrupted.
func interrupted(n int) *daemonv1.Message { return agent.Interrupted(fmt.Sprint(n)) }

// whole and missing are how the tests render a conversation, and what a session lacks of it.
func whole(messages ...*daemonv1.Message) string   { return "{" + describeAll(messages) + "}" }
func missing(messages ...*daemonv1.Message) string { return "[" + describeAll(messages) + "]" }

func describeAll(messages []*daemonv1.Message) string {
	var all []string
	for _, m := range messages {
		switch r := m.GetToolResult(); {
		case m.GetToolCall() != nil:
			all = append(all, "call "+m.GetToolCall().GetId())
		case r.GetInterrupted():
			all = append(all, "interrupted "+r.GetCallId())
		case r != nil:
			all = append(all, "result "+r.GetCallId())
		default:
			all = append(all, strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_"))+": "+m.GetText())
		}
	}
	return strings.Join(all, ", ")
}

// messagesOf renders entries by one of whole and missing.
func messagesOf(render func(...*daemonv1.Message) string) func([]*daemonv1.ConversationEntry) string {
	return func(entries []*daemonv1.ConversationEntry) string {
		var all []*daemonv1.Message
		for _, e := range entries {
			all = append(all, e.GetMessage())
		}
		return render(all...)
	}
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

func TestMemoryThatTheAgentReceives(t *testing.T) {
	t.Parallel()
	has := func(list ...string) agent.Session {
		return agent.Session{Results: ids(list...), ResultCount: len(list)}
	}
	counts := func(n int) agent.Session { return agent.Session{ResultCount: n} }
	tests := []struct {
		name         string
		conversation talk
		session      *journal.AgentSession
		refused      string
		files        agent.Session
		err          error
		kind, prompt string
		why          string
	}{
		{name: "first start", conversation: talk{user("do")}, kind: "New", prompt: "do"},
		{name: "nothing is asked for", kind: "New"},
		{name: "the prompt was not heard", conversation: talk{user("do"), output("starting")}, session: session(nil), kind: "New", prompt: "do"},
		{name: "intact session", conversation: talk{user("do"), call(1), result(1), assistant("done"), user("more")}, session: session(nil), files: has("1"), kind: "Session", prompt: "more"},
		{name: "intact session, two messages", conversation: talk{user("do"), call(1), result(1), assistant("done"), user("more"), user("please")}, session: session(nil), files: has("1"), kind: "Session", prompt: "more\n\nplease"},
		{name: "the agent was interrupted", conversation: talk{user("do"), call(1), result(1)}, session: session(nil), files: has("1"), kind: "Session", prompt: continuePrompt},
		{name: "session lacks the last result", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go")}, session: session(nil), files: has("1"),
			kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo", why: "2 messages"},
		{name: "session lacks results in the middle", conversation: talk{user("do"), call(1), call(2), result(2), result(1), assistant("hm"), user("go")}, session: session(nil), files: has("2"), kind: "Session", prompt: missing(call(1), result(1)) + "\n\ngo"},
		{name: "session that is counted lacks the last result", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go")}, session: session(nil), files: counts(1), kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo"},
		{name: "session that tells nothing is believed", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go")}, session: session(nil), files: counts(-1), kind: "Session", prompt: "go"},
		{name: "interrupted call", conversation: talk{user("do"), call(1), result(1), call(2), interrupted(2), user("go")}, session: session(nil), files: has("1"), kind: "Session", prompt: missing(call(2), interrupted(2)) + "\n\ngo"},
		{name: "interrupted call, counted", conversation: talk{user("do"), call(1), result(1), call(2), interrupted(2), call(3), result(3), user("go")}, session: session(nil), files: counts(2), kind: "Session", prompt: missing(call(2), interrupted(2)) + "\n\ngo"},
		{name: "what was told is not told again", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), call(3), result(3), user("more")},
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: has("1", "3"), kind: "Session", prompt: "more"},
		{name: "what was told is not told again, counted", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), call(3), result(3), user("more")},
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: counts(2), kind: "Session", prompt: "more"},
		{name: "what was not heard is told again", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), output("error")},
			session: session(func(a *journal.AgentSession) { a.Asked = &journal.KnownThrough{Position: 6, Results: 1} }), files: has("1"), kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo"},
		{name: "session that began with a rendered conversation", conversation: talk{user("do"), call(1), result(1), user("go"), call(2), result(2), call(3), result(3), user("more")},
			session: session(func(a *journal.AgentSession) { a.Begun, a.Known.Position = 4, 4 }), files: has("2"), kind: "Session", prompt: missing(call(3), result(3)) + "\n\nmore"},

		{name: "restored where the conversation stands", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go")},
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(5) }), files: counts(-1), kind: "Session", prompt: "go"},
		{name: "restored from before", conversation: talk{user("do"), call(1), result(1), assistant("one"), call(2), result(2), assistant("two"), user("go")},
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: counts(-1), kind: "Session", prompt: missing(assistant("one"), call(2), result(2), assistant("two")) + "\n\ngo"},
		{name: "restored from before, with results", conversation: talk{user("do"), call(1), result(1), assistant("one"), call(2), result(2), assistant("two"), user("go")},
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1"), kind: "Session", prompt: missing(assistant("one"), call(2), result(2), assistant("two")) + "\n\ngo"},
		{name: "restored files are ahead of the checkpoint", conversation: talk{user("do"), call(1), result(1), assistant("one"), call(2), result(2), assistant("two"), user("go")},
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1", "2"), kind: "Session", prompt: missing(assistant("two")) + "\n\ngo"},
		{name: "restored, and a user's message in between", conversation: talk{user("do"), call(1), result(1), user("also"), call(2), result(2), user("go")},
			session: session(func(a *journal.AgentSession) { a.RestoredAt = at(3) }), files: has("1"), kind: "Session", prompt: missing(user("also"), call(2), result(2)) + "\n\ngo"},
		{name: "restored, started, and not heard", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go")},
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked = at(3), &journal.KnownThrough{Position: 6, Results: 1}
			}), files: has("1"),
			kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo"},
		{name: "restored, started, and heard", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), assistant("yes"), user("more")},
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked = at(3), &journal.KnownThrough{Position: 6, Results: 1}
			}), files: has("1"),
			kind: "Session", prompt: "more"},
		{name: "restored from when it had heard", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), assistant("yes"), call(3), result(3), user("more")},
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked, a.RestoredAt = at(3), &journal.KnownThrough{Position: 6, Results: 1}, at(7)
			}), files: has("1"), kind: "Session", prompt: missing(call(3), result(3)) + "\n\nmore"},
		{name: "restored from when it had not heard", conversation: talk{user("do"), call(1), result(1), call(2), result(2), user("go"), user("more")},
			session: session(func(a *journal.AgentSession) {
				a.FilesAt, a.Asked, a.RestoredAt = at(3), &journal.KnownThrough{Position: 6, Results: 1}, at(6)
			}), files: has("1"), kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo\n\nmore"},

		{name: "session that began beyond a gap", conversation: talk{output("gap"), user("do"), call(1), result(1), call(2), result(2), user("go")}, session: session(func(a *journal.AgentSession) {
			a.Begun, a.Known, a.Asked = 40, journal.KnownThrough{Position: 50, Results: 9}, &journal.KnownThrough{Position: 60, Results: 9}
		}), files: has("1"), kind: "Session", prompt: missing(call(2), result(2)) + "\n\ngo"},

		{name: "no session is known", conversation: talk{user("do"), call(1), result(1), user("go")}, kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\ngo", why: "no session"},
		{name: "session file gone", conversation: talk{user("do"), call(1), result(1)}, session: session(nil), err: fmt.Errorf("x: %w", fs.ErrNotExist), kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\n" + continuePrompt, why: "session s is not in its home"},
		{name: "session file not readable", conversation: talk{user("do"), call(1), result(1)}, session: session(nil), err: errors.New("a named pipe"), kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\n" + continuePrompt, why: "a named pipe"},
		{name: "refused session", conversation: talk{user("do"), call(1), result(1), user("go")}, session: session(nil), refused: "s", files: has("1"), kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\ngo", why: "did not resume"},
		{name: "another session was refused", conversation: talk{user("do"), call(1), result(1), user("go")}, session: session(nil), refused: "r", files: has("1"), kind: "Session", prompt: "go"},
		{name: "another agent", conversation: talk{user("do"), call(1), result(1), user("go")},
			session: session(func(a *journal.AgentSession) { a.Record = []byte(`{"agent":"Codex","id":"s"}`) }), files: has("1"),
			kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\ngo", why: "another agent, Codex"},
		{name: "session in which nothing was said", conversation: talk{user("do"), call(1), result(1), user("go")},
			session: session(func(a *journal.AgentSession) { a.Begun, a.Known.Position = 4, 4 }), files: has("1"), kind: "Rendered", prompt: whole(user("do"), call(1), result(1)) + "\n\ngo"},
		{name: "plain output is no part of it", conversation: talk{user("do"), output("x"), call(1), result(1), output("y"), user("go"), output("z")}, kind: "Rendered", prompt: whole(user("do"), output("x"), call(1), result(1), output("y"), output("z")) + "\n\ngo"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			past, pending, head := tt.conversation.history().split()
			r := knowledge{agentType: "ClaudeCode", session: tt.session, refused: tt.refused, past: past, pending: pending, head: head,
				find:   func(id string) (agent.Session, error) { return tt.files, tt.err },
				render: renderer{conversation: messagesOf(whole), missing: messagesOf(missing)},
			}
			m := r.decide()
			if string(m.kind) != tt.kind {
				t.Errorf("memory %s (%s), want %s", m.kind, m.message, tt.kind)
			}
			if d := cmp.Diff(tt.prompt, m.prompt); d != "" {
				t.Errorf("prompt (-want +got):\n%s", d)
			}
			if !strings.Contains(m.message, tt.why) {
				t.Errorf("the message %q does not contain %q", m.message, tt.why)
			}
			if (m.id != "") != (m.kind == "Session") {
				t.Errorf("memory %s with session %q", m.kind, m.id)
			}
			// If prepare is killed before the agent starts, the next run decides the same.
			r.session = m.session
			if d := cmp.Diff(m, r.decide(), cmp.AllowUnexported(memory{})); d != "" {
				t.Fatalf("the second time (-first +second):\n%s", d)
			}
		})
	}
}

// TestHistoryIsBounded: however long the conversation, only as much of it is in memory as
// can reach a prompt; but pending messages are whole.
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
	past, pending, head := h.split()
	if len(past) != 400 || head != 401 {
		t.Fatalf("%d entries and head %d, want 400 and 401", len(past), head)
	}
	if !slices.Equal(pending, []string{long}) {
		t.Fatalf("%d pending messages, want the whole last one", len(pending))
	}
	bytes := 0
	for _, e := range past {
		bytes += sizeOf(e)
	}
	if bytes > 2<<20 {
		t.Fatalf("%d bytes are kept", bytes)
	}
	first, last := past[0].GetMessage().GetToolResult(), past[399].GetMessage().GetToolResult()
	if n := len(first.GetOutput()); n > previewBytes {
		t.Errorf("%d bytes are kept of the first result, want at most %d", n, previewBytes)
	}
	if n := first.GetOutputPieces().GetBytes(); n != int64(len(long)) {
		t.Errorf("the first result says that it has %d bytes, want %d", n, len(long))
	}
	if n := len(last.GetOutput()); n < 99<<10 {
		t.Errorf("%d bytes are kept of the last result, want the budget", n)
	}
}

// A long conversation of ordinary messages needs little memory for each, too.
func TestALongConversationFitsInMemory(t *testing.T) {
	const messages = 20_000
	h := &history{budget: 400 << 10}
	bytes := 0
	for i := range messages {
		h.add(&daemonv1.ConversationEntry{Position: int64(i + 1), Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL,
			ToolResult: &daemonv1.ToolResult{CallId: fmt.Sprint(i), Output: strings.Repeat("x", 4000)}}})
	}
	past, _, _ := h.split()
	for _, e := range past {
		bytes += sizeOf(e)
	}
	if len(past) != messages || bytes > 8<<20 {
		t.Errorf("%d bytes are kept of %d messages", bytes, len(past))
	}
	if last := past[messages-1].GetMessage().GetToolResult(); len(last.GetOutput()) != 4000 {
		t.Errorf("the newest message has %d bytes", len(last.GetOutput()))
	}
}
