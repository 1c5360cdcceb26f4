// Package agentstate is the state of one run of the agent, as of its last recorded line. It
// is stored with the spool's mark, in the same write as the records: a daemon that takes
// over, and the prepare of the next attempt, continue from it.
package agentstate

import (
	"encoding/json"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// State is the state of a run.
type State struct {
	// Produced is set once the agent has said something or called a tool.
	Produced bool
	// Session is the agent's own session; nil if not known yet.
	Session *daemonv1.AgentSession
	// Outcome is what the run has reported of its end.
	Outcome agent.Outcome
	// Begun are the calls that the hook has reported and the output has not, oldest first:
	// if the agent dies now, they were interrupted.
	Begun []Call
	// Counted are the tokens of this run that were added to the totals from the files of
	// its session, before its output reported them.
	Counted []agent.Tokens
	// Answered are the calls of a supervisor's tools whose answers may not have reached the agent,
	// oldest first.
	Answered []Answered
}

// Call is a tool call reported by the hook.
type Call struct {
	// Key identifies one run of the hook.
	Key string `json:"key"`
	// ID is the call's id; it is made up if Unnamed.
	ID      string `json:"id"`
	Unnamed bool   `json:"unnamed,omitempty"`
	Name    string `json:"name"`
	// Input is JSON.
	Input string `json:"input"`
}

// Messages returns what is recorded of a call that was interrupted before the output
// reported it.
func (c Call) Messages() []*daemonv1.Message {
	return []*daemonv1.Message{
		{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: c.ID, Name: c.Name, Input: c.Input}},
		agent.Interrupted(c.ID),
	}
}

// Recorded updates the state with a message that is being recorded.
func (s *State) Recorded(m *daemonv1.Message) {
	call := m.GetToolCall()
	s.Produced = s.Produced || m.GetRole() == daemonv1.Role_ROLE_ASSISTANT || call != nil || m.GetToolResult() != nil
	switch {
	case len(s.Begun) == 0:
	case call != nil:
		i := slices.IndexFunc(s.Begun, func(b Call) bool { return b.ID == call.GetId() })
		if i < 0 {
			i = slices.IndexFunc(s.Begun, func(b Call) bool { return b.Unnamed && b.Name == call.GetName() })
		}
		if i >= 0 {
			s.Begun = slices.Delete(slices.Clone(s.Begun), i, i+1)
		}
	case m.GetRole() == daemonv1.Role_ROLE_ASSISTANT && m.GetText() != "":
		// The agent has continued, so a call that it has not reported by now will never be.
		s.Begun = slices.DeleteFunc(slices.Clone(s.Begun), func(b Call) bool { return b.Unnamed })
	}
}

// versioned is the first byte of a state in a form that older releases do not write.
const versioned = 2

type encoded struct {
	Produced bool           `json:"produced,omitempty"`
	Session  []byte         `json:"session,omitempty"`
	Outcome  agent.Outcome  `json:"outcome,omitzero"`
	Begun    []Call         `json:"begun,omitempty"`
	Counted  []agent.Tokens `json:"counted,omitempty"`
	Answered []Answered     `json:"answered,omitempty"`
}

// Encode renders the state; it is empty for the zero State.
func (s State) Encode() string {
	var session []byte
	if s.Session != nil {
		var err error
		session, err = proto.MarshalOptions{Deterministic: true}.Marshal(s.Session)
		if err != nil { // not possible: its strings are valid UTF-8
			session = nil
		}
	}
	if s.Outcome == (agent.Outcome{}) && len(s.Begun) == 0 && len(s.Counted) == 0 && len(s.Answered) == 0 {
		return s.plain(session)
	}
	body, err := json.Marshal(encoded{s.Produced, session, s.Outcome, s.Begun, s.Counted, s.Answered})
	if err != nil { // not possible with these fields
		return s.plain(session)
	}
	return string(append([]byte{versioned}, body...))
}

// plain renders the state as the first releases did.
func (s State) plain(session []byte) string {
	if !s.Produced && len(session) == 0 {
		return ""
	}
	first := byte(0)
	if s.Produced {
		first = 1
	}
	return string(append([]byte{first}, session...))
}

// Decode parses what Encode wrote, in this release or an older one.
func Decode(text string) State {
	if text == "" {
		return State{}
	}
	e := encoded{Produced: text[0] == 1, Session: []byte(text[1:])}
	if text[0] == versioned {
		e = encoded{}
		if json.Unmarshal([]byte(text[1:]), &e) != nil {
			return State{}
		}
	}
	s := State{Produced: e.Produced, Outcome: e.Outcome, Begun: e.Begun, Counted: e.Counted, Answered: e.Answered}
	session := &daemonv1.AgentSession{}
	if err := proto.Unmarshal(e.Session, session); err == nil && session.GetId() != "" {
		s.Session = session
	}
	return s
}
