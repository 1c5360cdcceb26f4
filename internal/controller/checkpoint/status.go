package checkpoint

import (
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	maxListed = 100
	maxPath   = 1024
	// listBytes is what each of the two lists of files may take of an object. The
	// agent chooses the names of its files, the lists are told again by every
	// checkpoint, and all of them lie in etcd.
	listBytes = 2048
	maxBranch = 255
	// maxRefusal keeps a condition well below the 32768 characters it may have.
	maxRefusal = 1024
)

// fill writes what a record says into a status.
func fill(s *v1alpha1.CheckpointStatus, row history.Checkpoint, generation int64, reason, message string) {
	conditions := s.Conditions
	*s = v1alpha1.CheckpointStatus{
		ObservedGeneration: generation,
		TaskUID:            row.TaskUID,
		Number:             row.Number,
		Attempt:            row.Attempt,
		Trigger:            v1alpha1.CheckpointTrigger(row.Trigger),
		Time:               seconds(row.Time),
		Commit:             row.Commit,
		Tree:               row.Tree,
		Parent:             row.Parent,
		Base:               row.Base,
		StateCommit:        row.StateCommit,
		Consistency:        consistency(row.Consistency),
		FrozenMilliseconds: max(0, row.FrozenMilliseconds),
		RiskyTool:          riskyTool(row.RiskyTool),
		Session:            session(row.Session),
		Conversation:       conversation(row),
		Code: &v1alpha1.CodeStats{
			FilesChanged: row.FilesChanged, LinesAdded: row.LinesAdded, LinesRemoved: row.LinesRemoved,
		},
		Git: &v1alpha1.GitPosition{
			Head: row.GitHead, Branch: resources.PlainText(row.GitBranch, maxBranch), DirtyFiles: paths(row.DirtyFiles), DirtyFileCount: row.DirtyFileCount,
		},
		Files:        row.Files,
		Bytes:        row.Bytes,
		Skipped:      skipped(row.Skipped),
		SkippedCount: row.SkippedCount,
	}
	s.Conditions = conditions
	set := func(kind string, ok bool, reason, message string) {
		status := metav1.ConditionFalse
		if ok {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		})
	}
	set(v1alpha1.CheckpointReady, true, reason, message+rest(s, row))
	switch {
	case row.Durable:
		set(v1alpha1.CheckpointDurable, true, v1alpha1.ReasonPushed, "the gitstore has it")
	case row.Lost:
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonCheckpointLost, resources.PlainText(row.Refused, maxRefusal))
	case row.Refused != "":
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonGitStoreRefused,
			"the gitstore does not take it, and it stands on the volume alone: "+resources.PlainText(row.Refused, maxRefusal))
	default:
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonNotPushed, "it is on its way to the gitstore")
	}
}

// seconds is a time as the API server stores it: what is written and what is
// read then compare equal.
func seconds(t time.Time) *metav1.Time {
	return ptr.To(metav1.NewTime(t.Truncate(time.Second)))
}

// paths cuts a list that came out of an untrusted worktree to what a status may
// hold; the counts beside it are of all.
func paths(list []string) []string {
	return within(list, func(p string) string { return resources.PlainText(p, maxPath) })
}

func skipped(list []history.SkippedFile) []v1alpha1.SkippedFile {
	return within(list, func(f history.SkippedFile) v1alpha1.SkippedFile {
		return v1alpha1.SkippedFile{
			Path: resources.PlainText(f.Path, maxPath), Reason: resources.PlainText(f.Reason, 63), Bytes: f.Bytes,
		}
	})
}

// within is the beginning of a list that fits, as JSON, in listBytes.
func within[From, To any](list []From, shown func(From) To) []To {
	list = list[:min(len(list), maxListed)]
	out := make([]To, 0, len(list))
	room := listBytes
	for _, item := range list {
		one := shown(item)
		encoded, err := json.Marshal(one)
		if room -= len(encoded) + 1; err != nil || room < 0 {
			break
		}
		out = append(out, one)
	}
	return out
}

// rest is a word for the condition Ready on the files that stand in the history
// alone; "" when the status has all that the record has.
func rest(s *v1alpha1.CheckpointStatus, row history.Checkpoint) string {
	if len(s.Skipped) == len(row.Skipped) && len(s.Git.DirtyFiles) == len(row.DirtyFiles) {
		return ""
	}
	return "; its lists of files are cut here, and the history has more of them"
}

func conversation(row history.Checkpoint) *v1alpha1.CheckpointConversation {
	return &v1alpha1.CheckpointConversation{
		ConversationPosition: v1alpha1.ConversationPosition{
			Branch: row.Position.Branch, Position: row.Position.Position, ToolCalls: row.Position.ToolCalls,
		},
		MessageCount: row.Totals.Messages,
		InputTokens:  row.Totals.InputTokens,
		OutputTokens: row.Totals.OutputTokens,
		CostMicroUSD: row.Totals.CostMicroUSD,
		Digest:       row.Digest,
	}
}

// consistency is what a record says, if it is a value that this version knows.
func consistency(said string) v1alpha1.CheckpointConsistency {
	switch c := v1alpha1.CheckpointConsistency(said); c {
	case v1alpha1.ConsistencyPointInTime, v1alpha1.ConsistencyAgentNotStopped, v1alpha1.ConsistencyAgentThawed:
		return c
	}
	return ""
}

// maxID bounds what an untrusted agent says of itself.
const maxID = 256

func riskyTool(t *history.RiskyTool) *v1alpha1.RiskyTool {
	if t == nil {
		return nil
	}
	guarantee := v1alpha1.RiskyToolBestEffort
	if t.Before {
		guarantee = v1alpha1.RiskyToolBefore
	}
	return &v1alpha1.RiskyTool{
		Name: resources.PlainText(t.Name, maxID), CallID: resources.PlainText(t.CallID, maxID), Guarantee: guarantee,
	}
}

func session(s *history.AgentSession) *v1alpha1.AgentSession {
	if s == nil || s.ID == "" {
		return nil
	}
	return &v1alpha1.AgentSession{
		Agent: resources.PlainText(s.Agent, 63), ID: resources.PlainText(s.ID, maxID), Version: resources.PlainText(s.Version, maxID),
	}
}
