// Package agentstate is what is known of a run of the agent as of the last line of
// it that is recorded. It is kept with the spool's mark, in the same write as the
// records: a daemon that takes over, and the prepare of the next attempt, go on
// from it.
package agentstate

import (
	"encoding/json"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// State is what is known of a run.
type State struct {
	// Produced says that the agent has said something or called a tool.
	Produced bool
	// Session is the agent's own session; nil if it is not known yet.
	Session *daemonv1.AgentSession
	// Outcome is what the run has told of its end.
	Outcome agent.Outcome
	// Begun are calls that the hook has told of and the output has not, oldest
	// first: if the agent dies now, they were cut.
	Begun []Call
	// Counted are tokens of this run that were added to the totals by the files of
	// its session, before its output told of them.
	Counted []agent.Tokens
}

// Call is a tool call that the hook has told of.
type Call struct {
	// Key tells one run of the hook from another.
	Key string `json:"key"`
	// ID is the call's; made up if Unnamed.
	ID      string `json:"id"`
	Unnamed bool   `json:"unnamed,omitempty"`
	Name    string `json:"name"`
	// Input is JSON.
	Input string `json:"input"`
}

// Messages are what is recorded of a call that was cut before the output told
// of it.
func (c Call) Messages() []*daemonv1.Message {
	return []*daemonv1.Message{
		{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: c.ID, Name: c.Name, Input: c.Input}},
		agent.Interrupted(c.ID),
	}
}

// Recorded takes into account a message that is recorded.
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
		// The agent went on: a call that it has not told of by now, it never will.
		s.Begun = slices.DeleteFunc(slices.Clone(s.Begun), func(b Call) bool { return b.Unnamed })
	}
}

// versioned begins a state that older releases do not write.
const versioned = 2

type encoded struct {
	Produced bool           `json:"produced,omitempty"`
	Session  []byte         `json:"session,omitempty"`
	Outcome  agent.Outcome  `json:"outcome,omitzero"`
	Begun    []Call         `json:"begun,omitempty"`
	Counted  []agent.Tokens `json:"counted,omitempty"`
}

// Encode is empty for the zero State.
func (s State) Encode() string {
	var session []byte
	if s.Session != nil {
		var err error
		session, err = proto.MarshalOptions{Deterministic: true}.Marshal(s.Session)
		if err != nil { // not possible: its strings are valid UTF-8
			session = nil
		}
	}
	if s.Outcome == (agent.Outcome{}) && len(s.Begun) == 0 && len(s.Counted) == 0 {
		return s.plain(session)
	}
	body, err := json.Marshal(encoded{s.Produced, session, s.Outcome, s.Begun, s.Counted})
	if err != nil { // not possible with these fields
		return s.plain(session)
	}
	return string(append([]byte{versioned}, body...))
}

// plain is how states were written by the first releases.
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

// Decode reads what Encode wrote, now or in an older release.
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
	s := State{Produced: e.Produced, Outcome: e.Outcome, Begun: e.Begun, Counted: e.Counted}
	session := &daemonv1.AgentSession{}
	if err := proto.Unmarshal(e.Session, session); err == nil && session.GetId() != "" {
		s.Session = session
	}
	return s
}
