package postgres

import (
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// recordCost is roughly what a row takes besides its texts, including its share of
	// the indexes and of the timeline.
	recordCost = 512
	// moveRows is the number of rows of a move: the operation, the branch, and the event.
	moveRows = 3
	// pieceCost is roughly what a message's reference to a piece takes.
	pieceCost = 128
)

// costOf returns roughly what records take in the database.
func costOf(records []history.Record) int64 {
	sum := int64(0)
	for _, r := range records {
		sum += cost(r)
	}
	return sum
}

// cost returns roughly what a record takes, including all of its contents: anything that
// is not counted here would be unbounded. Usage, how the agent ended, and bounded numbers of
// requests and holds take no space of their own: they change the task's row.
func cost(r history.Record) int64 {
	switch {
	case r.Message != nil, r.Piece != nil, r.Checkpoint != nil, r.Event != nil:
		return recordCost + contentBytes(r)
	case r.Move != nil:
		return moveRows*recordCost + contentBytes(r)
	case r.Gap != nil:
		return 2*recordCost + contentBytes(r)
	}
	return 0
}

// contentBytes returns the length of a record's contents.
func contentBytes(r history.Record) int64 {
	n := len(r.Piece)
	if r.Message != nil {
		n += messageBytes(*r.Message)
	}
	if r.Checkpoint != nil {
		n += checkpointBytes(*r.Checkpoint)
	}
	if e := r.Event; e != nil {
		n += len(e.Reason) + len(e.Message)
		for key, value := range e.Details {
			n += len(key) + len(value)
		}
	}
	if r.Move != nil {
		n += len(r.Move.ID) + moveRows*len(r.Move.Reason)
		if rewound := r.Move.Rewound; rewound != nil {
			n += len(rewound.Scope)
			for _, path := range rewound.Paths {
				n += len(path)
			}
		}
	}
	if r.Gap != nil {
		n += 2 * len(r.Gap.Reason)
	}
	return int64(n)
}

func messageBytes(m conversation.Message) int {
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

func checkpointBytes(c history.Checkpoint) int {
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
