package postgres

import (
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// recordCost is about what a row takes besides its texts, with its part of
	// the indexes and of the timeline.
	recordCost = 512
	// moveRows are those of a move: the operation, the branch, and the event.
	moveRows = 3
	// pieceCost is about what it takes that a message names a piece.
	pieceCost = 128
)

// costOf is about what records take.
func costOf(records []history.Record) int64 {
	sum := int64(0)
	for _, r := range records {
		sum += cost(r)
	}
	return sum
}

// cost is about what a record takes, of which all that it says is a part: what is
// not counted here is bounded by nothing. Usage, and how the agent ended, take no
// room of their own: they change the task's row.
func cost(r history.Record) int64 {
	switch {
	case r.Message != nil, r.Piece != nil, r.Checkpoint != nil, r.Event != nil:
		return recordCost + said(r)
	case r.Move != nil:
		return moveRows*recordCost + said(r)
	case r.Gap != nil:
		return 2*recordCost + said(r)
	}
	return 0
}

// said is the length of all that a record says.
func said(r history.Record) int64 {
	n := len(r.Piece)
	if r.Message != nil {
		n += saidByMessage(*r.Message)
	}
	if r.Checkpoint != nil {
		n += saidByCheckpoint(*r.Checkpoint)
	}
	if e := r.Event; e != nil {
		n += len(e.Reason) + len(e.Message)
		for key, value := range e.Details {
			n += len(key) + len(value)
		}
	}
	if r.Move != nil {
		n += len(r.Move.ID) + moveRows*len(r.Move.Reason)
	}
	if r.Gap != nil {
		n += 2 * len(r.Gap.Reason)
	}
	return int64(n)
}

func saidByMessage(m conversation.Message) int {
	n := len(m.Role)
	for _, t := range m.Texts() {
		n += len(*t.Text)
		if *t.Pieces != nil {
			n += pieceCost * len((*t.Pieces).Hashes)
		}
	}
	if c := m.ToolCall; c != nil {
		n += len(c.ID) + len(c.Name)
	}
	if r := m.ToolResult; r != nil {
		n += len(r.CallID)
	}
	return n
}

func saidByCheckpoint(c history.Checkpoint) int {
	n := 0
	for _, s := range []string{
		c.Trigger, c.Message, c.Commit, c.Tree, c.Parent, c.Base, c.StateCommit, c.GitHead, c.GitBranch,
		c.RequestedByName, c.RequestedByUID, c.Consistency,
	} {
		n += len(s)
	}
	for _, path := range c.DirtyFiles {
		n += len(path)
	}
	for _, f := range c.Skipped {
		n += len(f.Path) + len(f.Reason)
	}
	for _, f := range c.Changes {
		n += len(f.Path) + len(f.Action)
	}
	if t := c.RiskyTool; t != nil {
		n += len(t.Name) + len(t.CallID)
	}
	if a := c.Session; a != nil {
		n += len(a.Agent) + len(a.ID) + len(a.Version) + len(a.Model)
	}
	return n
}
