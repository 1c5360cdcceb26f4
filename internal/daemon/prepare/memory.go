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

// continuePrompt is the prompt of an agent that was interrupted.
const continuePrompt = "Continue the task where you left off."

// knowledge is the input to the decision what the agent that starts remembers, and what its
// prompt must tell it.
type knowledge struct {
	agentType v1alpha1.AgentType
	// session is the agent's session in its home, refused the id of a session that the
	// agent would not resume.
	session *journal.AgentSession
	refused string
	// find reads the session's files.
	find func(id string) (agent.Session, error)
	// past is the conversation without the pending messages; pending are the user's
	// messages that the agent has not answered.
	past    []*daemonv1.ConversationEntry
	pending []string
	// head is the last position of both.
	head   int64
	render renderer
}

// renderer renders conversations as text, within limits.
type renderer struct {
	conversation, missing func([]*daemonv1.ConversationEntry) string
}

// memory is the decision.
type memory struct {
	kind v1alpha1.AgentMemory
	// message is the explanation for people.
	message string
	// id is the session to resume.
	id     string
	prompt string
	// tokens are those counted in the session's files.
	tokens []agent.Tokens
	// session is the agent's session as it is to be journalled.
	session *journal.AgentSession
}

// decide decides whether the agent resumes its own session, or gets the conversation
// rendered, or begins anew; and what its prompt is.
func (r knowledge) decide() memory {
	m := memory{prompt: strings.Join(r.pending, "\n\n")}
	if m.prompt == "" && len(r.past) > 0 {
		m.prompt = continuePrompt
	}
	if r.session != nil {
		session := caughtUp(behindGap(*r.session, r.head), r.past)
		m.session = &session
	}
	if !r.hasPast() {
		m.kind = v1alpha1.AgentMemoryNew
		return m
	}
	files, err := r.resumable(m.session)
	if err != nil {
		m.kind, m.message = v1alpha1.AgentMemoryRendered, fmt.Sprintf("the conversation so far is in the prompt: %v", err)
		m.prompt = join(r.render.conversation(r.past), m.prompt)
		return m
	}
	m.kind, m.id, m.tokens = v1alpha1.AgentMemorySession, m.session.Message().GetId(), files.Tokens
	m.message = fmt.Sprintf("the agent resumes its session %s", m.id)
	if missing := lacks(*m.session, files, r.past); len(missing) > 0 {
		m.message += fmt.Sprintf("; the part of the conversation that it lacks is in the prompt (%s)", messages(len(missing)))
		m.prompt = join(r.render.missing(missing), m.prompt)
	}
	m.session.Asked = &journal.KnownThrough{Position: r.head, Results: max(files.ResultCount, 0)}
	return m
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// join joins texts with a blank line between them.
func join(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t = strings.Trim(t, "\n"); t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n\n")
}

// hasPast reports whether anything was said before the pending messages.
func (r knowledge) hasPast() bool {
	for _, e := range r.past {
		if isSpoken(e) {
			return true
		}
	}
	return false
}

// resumable returns the files of the session, or an error that says why it cannot be
// resumed.
func (r knowledge) resumable(session *journal.AgentSession) (agent.Session, error) {
	record := session.Message()
	switch {
	case record == nil:
		return agent.Session{}, errors.New("no session of the agent is known")
	case record.GetAgent() != string(r.agentType):
		return agent.Session{}, fmt.Errorf("the session %s belongs to another agent, %s", record.GetId(), record.GetAgent())
	case record.GetId() == r.refused:
		return agent.Session{}, fmt.Errorf("the agent did not resume its session %s", record.GetId())
	case !answered(r.past, session.Begun, math.MaxInt64):
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

// behindGap drops what is known of a session by positions beyond the end of the
// conversation: the conversation has a gap, so everything after it has a lower position
// than before. What was said there is in the session's own files.
func behindGap(s journal.AgentSession, head int64) journal.AgentSession {
	if s.Begun > head {
		s.Begun = 0
	}
	if s.Known.Position > head {
		s.Known = journal.KnownThrough{}
	}
	if s.Asked != nil && s.Asked.Position > head {
		s.Asked = nil
	}
	return s
}

// caughtUp updates the session with what has happened since the newest start: whether the
// agent received its prompt, and whether other files were restored.
func caughtUp(s journal.AgentSession, past []*daemonv1.ConversationEntry) journal.AgentSession {
	through := int64(math.MaxInt64)
	if s.RestoredAt != nil {
		through = *s.RestoredAt
	}
	if s.Asked != nil && answered(past, s.Asked.Position, through) {
		s.Known, s.Asked, s.FilesAt = *s.Asked, nil, nil
	}
	s.FilesAt, s.RestoredAt = cmp.Or(s.FilesAt, s.RestoredAt), nil
	return s
}

// answered reports whether the agent said anything after position after, up to position
// through.
func answered(past []*daemonv1.ConversationEntry, after, through int64) bool {
	for _, e := range past {
		if e.GetPosition() > after && e.GetPosition() <= through && byAgent(e.GetMessage()) {
			return true
		}
	}
	return false
}

// byAgent reports whether a message is the agent's own or a tool's result, unless that was
// interrupted.
func byAgent(m *daemonv1.Message) bool {
	switch m.GetRole() {
	case daemonv1.Role_ROLE_ASSISTANT, daemonv1.Role_ROLE_TOOL:
		return !m.GetToolResult().GetInterrupted()
	}
	return false
}

// isSpoken reports whether an entry is something that was said or done, and no note of
// Clew's.
func isSpoken(e *daemonv1.ConversationEntry) bool {
	m := e.GetMessage()
	return m.GetRole() == daemonv1.Role_ROLE_USER || byAgent(m) || m.GetToolResult() != nil
}

// lacks returns the entries of the conversation that the session does not contain.
func lacks(s journal.AgentSession, files agent.Session, past []*daemonv1.ConversationEntry) []*daemonv1.ConversationEntry {
	unanswered, last := lost(s, files, past)
	filesThrough := int64(math.MaxInt64) // everything else is in the agent's own files
	if s.FilesAt != nil {
		filesThrough = max(*s.FilesAt, last)
	}
	var out []*daemonv1.ConversationEntry
	for _, e := range past {
		m := e.GetMessage()
		missing := false
		switch {
		case e.GetPosition() <= s.Known.Position || !isSpoken(e):
		case m.GetToolResult() != nil:
			missing = unanswered[m.GetToolResult().GetCallId()]
		case m.GetToolCall() != nil:
			missing = unanswered[m.GetToolCall().GetId()]
		default:
			missing = e.GetPosition() > filesThrough
		}
		if missing {
			out = append(out, e)
		}
	}
	return out
}

// lost returns the tool calls whose results the session does not contain, and the position
// of the last result that it does.
func lost(s journal.AgentSession, files agent.Session, past []*daemonv1.ConversationEntry) (calls map[string]bool, last int64) {
	calls = map[string]bool{}
	held := files.ResultCount - s.Known.Results
	for _, e := range past {
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
