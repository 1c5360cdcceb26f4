package run

import (
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// lineState is what goes with the spool's mark: what is known of the agent's
// run after that line.
type lineState struct {
	// produced says that the agent has said something or called a tool.
	produced bool
	// session is the agent's own session; nil if it is not known yet.
	session *daemonv1.AgentSession
}

func produced(rec *daemonv1.Record) bool {
	m := rec.GetMessage()
	return m.GetRole() == daemonv1.Role_ROLE_ASSISTANT || m.GetToolCall() != nil || m.GetToolResult() != nil
}

func (s lineState) encode() string {
	if !s.produced && s.session == nil {
		return ""
	}
	out := []byte{0}
	if s.produced {
		out[0] = 1
	}
	if s.session == nil {
		return string(out)
	}
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(out, s.session)
	if err != nil { // not possible: its strings are valid UTF-8
		return string(out[:1])
	}
	return string(out)
}

func decodeState(text string) lineState {
	if text == "" {
		return lineState{}
	}
	s := lineState{produced: text[0] == 1}
	session := &daemonv1.AgentSession{}
	if err := proto.Unmarshal([]byte(text[1:]), session); err == nil && session.GetId() != "" {
		s.session = session
	}
	return s
}

// agentState is what is known of the agent's run as of the last line recorded.
func (r *recorder) agentState() lineState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// recall reads what an earlier process knew of a session's run.
func (r *recorder) recall(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.spool.Mark(); m.Session == session && session != "" {
		r.state = decodeState(m.State)
	}
}
