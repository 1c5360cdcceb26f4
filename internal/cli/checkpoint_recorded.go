package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// recorded reads a checkpoint of a task from the history, which has those without an object
// as well.
func (s *session) recorded(ctx context.Context, task *v1alpha1.Task, number int64) (*historyv1.Checkpoint, error) {
	recorded := &historyv1.Checkpoint{}
	path := []string{"tasks", task.Name, "checkpoints", strconv.FormatInt(number, 10)}
	return recorded, s.historyGet(ctx, path, url.Values{"uid": {string(task.UID)}}, recorded)
}

// recordedOr reads a checkpoint without an object from the history; if the history does not
// have it either, the error is that there is no such object.
func (s *session) recordedOr(ctx context.Context, task *v1alpha1.Task, missing *noObject) (*historyv1.Checkpoint, error) {
	if missing.number < 1 {
		return nil, missing
	}
	recorded, err := s.recorded(ctx, task, missing.number)
	var unknown *notInHistory
	switch {
	case errors.As(err, &unknown):
		return nil, missing
	case err != nil:
		return nil, fmt.Errorf("%w (whether the history has it could not be found out: %w)", missing, err)
	}
	return recorded, nil
}

// presentOr reads a checkpoint without an object from the history, as recordedOr does, and fails if
// the checkpoint is lost.
func (s *session) presentOr(ctx context.Context, task *v1alpha1.Task, missing *noObject) (*historyv1.Checkpoint, error) {
	recorded, err := s.recordedOr(ctx, task, missing)
	if err == nil && recorded.Lost {
		return nil, fmt.Errorf("checkpoint %d is lost: neither the gitstore nor the task's volume has it any more; choose another checkpoint", recorded.Number)
	}
	return recorded, err
}

// allRecorded reads all checkpoints of a task from the history, without their lists of files,
// oldest first.
func (s *session) allRecorded(ctx context.Context, task *v1alpha1.Task) ([]historyv1.Checkpoint, error) {
	params := url.Values{"uid": {string(task.UID)}}
	var all []historyv1.Checkpoint
	for {
		page := &historyv1.CheckpointList{}
		if err := s.historyGet(ctx, []string{"tasks", task.Name, "checkpoints"}, params, page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" {
			slices.Reverse(all)
			return all, nil
		}
		params = url.Values{"continue": {page.Continue}}
	}
}

// objectOf returns a recorded checkpoint in the form of an object, without a name. The schema bounds
// the words and ids of an object, which are printed as they are, and nobody those of a record: a
// history may be imported. Here they are made safe for a terminal.
func objectOf(task *v1alpha1.Task, c *historyv1.Checkpoint) *v1alpha1.Checkpoint {
	object := &v1alpha1.Checkpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Checkpoint"},
		Spec:     v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}, Message: c.Message},
	}
	object.Namespace = task.Namespace
	object.Status = v1alpha1.CheckpointStatus{
		TaskUID: c.TaskUID, Number: c.Number, Attempt: c.Attempt, Trigger: v1alpha1.CheckpointTrigger(oneLine(c.Trigger)),
		Time: &metav1.Time{Time: c.Time.Time}, Consistency: v1alpha1.CheckpointConsistency(oneLine(c.Consistency)), FrozenMilliseconds: c.FrozenMilliseconds,
		Commit: oneLine(c.Commit), Tree: oneLine(c.Tree), Parent: oneLine(c.Parent), Base: oneLine(c.Base), StateCommit: oneLine(c.StateCommit),
		Code:  &v1alpha1.CodeStats{FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved},
		Files: c.Files, Bytes: c.Bytes, SkippedCount: c.SkippedCount,
		Git: &v1alpha1.GitPosition{Head: oneLine(c.GitHead), Branch: c.GitBranch, DirtyFiles: c.DirtyFiles, DirtyFileCount: c.DirtyFileCount},
		Conversation: &v1alpha1.CheckpointConversation{
			ConversationPosition: v1alpha1.ConversationPosition{Branch: c.Branch, Position: c.Position, ToolCalls: c.ToolCalls},
			MessageCount:         c.Position,
			InputTokens:          c.InputTokens, OutputTokens: c.OutputTokens, CostMicroUSD: c.CostMicroUSD, Digest: c.Digest,
		},
		Conditions: recordedConditions(c),
	}
	for _, f := range c.ChangedFiles {
		object.Status.ChangedFiles = append(object.Status.ChangedFiles, v1alpha1.ChangedFile{Path: f.Path, Action: v1alpha1.FileAction(oneLine(f.Action))})
	}
	for _, f := range c.Skipped {
		f.Reason = oneLine(f.Reason)
		object.Status.Skipped = append(object.Status.Skipped, v1alpha1.SkippedFile(f))
	}
	if t := c.RiskyTool; t != nil {
		object.Status.RiskyTool = &v1alpha1.RiskyTool{Name: t.Name, CallID: t.CallID, Guarantee: v1alpha1.RiskyToolBestEffort}
		if t.Before {
			object.Status.RiskyTool.Guarantee = v1alpha1.RiskyToolBefore
		}
	}
	if a := c.Session; a != nil {
		object.Status.Session = &v1alpha1.AgentSession{Agent: a.Agent, ID: a.ID, Version: a.Version}
	}
	return object
}

// recordedConditions returns the conditions that the object of a recorded checkpoint would have.
func recordedConditions(c *historyv1.Checkpoint) []metav1.Condition {
	taken := metav1.NewTime(c.Time.Time)
	durable := metav1.Condition{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotPushed, Message: c.NotDurable, LastTransitionTime: taken}
	switch {
	case c.Durable:
		durable.Status, durable.Reason, durable.Message = metav1.ConditionTrue, v1alpha1.ReasonPushed, "the gitstore has it"
	case c.Lost:
		durable.Reason = v1alpha1.ReasonCheckpointLost
	case c.NotDurable != "":
		durable.Reason = v1alpha1.ReasonGitStoreRefused
	}
	return []metav1.Condition{
		{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTaken, Message: "the checkpoint was taken", LastTransitionTime: taken},
		durable,
	}
}

// lookUp finds a task's checkpoint by its name or number: its object or, if that was deleted, what
// the history has of it.
func (s *session) lookUp(ctx context.Context, list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (*v1alpha1.Checkpoint, *historyv1.Checkpoint, error) {
	found, err := findCheckpoint(list, task, wanted)
	var missing *noObject
	if !errors.As(err, &missing) {
		return found, nil, err
	}
	recorded, err := s.presentOr(ctx, task, missing)
	return nil, recorded, err
}
