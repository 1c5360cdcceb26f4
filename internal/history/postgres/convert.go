package postgres

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// mainBranch is the name of a task's first branch; later ones are numbered.
const mainBranch = "main"

func branchName(number int64) string {
	if number == 1 {
		return mainBranch
	}
	return fmt.Sprintf("branch-%d", number)
}

// branchNumber reads what branchName wrote.
func branchNumber(name string) (int64, bool) {
	if name == mainBranch {
		return 1, true
	}
	digits, ok := strings.CutPrefix(name, "branch-")
	number, err := strconv.ParseInt(digits, 10, 64)
	return number, ok && err == nil && number > 1 && branchName(number) == name
}

// logOf is the conversation's state at the head of a branch.
func logOf(b sqlc.Branch) (conversation.Log, error) {
	l := conversation.Log{
		Position: b.HeadPosition,
		Totals: conversation.Totals{
			ToolCalls:    b.HeadToolCalls,
			InputTokens:  b.HeadInputTokens,
			OutputTokens: b.HeadOutputTokens,
			CostMicroUSD: b.HeadCostMicroUsd,
		},
		Boundary: b.HeadBoundary,
		Settled:  b.HeadSettled,
	}
	if err := json.Unmarshal(b.HeadOpenCalls, &l.Open); err != nil {
		return l, fmt.Errorf("read the open tool calls of branch %d: %w", b.ID, err)
	}
	return l, nil
}

func headOf(id int64, l conversation.Log) (sqlc.SetBranchHeadParams, error) {
	open := l.Open
	if open == nil {
		open = []conversation.OpenCall{}
	}
	encoded, err := json.Marshal(open)
	return sqlc.SetBranchHeadParams{
		ID:               id,
		HeadPosition:     l.Position,
		HeadToolCalls:    l.Totals.ToolCalls,
		HeadInputTokens:  l.Totals.InputTokens,
		HeadOutputTokens: l.Totals.OutputTokens,
		HeadCostMicroUsd: l.Totals.CostMicroUSD,
		HeadBoundary:     l.Boundary,
		HeadSettled:      l.Settled,
		HeadOpenCalls:    encoded,
	}, err
}

func totals(position int64, t conversation.Totals) history.Totals {
	return history.Totals{
		Messages:     position,
		ToolCalls:    t.ToolCalls,
		InputTokens:  t.InputTokens,
		OutputTokens: t.OutputTokens,
		CostMicroUSD: t.CostMicroUSD,
	}
}

func position(b sqlc.Branch, l conversation.Log) history.Position {
	return history.Position{Branch: branchName(b.Number), Position: l.Position, ToolCalls: l.Totals.ToolCalls}
}

// Limits of lists in a checkpoint record; the counts beside them count all.
const (
	maxListed  = 100
	maxChanges = 1000
)

func checkpointRow(task history.Task, r history.Record, attempt int64, b sqlc.Branch, l conversation.Log) (sqlc.InsertCheckpointParams, error) {
	c := r.Checkpoint
	skipped := make([]history.SkippedFile, 0, min(len(c.Skipped), maxListed))
	for _, f := range c.Skipped[:min(len(c.Skipped), maxListed)] {
		skipped = append(skipped, history.SkippedFile{Path: clean(f.Path), Reason: clean(f.Reason), Bytes: f.Bytes})
	}
	encoded, err := json.Marshal(skipped)
	dirty := make([]string, 0, min(len(c.DirtyFiles), maxListed))
	for _, f := range c.DirtyFiles[:min(len(c.DirtyFiles), maxListed)] {
		dirty = append(dirty, clean(f))
	}
	return sqlc.InsertCheckpointParams{
		TaskUid: task.UID, Number: c.Number, Attempt: attempt, Sequence: r.Sequence,
		Trigger: clean(c.Trigger), Time: sane(c.Time, r.Time), Message: clean(c.Message),
		Commit: clean(c.Commit), Tree: clean(c.Tree), Parent: clean(c.Parent), Base: clean(c.Base), StateCommit: clean(c.StateCommit),
		FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved,
		GitHead: clean(c.GitHead), GitBranch: clean(c.GitBranch), DirtyFiles: dirty, DirtyFileCount: c.DirtyFileCount,
		Files: c.Files, Bytes: c.Bytes, Skipped: encoded, SkippedCount: c.SkippedCount, Durable: c.Durable,
		RequestedByName: clean(c.RequestedByName), RequestedByUid: clean(c.RequestedByUID),
		BranchID: b.ID, BranchNumber: b.Number, Position: l.Position, Boundary: l.Boundary,
		ToolCalls: l.Totals.ToolCalls, InputTokens: l.Totals.InputTokens,
		OutputTokens: l.Totals.OutputTokens, CostMicroUsd: l.Totals.CostMicroUSD,
	}, err
}

