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
	// maxListed is the number of files in each list of files that checkpoints do not contain or
	// commits do not, and maxChanged in the list of changed files.
	maxListed, maxChanged = 100, 50
	// maxPath is the length of a path, in characters.
	maxPath = 1024
	// listBytes is the size of each of the three lists of files, as JSON. The agent chooses
	// the names of its files, every checkpoint repeats the lists, and etcd stores them all.
	listBytes = 2048
	// maxBranch is the length of a branch name, in characters.
	maxBranch = 255
	// maxRefusal is the length of the gitstore's message, in characters. It keeps a condition
	// well below the 32768 characters that are allowed.
	maxRefusal = 1024
)

// fill writes the contents of a record to a status.
func fill(s *v1alpha1.CheckpointStatus, row history.Checkpoint, generation int64, reason, message string) {
	conditions, branches, pushes, group := s.Conditions, s.Branches, s.BranchPushes, s.Set
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
		ChangedFiles: changedFiles(row.Changes),
		Git: &v1alpha1.GitPosition{
			Head: row.GitHead, Branch: resources.PlainText(row.GitBranch, maxBranch), DirtyFiles: paths(row.DirtyFiles), DirtyFileCount: row.DirtyFileCount,
		},
		Files:        row.Files,
		Bytes:        row.Bytes,
		Skipped:      skipped(row.Skipped),
		SkippedCount: row.SkippedCount,
	}
	s.Conditions, s.Branches, s.BranchPushes, s.Set = conditions, branches, pushes, group
	set := func(kind string, ok bool, reason, message string) {
		status := metav1.ConditionFalse
		if ok {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		})
	}
	if s.Set == nil { // whether a set is ready depends on all of its members
		set(v1alpha1.CheckpointReady, true, reason, message+rest(s, row))
	}
	switch {
	case row.Durable:
		set(v1alpha1.CheckpointDurable, true, v1alpha1.ReasonPushed, "the gitstore has it")
	case row.Lost:
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonCheckpointLost, resources.PlainText(row.Refused, maxRefusal))
	case row.Refused != "":
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonGitStoreRefused,
			"the gitstore refuses it, so only the task's volume has it: "+resources.PlainText(row.Refused, maxRefusal))
	default:
		set(v1alpha1.CheckpointDurable, false, v1alpha1.ReasonNotPushed, "it is being pushed to the gitstore")
	}
}

// seconds returns a time as the API server stores it, so that a written and a read time
// compare equal.
func seconds(t time.Time) *metav1.Time {
	return ptr.To(metav1.NewTime(t.Truncate(time.Second)))
}

// paths limits a list from an untrusted worktree to what a status may contain; the counts
// beside it include all files.
func paths(list []string) []string {
	return within(list, maxListed, func(p string) string { return resources.PlainText(p, maxPath) })
}

// skipped limits a list of skipped files like paths.
func skipped(list []history.SkippedFile) []v1alpha1.SkippedFile {
	return within(list, maxListed, func(f history.SkippedFile) v1alpha1.SkippedFile {
		return v1alpha1.SkippedFile{
			Path: resources.PlainText(f.Path, maxPath), Reason: resources.PlainText(f.Reason, 63), Bytes: f.Bytes,
		}
	})
}

// changedFiles limits a list of changed files like paths.
func changedFiles(list []history.FileChange) []v1alpha1.ChangedFile {
	return within(list, maxChanged, func(f history.FileChange) v1alpha1.ChangedFile {
		file := v1alpha1.ChangedFile{Path: resources.PlainText(f.Path, maxPath)}
		switch a := v1alpha1.FileAction(f.Action); a {
		case v1alpha1.FileAdded, v1alpha1.FileModified, v1alpha1.FileDeleted:
			file.Action = a
		}
		return file
	})
}

// within returns the beginning of a list that has at most this many items and fits, as JSON,
// in listBytes.
func within[From, To any](list []From, most int, shown func(From) To) []To {
	list = list[:min(len(list), most)]
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

// rest returns a clause for the condition Ready about files that only the history has; ""
// if the status has all of them.
func rest(s *v1alpha1.CheckpointStatus, row history.Checkpoint) string {
	if len(s.Skipped) == len(row.Skipped) && len(s.Git.DirtyFiles) == len(row.DirtyFiles) && len(s.ChangedFiles) == len(row.Changes) {
		return ""
	}
	return "; its lists of files are truncated here, the history has more of them"
}

// conversation returns the position in the conversation.
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

// consistency returns the record's value, if this version knows it.
func consistency(recorded string) v1alpha1.CheckpointConsistency {
	switch c := v1alpha1.CheckpointConsistency(recorded); c {
	case v1alpha1.ConsistencyPointInTime, v1alpha1.ConsistencyAgentNotStopped, v1alpha1.ConsistencyAgentThawed:
		return c
	}
	return ""
}

// maxID is the length of what an untrusted agent reports about itself, in characters.
const maxID = 256

// riskyTool returns the call that the checkpoint was taken before; nil for none.
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

// session returns the agent's session; nil if it has none.
func session(s *history.AgentSession) *v1alpha1.AgentSession {
	if s == nil || s.ID == "" {
		return nil
	}
	return &v1alpha1.AgentSession{
		Agent: resources.PlainText(s.Agent, 63), ID: resources.PlainText(s.ID, maxID), Version: resources.PlainText(s.Version, maxID),
	}
}
