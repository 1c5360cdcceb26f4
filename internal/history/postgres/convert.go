package postgres

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// mainBranch is the name of a task's first branch; later ones have numbers.
const mainBranch = "main"

func branchName(number int64) string {
	if number == 1 {
		return mainBranch
	}
	return fmt.Sprintf("branch-%d", number)
}

// branchNumber parses a name written by branchName.
func branchNumber(name string) (int64, bool) {
	if name == mainBranch {
		return 1, true
	}
	digits, ok := strings.CutPrefix(name, "branch-")
	number, err := strconv.ParseInt(digits, 10, 64)
	return number, ok && err == nil && number > 1 && branchName(number) == name
}

// logOf returns the conversation's state at the head of a branch.
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

func headOf(id int64, l conversation.Log, digest conversation.Digest) (sqlc.SetBranchHeadParams, error) {
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
		HeadDigest:       digest[:],
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

func entryOf(row sqlc.ConversationRow, reader string) (history.Entry, error) {
	e := history.Entry{
		Position: row.Position,
		Time:     row.Time,
		Branch:   branchName(row.BranchNumber),
		Attempt:  int64(row.Attempt),
	}
	if row.TaskUid != reader {
		e.Branch = cmp.Or(row.TaskUid, deletedTask) + "/" + e.Branch
	}
	var err error
	e.Message, err = rowMessage(row)
	return e, err
}

// deletedTask replaces the UID of a task whose history was deleted.
const deletedTask = "deleted"

func rowMessage(row sqlc.ConversationRow) (conversation.Message, error) {
	return messageFields{
		Role: row.Role, Body: row.Body, Raw: row.Raw, ToolName: row.ToolName, ToolInput: row.ToolInput, ToolOutput: row.ToolOutput,
		Cuts: row.Cuts, HasCall: row.HasCall, HasResult: row.HasResult, IsError: row.IsError, Interrupted: row.Interrupted,
		CallID: row.CallID, ResultCallID: row.ResultCallID,
	}.message()
}

func clean(s string) string { return conversation.CleanText(s) }

// maxClockSkew is how far a pod's clock may be ahead before its times are rejected: they
// would stay at the top of the timeline for good.
const maxClockSkew = time.Hour

// plausibleTime returns the first plausible time, or else the current one.
func plausibleTime(times ...time.Time) time.Time {
	now := time.Now()
	for _, t := range times {
		if t.Unix() > 0 && t.Before(now.Add(maxClockSkew)) {
			return t
		}
	}
	return now
}