func changesOf(c *history.Checkpoint) ([]byte, error) {
	changes := make([]history.FileChange, 0, min(len(c.Changes), maxChanges))
	for _, f := range c.Changes[:min(len(c.Changes), maxChanges)] {
		changes = append(changes, history.FileChange{Path: clean(f.Path), Action: clean(f.Action)})
	}
	return json.Marshal(changes)
}

func checkpointOf(row sqlc.Checkpoint) (history.Checkpoint, error) {
	c := history.Checkpoint{
		TaskUID: row.TaskUid, Number: row.Number, Attempt: row.Attempt, Trigger: row.Trigger, Time: row.Time, Message: row.Message,
		Commit: row.Commit, Tree: row.Tree, Parent: row.Parent, Base: row.Base, StateCommit: row.StateCommit,
		FilesChanged: row.FilesChanged, LinesAdded: row.LinesAdded, LinesRemoved: row.LinesRemoved,
		GitHead: row.GitHead, GitBranch: row.GitBranch, DirtyFiles: row.DirtyFiles, DirtyFileCount: row.DirtyFileCount,
		Files: row.Files, Bytes: row.Bytes, SkippedCount: row.SkippedCount, Durable: row.Durable, Refused: row.Refused,
		RequestedByName: row.RequestedByName, RequestedByUID: row.RequestedByUid,
		Position: history.Position{Branch: branchName(row.BranchNumber), Position: row.Position, ToolCalls: row.ToolCalls},
	}
	if err := json.Unmarshal(row.Skipped, &c.Skipped); err != nil {
		return c, fmt.Errorf("read the skipped files of checkpoint %d: %w", row.Number, err)
	}
	return c, nil
}

func entryOf(row sqlc.ConversationRow, reader string) history.Entry {
	e := history.Entry{
		Position: row.Position,
		Time:     row.Time,
		Branch:   branchName(row.BranchNumber),
		Attempt:  row.Attempt,
		Message:  conversation.Message{Role: conversation.Role(row.Role), Text: row.Body, Raw: row.Raw},
	}
	if row.TaskUid != reader {
		e.Branch = row.TaskUid + "/" + e.Branch
	}
	if row.HasCall {
		e.Message.ToolCall = &conversation.ToolCall{ID: row.CallID, Name: row.ToolName, Input: row.ToolInput}
	}
	if row.HasResult {
		e.Message.ToolResult = &conversation.ToolResult{
			CallID: row.ResultCallID, Output: row.ToolOutput, IsError: row.IsError, Interrupted: row.Interrupted,
		}
	}
	return e
}

func clean(s string) string { return conversation.CleanText(s) }

// shorten cuts a text to at most n bytes, at a rune, and shows that it did.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// maxClockSkew is how far ahead of ours a pod's clock may be before its times
// are not believed: they would sit on top of the timeline for good.
const maxClockSkew = time.Hour

// sane returns the first time that can be, else the present.
func sane(times ...time.Time) time.Time {
	now := time.Now()
	for _, t := range times {
		if t.Unix() > 0 && t.Before(now.Add(maxClockSkew)) {
			return t
		}
	}
	return now
}
