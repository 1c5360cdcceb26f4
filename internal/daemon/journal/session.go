package journal

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Start is what prepare has the agent of an attempt started with.
type Start struct {
	Attempt int64                `json:"attempt"`
	Memory  v1alpha1.AgentMemory `json:"memory"`
	// Position is the last entry of the conversation that the agent is told of.
	Position int64 `json:"position"`
	// Tokens are those that the session's files told of before the start; empty
	// for a session of the agent's own that begins, nil where it is not known.
	Tokens []agent.Tokens `json:"tokens"`
}

// Told is a point of the conversation up to which a session knows everything,
// whatever its files say: what they lacked was told in a prompt.
type Told struct {
	// Position is the last entry.
	Position int64 `json:"position"`
	// Results is how many tool results the session's files held then.
	Results int `json:"results,omitempty"`
}

// AgentSession is a session of the agent's own, with what is known of what it
// knows. It is kept in the journal and in each checkpoint that holds its files.
type AgentSession struct {
	// Record is a daemonv1.AgentSession as protobuf JSON; see Message.
	Record json.RawMessage `json:"record"`
	// Attempt is the newest one that used it; 0 for a session that was restored.
	Attempt int64 `json:"attempt"`
	// Begun is where the conversation stood when it began.
	Begun int64 `json:"begun"`
	// Known is what it surely knows.
	Known Told `json:"known"`
	// Asked is what the prompt of the newest start tells, which is known when
	// the agent has answered.
	Asked *Told `json:"asked,omitempty"`
	// FilesAt is where the conversation stood when the files were saved with
	// which the newest start began; nil if they were those the agent had left.
	FilesAt *int64 `json:"filesAt,omitempty"`
	// RestoredAt is where the conversation stood when the files were saved that
	// were restored since the newest start; nil if none were.
	RestoredAt *int64 `json:"restoredAt,omitempty"`
}

// Message is what the agent says of its session; nil if there is none.
func (a *AgentSession) Message() *daemonv1.AgentSession {
	if a == nil {
		return nil
	}
	m := &daemonv1.AgentSession{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(a.Record, m); err != nil || m.GetId() == "" {
		return nil // written by a daemon that this one does not understand
	}
	return m
}

// RestoreSession notes that the agent's home now holds the files of a session,
// or none; RestoredAt must follow when it is known.
func (s *State) RestoreSession(a *AgentSession) {
	s.AgentSession = a
	if a != nil {
		restored := *a
		restored.Attempt = 0
		s.AgentSession = &restored
	}
}

// RestoredAt notes where the conversation stood when the files were saved that
// RestoreSession tells of.
func (s *State) RestoredAt(position int64) {
	// Files that were restored twice, without a start between, are those of the
	// first time.
	if s.AgentSession != nil && s.AgentSession.RestoredAt == nil {
		s.AgentSession.RestoredAt = &position
	}
}

// maxSessionField bounds each thing that an agent says of its session, in bytes.
const maxSessionField = 256

// bounded is what an agent says of its session, as it is kept; nil if it cannot
// be one.
func bounded(m *daemonv1.AgentSession) *daemonv1.AgentSession {
	if m.GetId() == "" || len(m.GetId()) > maxSessionField {
		return nil
	}
	m = proto.CloneOf(m)
	for _, field := range []*string{&m.Version, &m.Model} {
		*field = clip.Bytes(*field, maxSessionField)
	}
	return m
}

// SetAgentSession notes what the agent of this attempt says of its session.
func (s *State) SetAgentSession(m *daemonv1.AgentSession) error {
	if m = bounded(m); m == nil {
		return nil
	}
	record, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the agent's session for the journal: %w", err)
	}
	var plain bytes.Buffer // protojson varies its white space
	if err := json.Compact(&plain, record); err != nil {
		return fmt.Errorf("encode the agent's session for the journal: %w", err)
	}
	old, start := s.AgentSession, Start{}
	if s.Start != nil {
		start = *s.Start
	}
	next := AgentSession{Begun: start.Position, Known: Told{Position: start.Position}}
	if old != nil && (start.Memory == v1alpha1.AgentMemorySession || old.Attempt == s.Attempt && old.Message().GetId() == m.GetId()) {
		next = *old // an agent may give a session that goes on another name
	}
	next.Record, next.Attempt = plain.Bytes(), s.Attempt
	s.AgentSession = &next
	return nil
}

// RunningSession is the session that the agent of this attempt goes on with or
// has begun, as far as it is known; nil if it is to begin one.
func (s *State) RunningSession() *daemonv1.AgentSession {
	a := s.AgentSession
	if a == nil || (a.Attempt != s.Attempt && (s.Start == nil || s.Start.Memory != v1alpha1.AgentMemorySession)) {
		return nil
	}
	return a.Message()
}

// SameSession reports whether the journal already says that of the session, so
// that SetAgentSession would change nothing.
func (s *State) SameSession(m *daemonv1.AgentSession) bool {
	m = bounded(m)
	return m == nil || s.AgentSession != nil && s.AgentSession.Attempt == s.Attempt && proto.Equal(s.AgentSession.Message(), m)
}

// UsableSession is the session for a checkpoint to keep; nil if there is none,
// or the agent would not resume it.
func (s *State) UsableSession() *AgentSession {
	if m := s.AgentSession.Message(); m == nil || m.GetId() == s.SessionRefused {
		return nil
	}
	return s.AgentSession
}
