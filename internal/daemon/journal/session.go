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

// Start is how prepare has an attempt's agent started.
type Start struct {
	Attempt int64                `json:"attempt"`
	Memory  v1alpha1.AgentMemory `json:"memory"`
	// Position is the last entry of the conversation that the agent is given.
	Position int64 `json:"position"`
	// Tokens are those counted in the session's files before the start; empty for a new
	// session of the agent's, nil if unknown.
	Tokens []agent.Tokens `json:"tokens"`
}

// KnownThrough is a point of the conversation up to which a session knows everything,
// whatever its files say: what they lacked was given to it in a prompt.
type KnownThrough struct {
	// Position is the position of the last entry.
	Position int64 `json:"position"`
	// Results is the number of tool results in the session's files at that moment.
	Results int `json:"results,omitempty"`
}

// AgentSession is a session of the agent's own, and how much of the conversation it knows.
// It is kept in the journal and in each checkpoint that contains its files.
type AgentSession struct {
	// Record is a daemonv1.AgentSession as protobuf JSON; see Message.
	Record json.RawMessage `json:"record"`
	// Attempt is the newest attempt that used it; 0 for a restored session.
	Attempt int64 `json:"attempt"`
	// Begun is the conversation's position when the session began.
	Begun int64 `json:"begun"`
	// Known is what the session certainly knows.
	Known KnownThrough `json:"known"`
	// Asked is what the prompt of the newest start adds to Known once the agent has
	// answered.
	Asked *KnownThrough `json:"asked,omitempty"`
	// FilesAt is the conversation's position when the files were saved with which the
	// newest start began; nil if they were those that the agent had left.
	FilesAt *int64 `json:"filesAt,omitempty"`
	// RestoredAt is the conversation's position when the files were saved that were
	// restored since the newest start; nil if none were.
	RestoredAt *int64 `json:"restoredAt,omitempty"`
}

// Message returns what the agent reported of its session; nil if there is none.
func (a *AgentSession) Message() *daemonv1.AgentSession {
	if a == nil {
		return nil
	}
	m := &daemonv1.AgentSession{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(a.Record, m); err != nil || m.GetId() == "" {
		return nil // written in a form that this daemon does not understand
	}
	return m
}

// RestoreSession records that the agent's home now contains the files of a session, or of
// none; RestoredAt must follow once that position is known.
func (s *State) RestoreSession(a *AgentSession) {
	s.AgentSession = a
	if a != nil {
		restored := *a
		restored.Attempt = 0
		s.AgentSession = &restored
	}
}

// RestoredAt records the conversation's position when the files were saved that
// RestoreSession is about.
func (s *State) RestoredAt(position int64) {
	// If files are restored twice without a start between, the first position counts.
	if s.AgentSession != nil && s.AgentSession.RestoredAt == nil {
		s.AgentSession.RestoredAt = &position
	}
}

// maxSessionField bounds each field that an agent reports of its session, in bytes.
const maxSessionField = 256

// bounded returns what an agent reports of its session with its fields truncated; nil if it
// cannot be a session.
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

// SetAgentSession records what the agent of this attempt reports of its session.
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
	next := AgentSession{Begun: start.Position, Known: KnownThrough{Position: start.Position}}
	if old != nil && (start.Memory == v1alpha1.AgentMemorySession || old.Attempt == s.Attempt && old.Message().GetId() == m.GetId()) {
		next = *old // an agent may rename a session that it resumes
	}
	next.Record, next.Attempt = plain.Bytes(), s.Attempt
	s.AgentSession = &next
	return nil
}

// RunningSession returns the session that the agent of this attempt resumes or has begun,
// as far as it is known; nil if it is to begin one.
func (s *State) RunningSession() *daemonv1.AgentSession {
	a := s.AgentSession
	if a == nil || (a.Attempt != s.Attempt && (s.Start == nil || s.Start.Memory != v1alpha1.AgentMemorySession)) {
		return nil
	}
	return a.Message()
}

// SameSession reports whether the journal already contains this session, so that
// SetAgentSession would change nothing.
func (s *State) SameSession(m *daemonv1.AgentSession) bool {
	m = bounded(m)
	return m == nil || s.AgentSession != nil && s.AgentSession.Attempt == s.Attempt && proto.Equal(s.AgentSession.Message(), m)
}

// UsableSession returns the session for a checkpoint to keep; nil if there is none or the
// agent would not resume it.
func (s *State) UsableSession() *AgentSession {
	if m := s.AgentSession.Message(); m == nil || m.GetId() == s.SessionRefused {
		return nil
	}
	return s.AgentSession
}
