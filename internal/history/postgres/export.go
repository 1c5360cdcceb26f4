package postgres

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

const (
	// exportRows is the number of rows read at a time.
	exportRows = 500
	// maxExportText is the longest text that a message's line contains in full; the
	// pieces of a longer one precede it as lines of their own.
	maxExportText = 1 << 20
)

// Export writes the whole history of a task, line by line: the newest task of the name,
// unless the UID is given. Concurrent writes to the task may or may not be included; what
// is included is consistent. Errors: history.ErrNotFound, history.ErrCorrupted if
// messages are missing, history.ErrUnavailable, and those of write. An export without the
// line history.ExportEnd is incomplete.
func (s *Store) Export(ctx context.Context, namespace, name, uid string, write func(history.ExportLine) error) error {
	doing := fmt.Sprintf("export the history of the task %s/%s", namespace, name)
	e := &exporter{store: s, write: write, lines: map[string]int64{}, refs: map[int64]int64{}}
	if err := e.open(ctx, namespace, name, uid); err != nil {
		return wrap(err, doing)
	}
	for _, part := range []func(context.Context) error{e.head, e.messages, e.checkpoints, e.operations, e.snapshots, e.events, e.end} {
		if err := part(ctx); err != nil {
			return wrap(err, doing)
		}
	}
	return nil
}

// exporter writes one export. It reads the heads first and then nothing beyond them: what
// precedes a head does not change.
type exporter struct {
	store    *Store
	write    func(history.ExportLine) error
	lines    map[string]int64
	task     sqlc.Task
	summary  sqlc.TaskSummary
	branches []sqlc.Branch
	// refs maps the ids of branches to their numbers in the export, upto to the positions
	// up to which they are exported.
	refs map[int64]int64
	upto map[int64]int64
}

func (e *exporter) open(ctx context.Context, namespace, name, uid string) error {
	return e.store.snapshot(ctx, "read what to export", func(q *sqlc.Queries) error {
		if uid == "" {
			var err error
			if uid, err = q.NewestTaskNamed(ctx, sqlc.NewestTaskNamedParams{Namespace: namespace, Name: name}); err != nil {
				return err
			}
		}
		found, err := q.Task(ctx, uid)
		if err != nil {
			return err
		}
		if e.task = found.Task; e.task.Namespace != namespace || name != "" && e.task.Name != name {
			return pgx.ErrNoRows
		}
		if e.summary, err = q.Summary(ctx, uid); err != nil {
			return err
		}
		if e.branches, err = q.ExportBranches(ctx, uid); err != nil {
			return err
		}
		e.number()
		return e.trim(ctx, q)
	})
}

// number assigns the branches' numbers and determines how much of each is needed.
func (e *exporter) number() {
	e.upto = map[int64]int64{}
	inherited := int64(0)
	for _, b := range e.branches {
		if b.TaskUid.String == e.task.Uid {
			e.refs[b.ID], e.upto[b.ID] = b.Number, b.HeadPosition
			continue
		}
		inherited--
		e.refs[b.ID] = inherited
	}
	for _, b := range e.branches {
		if b.ParentID.Valid && e.refs[b.ParentID.Int64] < 0 {
			e.upto[b.ParentID.Int64] = max(e.upto[b.ParentID.Int64], b.BasePosition)
		}
	}
}

// trim ends inherited branches at the position up to which they are inherited.
func (e *exporter) trim(ctx context.Context, q *sqlc.Queries) error {
	for i := range e.branches {
		b := &e.branches[i]
		if e.refs[b.ID] > 0 {
			continue
		}
		p, err := pointAt(ctx, q, *b, e.upto[b.ID])
		if err != nil {
			return err
		}
		b.Reason, b.HeadOpenCalls = "", []byte("[]")
		b.HeadPosition, b.HeadBoundary, b.HeadSettled = p.position, p.position, p.position
		b.HeadToolCalls, b.HeadInputTokens = p.totals.ToolCalls, p.totals.InputTokens
		b.HeadOutputTokens, b.HeadCostMicroUsd, b.HeadDigest = p.totals.OutputTokens, p.totals.CostMicroUSD, p.digest[:]
	}
	return nil
}

func (e *exporter) line(kind string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	e.lines[kind]++
	return e.write(history.ExportLine{Kind: kind, Body: encoded})
}

