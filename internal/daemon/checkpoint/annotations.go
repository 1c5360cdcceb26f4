package checkpoint

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// Names of the annotations that a checkpoint carries beside the files.
const (
	// sessionAnnotation is the agent's session, so that whoever restores the files knows
	// which session they contain.
	sessionAnnotation = "agent-session"
	// recordAnnotation is the checkpoint's record, as far as it is known beforehand, and
	// the record after which it is taken. It allows the record to be made again if the
	// history loses it.
	recordAnnotation = "record"
)

// annotate returns the annotations of the checkpoint about to be taken.
func (t *Taker) annotate(req Request, s *journal.State, now time.Time) (map[string]string, error) {
	record := t.newRecord(req, s, now)
	record.AfterSequence = t.Spool.Last()
	b, err := protojson.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encode the checkpoint's record for its annotations: %w", err)
	}
	annotations := map[string]string{recordAnnotation: string(b)}
	session := s.UsableSession()
	if session == nil {
		return annotations, nil
	}
	if b, err = json.Marshal(session); err != nil {
		return nil, fmt.Errorf("encode the agent's session for the checkpoint's annotations: %w", err)
	}
	annotations[sessionAnnotation] = string(b)
	return annotations, nil
}

// Session returns the agent's session whose files a checkpoint with these annotations
// contains; nil if it contains none.
func Session(annotations map[string]string) *journal.AgentSession {
	var session journal.AgentSession
	if json.Unmarshal([]byte(annotations[sessionAnnotation]), &session) != nil || session.Message() == nil {
		return nil
	}
	return &session
}

// AfterSequence returns the task's last record before a checkpoint with these annotations
// was taken; 0 if unknown.
func AfterSequence(annotations map[string]string) int64 {
	return recordOf(annotations).GetAfterSequence()
}

// recordOf returns the record in the annotations; nil if there is none, as in checkpoints
// of older daemons.
func recordOf(annotations map[string]string) *daemonv1.CheckpointRecord {
	r := &daemonv1.CheckpointRecord{}
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(annotations[recordAnnotation]), r) != nil {
		return nil
	}
	return r
}

// RecordAgain records a checkpoint that the gitstore has and the history has lost. It does
// nothing if the annotations do not say where the checkpoint belongs.
func (t *Taker) RecordAgain(p journal.Point, meta worktree.Meta) error {
	r := recordOf(meta.Annotations)
	if r.GetAfterSequence() == 0 || r.GetNumber() != p.Number {
		return nil
	}
	describe(r, meta.Checkpoint())
	r.Commit, r.StateCommit, r.Durable = p.Code, p.State, true
	return t.spoolRecord(r)
}
