package prepare

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// goOn is what an agent is told that was interrupted.
const goOn = "Go on with the task where you left off."

// remembered is what is known when it is decided what the agent that starts
// knows, and what it must be told.
type remembered struct {
	agentType v1alpha1.AgentType
	// session is the agent's session in its home, refused the id of one that the
	// agent would not resume.
	session *journal.AgentSession
	refused string
	// find looks the session's files up.
	find func(id string) (agent.Session, error)
	// told is the conversation without what is pending, pending the user's
	// messages that the agent has not answered.
	told    []*daemonv1.ConversationEntry
	pending []string
	// head is the last position of both.
	head   int64
	render renderer
}

// renderer makes text of a conversation, within limits.
type renderer struct {
	conversation, missing func([]*daemonv1.ConversationEntry) string
}

// memory is what was decided.
type memory struct {
	kind v1alpha1.AgentMemory
	// message says why, for people.
	message string
	// id is the session to go on with.
	id     string
	prompt string
	// tokens are those that the session's files tell of.
	tokens []agent.Tokens
	// session is what the journal then says of the agent's session.
	session *journal.AgentSession
}

// decide says what the agent knows: its own session if that can be resumed,
// else the conversation, rendered; and what its prompt is.
func (r remembered) decide() memory {
	m := memory{prompt: strings.Join(r.pending, "\n\n")}
	if m.prompt == "" && len(r.told) > 0 {
		m.prompt = goOn
	}
	if r.session != nil {
		session := caughtUp(behindGap(*r.session, r.head), r.told)
		m.session = &session
	}
	if !r.worthTelling() {
		m.kind = v1alpha1.AgentMemoryNew
		return m
	}
	files, err := r.resumable(m.session)
	if err != nil {
		m.kind, m.message = v1alpha1.AgentMemoryRendered, fmt.Sprintf("the conversation so far is told in the prompt: %v", err)
		m.prompt = join(r.render.conversation(r.told), m.prompt)
		return m
	}
	m.kind, m.id, m.tokens = v1alpha1.AgentMemorySession, m.session.Message().GetId(), files.Tokens
	m.message = fmt.Sprintf("the agent goes on with its session %s", m.id)
	if missing := lacks(*m.session, files, r.told); len(missing) > 0 {
		m.message += fmt.Sprintf("; what it lacks of the conversation is told in the prompt (%s)", messages(len(missing)))
		m.prompt = join(r.render.missing(missing), m.prompt)
	}
	m.session.Asked = &journal.Told{Position: r.head, Results: max(files.ResultCount, 0)}
	return m
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// join puts texts one after the other, with a blank line between.
func join(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t = strings.Trim(t, "\n"); t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n\n")
}

// worthTelling reports whether anything was said before what is pending.
func (r remembered) worthTelling() bool {
	for _, e := range r.told {
		if speaks(e) {
			return true
		}
	}
	return false
}

// resumable finds the files of the session, or says why it cannot be resumed.
func (r remembered) resumable(session *journal.AgentSession) (agent.Session, error) {
	record := session.Message()
	switch {
	case record == nil:
		return agent.Session{}, errors.New("no session of the agent is known")
	case record.GetAgent() != string(r.agentType):
		return agent.Session{}, fmt.Errorf("the session %s is one of another agent, %s", record.GetId(), record.GetAgent())
	case record.GetId() == r.refused:
		return agent.Session{}, fmt.Errorf("the agent did not resume its session %s", record.GetId())
	case !answered(r.told, session.Begun, math.MaxInt64):
		return agent.Session{}, fmt.Errorf("the agent's session %s ended before the agent said anything", record.GetId())
	}
	files, err := r.find(record.GetId())
	if errors.Is(err, fs.ErrNotExist) {
		return files, fmt.Errorf("the agent's session %s is not in its home", record.GetId())
	}
	if err != nil {
		return files, fmt.Errorf("the agent's session %s cannot be read: %w", record.GetId(), err)
	}
	return files, nil
}

// behindGap leaves out what is known of a session by positions that the conversation
// does not have: it has a gap, and all behind that stands lower than it did. What
// was said there is told by the session's own files.
func behindGap(s journal.AgentSession, head int64) journal.AgentSession {
	if s.Begun > head {
		s.Begun = 0
	}
	if s.Known.Position > head {
		s.Known = journal.Told{}
	}
	if s.Asked != nil && s.Asked.Position > head {
		s.Asked = nil
	}
	return s
}

// caughtUp is the session with what has happened since the newest start: whether
// the agent heard its prompt, and whether other files were restored.
func caughtUp(s journal.AgentSession, told []*daemonv1.ConversationEntry) journal.AgentSession {
	through := int64(math.MaxInt64)
	if s.RestoredAt != nil {
		through = *s.RestoredAt
	}
	if s.Asked != nil && answered(told, s.Asked.Position, through) {
		s.Known, s.Asked, s.FilesAt = *s.Asked, nil, nil
	}
	s.FilesAt, s.RestoredAt = cmp.Or(s.FilesAt, s.RestoredAt), nil
	return s
}

// answered reports whether the agent said anything after one position, up to
// another.
func answered(told []*daemonv1.ConversationEntry, after, through int64) bool {
	for _, e := range told {
		if e.GetPosition() > after && e.GetPosition() <= through && byAgent(e.GetMessage()) {
			return true
		}
	}
	return false
}

// byAgent reports whether a message is the agent's own or a tool's answer to it.
func byAgent(m *daemonv1.Message) bool {
	switch m.GetRole() {
	case daemonv1.Role_ROLE_ASSISTANT, daemonv1.Role_ROLE_TOOL:
		return !m.GetToolResult().GetInterrupted()
	}
	return false
}

// speaks reports whether an entry is part of what was said and done.
func speaks(e *daemonv1.ConversationEntry) bool {
	m := e.GetMessage()
	return m.GetRole() == daemonv1.Role_ROLE_USER || byAgent(m) || m.GetToolResult() != nil
}

// lacks is what the session does not know of what was told.
func lacks(s journal.AgentSession, files agent.Session, told []*daemonv1.ConversationEntry) []*daemonv1.ConversationEntry {
	unanswered, last := lost(s, files, told)
	cut := int64(math.MaxInt64) // the agent's own files hold whatever else was said
	if s.FilesAt != nil {
		cut = max(*s.FilesAt, last)
	}
	var out []*daemonv1.ConversationEntry
	for _, e := range told {
		m := e.GetMessage()
		missing := false
		switch {
		case e.GetPosition() <= s.Known.Position || !speaks(e):
		case m.GetToolResult() != nil:
			missing = unanswered[m.GetToolResult().GetCallId()]
		case m.GetToolCall() != nil:
			missing = unanswered[m.GetToolCall().GetId()]
		default:
			missing = e.GetPosition() > cut
		}
		if missing {
			out = append(out, e)
		}
	}
	return out
}

// lost finds the tool calls whose results the session does not hold, and the
// position of the last result that it does.
func lost(s journal.AgentSession, files agent.Session, told []*daemonv1.ConversationEntry) (calls map[string]bool, last int64) {
	calls = map[string]bool{}
	held := files.ResultCount - s.Known.Results
	for _, e := range told {
		result := e.GetMessage().GetToolResult()
		if e.GetPosition() <= s.Known.Position || result == nil {
			continue
		}
		var has bool
		switch {
		case result.GetInterrupted():
		case files.Results != nil:
			has = files.Results[result.GetCallId()]
		case files.ResultCount >= 0:
			has = held > 0
			held--
		default:
			has = s.FilesAt == nil || e.GetPosition() <= *s.FilesAt
		}
		calls[result.GetCallId()] = !has
		if has {
			last = e.GetPosition()
		}
	}
	return calls, last
}