func (e *exporter) head(context.Context) error {
	t := e.task
	models, err := modelsOf(t.Models)
	if err != nil {
		return err
	}
	header := exportedTask{
		Format: history.ExportFormat, Namespace: t.Namespace, Name: t.Name, UID: t.Uid,
		Attempt: t.Attempt, LastSequence: t.LastSequence, ActiveBranch: e.refs[t.ActiveBranch],
		Checkpoints: t.CheckpointCount, LatestCheckpoint: t.LatestCheckpoint, SnapshotEvery: t.SnapshotEvery, Snapshots: t.SnapshotCount,
		Created: t.CreatedAt.UTC(), Updated: t.UpdatedAt.UTC(), State: e.summary.State, Preview: e.summary.Preview,
		Tools: t.Tools, Models: models,
	}
	if e.summary.State != "" {
		header.StateTime = e.summary.StateTime.UTC()
	}
	if err := e.line(history.ExportTask, header); err != nil {
		return err
	}
	for _, b := range e.branches {
		body, err := e.branch(b)
		if err != nil {
			return err
		}
		if err := e.line(history.ExportBranch, body); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) branch(b sqlc.Branch) (exportedBranch, error) {
	log, err := logOf(b)
	body := exportedBranch{
		Branch: e.refs[b.ID], Parent: e.refs[b.ParentID.Int64], Reason: b.Reason, Created: b.CreatedAt.UTC(),
		Base:     exportedSums{b.BasePosition, b.BaseToolCalls, b.BaseInputTokens, b.BaseOutputTokens, b.BaseCostMicroUsd},
		Head:     exportedSums{b.HeadPosition, b.HeadToolCalls, b.HeadInputTokens, b.HeadOutputTokens, b.HeadCostMicroUsd},
		Boundary: b.HeadBoundary, Settled: b.HeadSettled, Open: log.Open, Digest: hex.EncodeToString(b.HeadDigest),
	}
	if body.Branch < 0 {
		body.Number = b.Number
	}
	return body, err
}

func (e *exporter) messages(ctx context.Context) error {
	for _, b := range e.branches {
		for after := b.BasePosition; after < b.HeadPosition; {
			rows, err := e.store.read().ExportEntries(ctx, sqlc.ExportEntriesParams{
				BranchID: b.ID, After: after, Upto: b.HeadPosition, UpToRows: exportRows, UpToBytes: maxPageBytes,
			})
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				return fmt.Errorf("%w: message %d is missing; or the history is being deleted", history.ErrCorrupted, after+1)
			}
			for _, row := range rows {
				if err := e.message(ctx, e.refs[b.ID], row); err != nil {
					return err
				}
			}
			after = rows[len(rows)-1].Position
		}
	}
	return nil
}

func (e *exporter) message(ctx context.Context, branch int64, row sqlc.ExportEntriesRow) error {
	m, err := messageFields{
		Role: row.Role, Body: row.Body, Raw: row.Raw, ToolName: row.ToolName, ToolInput: row.ToolInput, ToolOutput: row.ToolOutput,
		Cuts: row.Cuts, HasCall: row.HasCall, HasResult: row.HasResult, IsError: row.IsError, Interrupted: row.Interrupted,
		CallID: row.CallID, ResultCallID: row.ResultCallID,
	}.message()
	if err != nil {
		return err
	}
	texts := make([]exportedText, 0, 4)
	for _, t := range m.Texts() {
		text, err := e.text(ctx, row.Namespace, *t.Text, *t.Pieces)
		if err != nil {
			return fmt.Errorf("message %d: %w", row.Position, err)
		}
		texts = append(texts, text)
	}
	body := exportedMessage{
		Branch: branch, Sums: exportedSums{row.Position, row.ToolCalls, row.InputTokens, row.OutputTokens, row.CostMicroUsd},
		Boundary: row.Boundary, Time: row.Time.UTC(), Attempt: row.Attempt, Sequence: row.Sequence, Role: m.Role,
		Text: optional(texts[0]), Raw: optional(texts[1]),
	}
	rest := texts[2:]
	if c := m.ToolCall; c != nil {
		body.Call = &exportedCall{ID: c.ID, Name: c.Name, Input: rest[0]}
		rest = rest[1:]
	}
	if r := m.ToolResult; r != nil {
		body.Result = &exportedResult{CallID: r.CallID, Output: rest[0], IsError: r.IsError, Interrupted: r.Interrupted}
	}
	return e.line(history.ExportMessage, body)
}

// optional returns nil for an empty text.
func optional(t exportedText) *exportedText {
	if t.Text == "" && t.Pieces == nil && t.Cut == nil {
		return nil
	}
	return &t
}

// text returns a text as it appears in a message's line. The pieces of a long one are
// written before it. A damaged text is exported as far as it is intact: a piece that
// never arrived must not prevent an export.
func (e *exporter) text(ctx context.Context, namespace, beginning string, p *conversation.Pieces) (exportedText, error) {
	if p == nil {
		return exportedText{Text: beginning}, nil
	}
	var whole strings.Builder
	var lengths []int
	long := p.Bytes > maxExportText
	err := e.store.eachPiece(ctx, namespace, p, func(piece []byte) error {
		if long {
			return e.piece(piece)
		}
		long = !isText(piece)
		lengths = append(lengths, len(piece))
		whole.Write(piece)
		return nil
	})
	if err == nil && !long && int64(whole.Len()) == p.Bytes {
		return exportedText{Text: whole.String(), Cut: lengths}, nil
	}
	if err == nil && p.Bytes <= maxExportText {
		err = e.store.eachPiece(ctx, namespace, p, e.piece)
	}
	if errors.Is(err, history.ErrCorrupted) {
		e.store.log.Error(err, "a damaged text is exported only in part", "namespace", namespace, "task", e.task.Name)
		err = nil
	}
	return exportedText{Text: beginning, Pieces: p}, err
}

func isText(piece []byte) bool {
	return utf8.Valid(piece) && strings.IndexByte(string(piece), 0) < 0
}

