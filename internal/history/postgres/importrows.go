package postgres

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// message returns the message of a line. Pieces of texts that the line contains in full
// are added to the batch, cut as they were.
func (e exportedMessage) message(b *batch) (conversation.Message, error) {
	m := conversation.Message{Role: e.Role}
	var texts []exportedText
	for _, t := range []*exportedText{e.Text, e.Raw} {
		if t == nil {
			t = &exportedText{}
		}
		texts = append(texts, *t)
	}
	if c := e.Call; c != nil {
		m.ToolCall = &conversation.ToolCall{ID: shortName(c.ID), Name: c.Name}
		texts = append(texts, c.Input)
	}
	if r := e.Result; r != nil {
		m.ToolResult = &conversation.ToolResult{CallID: shortName(r.CallID), IsError: r.IsError, Interrupted: r.Interrupted}
		texts = append(texts, r.Output)
	}
	for n, into := range m.Texts() {
		text, pieces, err := texts[n].restore(b)
		if err != nil {
			return m, err
		}
		*into.Text, *into.Pieces = text, pieces
	}
	return m.Clean(), nil
}

// restore returns the text as it is stored.
func (t exportedText) restore(b *batch) (string, *conversation.Pieces, error) {
	if t.Pieces != nil && !t.Pieces.Plausible() {
		return "", nil, invalid("a text of %d bytes has %d pieces, which is impossible", t.Pieces.Bytes, len(t.Pieces.Hashes))
	}
	if t.Pieces != nil || len(t.Cut) == 0 {
		return t.Text, t.Pieces, nil
	}
	names := &conversation.Pieces{Bytes: int64(len(t.Text))}
	rest := t.Text
	for _, n := range t.Cut {
		if n < 0 || n > len(rest) {
			return "", nil, invalid("a text of %d bytes is cut into pieces of %v", len(t.Text), t.Cut)
		}
		hash := conversation.PieceHash(rest[:n])
		names.Hashes = append(names.Hashes, hash)
		b.pieces[conversation.Hash(hash)] = []byte(rest[:n])
		rest = rest[n:]
	}
	if rest != "" {
		return "", nil, invalid("a text of %d bytes is cut into pieces of %v", len(t.Text), t.Cut)
	}
	return conversation.Beginning(t.Text), names, nil
}

func (i *importer) checkpoint(ctx context.Context, c exportedCheckpoint) error {
	branch := i.branches[c.Branch]
	if branch == nil || c.Branch < 0 || c.Sums.Position < branch.row.Base.Position || c.Sums.Position > branch.row.Head.Position {
		return invalid("checkpoint %d is at position %d of branch %d, which does not exist", c.Number, c.Sums.Position, c.Branch)
	}
	b := &batch{task: i.task, id: i.id, branch: sqlc.Branch{ID: branch.id}, log: conversation.Log{
		Position: c.Sums.Position, Boundary: c.Boundary,
		Totals: conversation.Totals{InputTokens: c.Sums.InputTokens, OutputTokens: c.Sums.OutputTokens, CostMicroUSD: c.Sums.CostMicroUSD},
	}}
	row, err := checkpointRow(b, history.Record{Attempt: c.Attempt, Checkpoint: &history.Checkpoint{
		Number: c.Number, Trigger: c.Trigger, Time: c.Time, Message: c.Message,
		Commit: c.Commit, Tree: c.Tree, Parent: c.Parent, Base: c.Base, StateCommit: c.StateCommit,
		FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved,
		GitHead: c.GitHead, GitBranch: c.GitBranch, DirtyFiles: c.DirtyFiles, DirtyFileCount: c.DirtyFileCount,
		Files: c.Files, Bytes: c.Bytes, Skipped: c.Skipped, SkippedCount: c.SkippedCount, Durable: c.Durable,
		RequestedByName: c.RequestedByName, RequestedByUID: c.RequestedByUID, RiskyTool: c.RiskyTool, Session: c.Session, Changes: c.Changes,
		Consistency: c.Consistency, FrozenMilliseconds: c.FrozenMilliseconds,
	}})
	if err != nil {
		return err
	}
	n, err := i.q.InsertCheckpoint(ctx, row)
	if err != nil {
		return err
	}
	if n == 0 {
		return invalid("checkpoint %d occurs twice", c.Number)
	}
	if c.Refused == "" {
		return nil
	}
	return i.q.SetCheckpointRefused(ctx, sqlc.SetCheckpointRefusedParams{TaskID: i.id, Number: row.Number, Refused: clip.Marked(clean(c.Refused), maxRefusal)})
}

func (i *importer) operation(ctx context.Context, o exportedOperation) error {
	details, err := detailsOf(o.Rewound)
	if err != nil {
		return err
	}
	return i.q.ImportOperation(ctx, sqlc.ImportOperationParams{
		TaskUid: i.task.UID, OperationID: clean(o.ID), Attempt: o.Attempt, Checkpoint: o.Checkpoint, AskedPosition: o.Asked,
		Reason: clean(o.Reason), Branch: clean(o.Branch), Position: o.Position, ToolCalls: o.ToolCalls, CreatedAt: o.Time, Details: details,
	})
}

func (i *importer) snapshot(ctx context.Context, s exportedSnapshot) error {
	branch := i.branches[s.Branch]
	if branch == nil || s.Branch < 0 {
		return invalid("snapshot %d is on branch %d, which does not exist", s.Ordinal, s.Branch)
	}
	n, err := i.q.ImportSnapshot(ctx, sqlc.ImportSnapshotParams{Ordinal: narrow(s.Ordinal), BranchID: branch.id, Position: s.Position})
	if err == nil && n == 0 {
		return invalid("snapshot %d is at position %d, which does not exist", s.Ordinal, s.Position)
	}
	return err
}

// event stores an event of the timeline as imported. This server cannot vouch for access
// events from elsewhere: they are kept with a type of their own.
func (i *importer) event(ctx context.Context, e exportedEvent) error {
	if e.ID == "" || e.Time.After(time.Now().Add(maxClockSkew)) {
		return invalid("an event %q has no id, or is in the future", e.Reason)
	}
	var row sqlc.InsertEventsParams
	kind := e.Type
	if kind == history.EventTypeAccess {
		kind = history.EventTypeImported
	}
	details := []byte(e.Details)
	if len(details) == 0 {
		details = nil
	}
	appendEvent(&row, history.Event{
		ID: history.ImportedEventID(i.task.Namespace, i.task.UID, clean(e.ID)), Task: i.task, Time: e.Time, Type: kind, Reason: e.Reason, Actor: e.Actor, Message: e.Message,
		Attempt: e.Attempt, Checkpoint: e.Checkpoint,
	}, details)
	row.ImportedBy, row.ImportedID = i.by, []string{clean(e.ID)}
	_, err := i.q.InsertEvents(ctx, row)
	return err
}
