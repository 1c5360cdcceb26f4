package historyapi

import (
	"errors"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// subresourceCheckpoints is what a caller must be allowed to get of tasks.
const subresourceCheckpoints = "checkpoints"

// checkpoints returns a page of a task's recorded checkpoints, newest first. Parameters:
// limit, continue, uid.
func (a *api) checkpoints(c *call) (any, error) {
	values := c.URL.Query()
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return nil, err
	}
	limit = min(limit, maxLimit)
	uid, before := values.Get("uid"), int64(0)
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindCheckpoints)
		if err != nil {
			return nil, err
		}
		uid, before = from.UID, from.After
	}
	task, err := a.find(c.Context(), c.access.Namespace, c.access.Name, uid)
	if err != nil {
		return nil, err
	}
	found, err := a.Archive.CheckpointsBefore(c.Context(), task.Key(), before, limit+1)
	if err != nil {
		return nil, err
	}
	more := len(found) > limit
	found = found[:min(limit, len(found))]
	answers := make([]historyv1alpha1.Checkpoint, 0, len(found))
	for _, checkpoint := range found {
		checkpoint.Changes, checkpoint.Skipped, checkpoint.DirtyFiles = nil, nil, nil
		answers = append(answers, checkpointOf(checkpoint))
	}
	list := itemsOf("CheckpointList", answers)
	if more {
		list.meta.Continue, err = cursor{Kind: kindCheckpoints, UID: task.UID, After: found[limit-1].Number}.encode()
	}
	return list, err
}

// checkpoint returns one recorded checkpoint by its number, with its lists of files.
// Parameter: uid.
func (a *api) checkpoint(c *call) (any, error) {
	_, found, err := a.namedCheckpoint(c)
	if err != nil {
		return nil, err
	}
	answer := checkpointOf(found)
	answer.TypeMeta = typeMeta("Checkpoint")
	return &answer, nil
}

// namedCheckpoint reads the task and the checkpoint that the path and the parameter uid name.
func (a *api) namedCheckpoint(c *call) (history.TaskSummary, history.Checkpoint, error) {
	text := c.PathValue("number")
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil || number < 1 {
		return history.TaskSummary{}, history.Checkpoint{}, badRequest("%q is not the number of a checkpoint", text)
	}
	task, err := a.find(c.Context(), c.access.Namespace, c.access.Name, c.URL.Query().Get("uid"))
	if err != nil {
		return task, history.Checkpoint{}, err
	}
	found, err := a.Archive.Checkpoint(c.Context(), task.Key(), number)
	if errors.Is(err, history.ErrNotFound) {
		err = a.noCheckpoint(c, task.Task, number)
	}
	return task, found, err
}

func checkpointOf(c history.Checkpoint) historyv1alpha1.Checkpoint {
	answer := historyv1alpha1.Checkpoint{
		TaskUID: c.TaskUID, Number: c.Number, Attempt: c.Attempt, Trigger: c.Trigger, Consistency: c.Consistency,
		Time: metav1.NewMicroTime(c.Time), Message: c.Message,
		Commit: c.Commit, Tree: c.Tree, Parent: c.Parent, Base: c.Base, StateCommit: c.StateCommit,
		Durable: c.Durable, NotDurable: c.Refused, Lost: c.Lost, RequestedByName: c.RequestedByName,
		FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved,
		Files: c.Files, Bytes: c.Bytes, SkippedCount: c.SkippedCount,
		GitHead: c.GitHead, GitBranch: c.GitBranch, DirtyFileCount: c.DirtyFileCount, DirtyFiles: c.DirtyFiles,
		Branch: c.Position.Branch, Position: c.Position.Position, ToolCalls: c.Position.ToolCalls,
		InputTokens: c.Totals.InputTokens, OutputTokens: c.Totals.OutputTokens, CostMicroUSD: c.Totals.CostMicroUSD, Digest: c.Digest,
		FrozenMilliseconds: c.FrozenMilliseconds,
	}
	if t := c.RiskyTool; t != nil {
		answer.RiskyTool = &historyv1alpha1.RiskyTool{Name: t.Name, CallID: t.CallID, Before: t.Before}
	}
	if s := c.Session; s != nil {
		answer.Session = &historyv1alpha1.AgentSession{Agent: s.Agent, ID: s.ID, Version: s.Version, Model: s.Model}
	}
	for _, f := range c.Changes {
		answer.ChangedFiles = append(answer.ChangedFiles, historyv1alpha1.ChangedFile(f))
	}
	for _, f := range c.Skipped {
		answer.Skipped = append(answer.Skipped, historyv1alpha1.SkippedFile(f))
	}
	return answer
}