func (e *exporter) piece(piece []byte) error {
	body := exportedPiece{Hash: conversation.PieceHash(string(piece))}
	if isText(piece) {
		body.Text = string(piece)
	} else {
		body.Bytes = piece
	}
	return e.line(history.ExportPiece, body)
}

func (e *exporter) checkpoints(ctx context.Context) error {
	for after := int32(0); ; {
		rows, err := e.store.read().ExportCheckpoints(ctx, sqlc.ExportCheckpointsParams{Uid: e.task.Uid, After: after, UpToRows: exportRows})
		if err != nil {
			return err
		}
		for _, row := range rows {
			after = row.RecordedCheckpoint.Number
			if int64(after) > e.task.LatestCheckpoint {
				continue
			}
			if err := e.checkpoint(row); err != nil {
				return err
			}
		}
		if len(rows) < exportRows {
			return nil
		}
	}
}

func (e *exporter) checkpoint(row sqlc.ExportCheckpointsRow) error {
	c, err := checkpointOf(row.RecordedCheckpoint)
	if err != nil {
		return err
	}
	if c.Changes, err = changesOf(row.Changes); err != nil {
		return err
	}
	return e.line(history.ExportCheckpoint, exportedCheckpoint{
		Number: c.Number, Attempt: c.Attempt, Trigger: c.Trigger, Time: c.Time.UTC(), Message: c.Message,
		Commit: c.Commit, Tree: c.Tree, Parent: c.Parent, Base: c.Base, StateCommit: c.StateCommit,
		FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved,
		GitHead: c.GitHead, GitBranch: c.GitBranch, DirtyFiles: c.DirtyFiles, DirtyFileCount: c.DirtyFileCount,
		Files: c.Files, Bytes: c.Bytes, Skipped: c.Skipped, SkippedCount: c.SkippedCount, Durable: c.Durable, Refused: c.Refused,
		RequestedByName: c.RequestedByName, RequestedByUID: c.RequestedByUID, RiskyTool: c.RiskyTool, Session: c.Session, Changes: c.Changes,
		Consistency: c.Consistency, FrozenMilliseconds: c.FrozenMilliseconds,
		Branch: e.refs[row.RecordedCheckpoint.BranchID], Boundary: row.RecordedCheckpoint.Boundary, Digest: c.Digest,
		Sums: exportedSums{c.Position.Position, c.Totals.ToolCalls, c.Totals.InputTokens, c.Totals.OutputTokens, c.Totals.CostMicroUSD},
	})
}

func (e *exporter) operations(ctx context.Context) error {
	rows, err := e.store.read().ExportOperations(ctx, e.task.Uid)
	if err != nil {
		return err
	}
	for _, o := range rows {
		rewound, err := rewoundOf(o.Details)
		if err != nil {
			return err
		}
		err = e.line(history.ExportOperation, exportedOperation{
			ID: o.OperationID, Attempt: o.Attempt, Checkpoint: o.Checkpoint, Asked: o.AskedPosition, Reason: o.Reason,
			Branch: o.Branch, Position: o.Position, ToolCalls: o.ToolCalls, Time: o.CreatedAt.UTC(), Rewound: rewound,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) snapshots(ctx context.Context) error {
	for after := int64(0); ; {
		rows, err := e.store.SnapshotsAfter(ctx, e.task.Uid, after, exportRows)
		if err != nil {
			return err
		}
		for _, row := range rows {
			after = row.Ordinal
			if after > e.task.SnapshotCount {
				return nil
			}
			branch, _ := branchNumber(row.Position.Branch)
			err := e.line(history.ExportSnapshot, exportedSnapshot{
				Ordinal: row.Ordinal, Kind: row.Kind, Time: row.Time.UTC(), Branch: branch, Position: row.Position.Position, Digest: row.Digest,
				Sums: exportedSums{row.Totals.Messages, row.Totals.ToolCalls, row.Totals.InputTokens, row.Totals.OutputTokens, row.Totals.CostMicroUSD},
			})
			if err != nil {
				return err
			}
		}
		if len(rows) < exportRows {
			return nil
		}
	}
}

func (e *exporter) events(ctx context.Context) error {
	page := sqlc.ExportEventsParams{Uid: e.task.Uid, Namespace: e.task.Namespace, AfterTime: time.Unix(0, 0), UpToRows: exportRows}
	for {
		rows, err := e.store.read().ExportEvents(ctx, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			page.AfterTime, page.AfterID = row.Time, row.ID
			body := exportedEvent{
				ID: row.ID, Time: row.Time.UTC(), Type: row.Type, Reason: row.Reason, Actor: row.Actor, Message: row.Message,
				Attempt: row.Attempt, Checkpoint: row.Checkpoint,
			}
			if string(row.Details) != "{}" {
				body.Details = row.Details
			}
			if err := e.line(history.ExportEvent, body); err != nil {
				return err
			}
		}
		if len(rows) < exportRows {
			return nil
		}
	}
}

func (e *exporter) end(context.Context) error {
	return e.line(history.ExportEnd, exportedEnd{Lines: e.lines})
}
