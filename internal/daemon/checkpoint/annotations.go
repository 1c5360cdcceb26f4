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

// Names of what a checkpoint keeps beside the files.
const (
	// sessionAnnotation is the agent's session: whoever restores the files must know
	// which one they hold.
	sessionAnnotation = "agent-session"
	// recordAnnotation is what the checkpoint's record says, as far as it is known
	// beforehand, and after which record it is taken: the record may be lost.
	recordAnnotation = "record"
)

// annotate is what a checkpoint is to keep beside the files.
func (t *Taker) annotate(req Request, s *journal.State, now time.Time) (map[string]string, error) {
	record := t.asked(req, s, now)
	record.AfterSequence = t.Spool.Last()
	b, err := protojson.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("note what the checkpoint is for: %w", err)
	}
	annotations := map[string]string{recordAnnotation: string(b)}
	session := s.UsableSession()
	if session == nil {
		return annotations, nil
	}
	if b, err = json.Marshal(session); err != nil {
		return nil, fmt.Errorf("note the agent's session in the checkpoint: %w", err)
	}
	annotations[sessionAnnotation] = string(b)
	return annotations, nil
}

// Session is the agent's session whose files a checkpoint with these annotations
// holds; nil if it holds none.
func Session(annotations map[string]string) *journal.AgentSession {
	var session journal.AgentSession
	if json.Unmarshal([]byte(annotations[sessionAnnotation]), &session) != nil || session.Message() == nil {
		return nil
	}
	return &session
}

// AfterSequence is the task's last record before a checkpoint with these
// annotations was taken; 0 if it does not say so.
func AfterSequence(annotations map[string]string) int64 {
	return recordOf(annotations).GetAfterSequence()
}

// recordOf is what the annotations say of the record; nil if they do not, as those
// of older daemons.
func recordOf(annotations map[string]string) *daemonv1.CheckpointRecord {
	r := &daemonv1.CheckpointRecord{}
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(annotations[recordAnnotation]), r) != nil {
		return nil
	}
	return r
}

// TellAgain records a checkpoint that the gitstore has and the history has lost. It
// does nothing for one that does not say where it belongs.
func (t *Taker) TellAgain(p journal.Point, meta worktree.Meta) error {
	r := recordOf(meta.Annotations)
	if r.GetAfterSequence() == 0 || r.GetNumber() != p.Number {
		return nil
	}
	describe(r, meta.Checkpoint())
	r.Commit, r.StateCommit, r.Durable = p.Code, p.State, true
	return t.tell(r)
}
