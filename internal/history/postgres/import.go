package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

const (
	// importBytes is roughly how much of an import is held in memory.
	importBytes = 8 << 20
	// importTimeout is how long an import's transaction waits for the next lines.
	importTimeout = "1min"
	// maxBranch is the highest number of a branch.
	maxBranch = 1 << 32
	// maxImports is the number of concurrent imports.
	maxImports = 2
)

// Import stores an exported history in a namespace, completely or not at all; what it
// inherited from another task's conversation becomes its own. The task keeps its UID, and
// a deleted history may be imported again if it was in this namespace. Events are marked
// as imported by the given user. The lines are read within a transaction, so the caller
// must have them available without delay. Errors: history.ErrExists if there is a history
// of that UID, history.ErrInvalid if the lines are not those of a complete export,
// history.ErrCorrupted if messages differ from the exported ones, history.ErrUnavailable,
// and those of lines.
func (s *Store) Import(ctx context.Context, namespace, by string, lines iter.Seq2[history.ExportLine, error]) (history.Task, error) {
	const doing = "import a history"
	if err := s.importing.Acquire(ctx, 1); err != nil {
		return history.Task{}, wrap(err, doing)
	}
	defer s.importing.Release(1)
	var task history.Task
	// The lines can be read only once, so the transaction is not repeated.
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '"+importTimeout+"'"); err != nil {
			return err
		}
		i := newImporter(namespace, cmp.Or(by, "unknown"), sqlc.New(tx))
		if err := s.loadUsage(ctx, i); err != nil {
			return err
		}
		number := 0
		for line, err := range lines {
			number++
			if err == nil {
				err = i.line(ctx, line)
			}
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
		}
		task = i.task
		if err := s.finishLimit(ctx, i); err != nil {
			return err
		}
		return i.finish(ctx)
	})
	if err != nil {
		return history.Task{}, wrap(err, doing)
	}
	return task, nil
}

// importer stores one history.
type importer struct {
	q *sqlc.Queries
	// by is the importing user.
	by    string
	task  history.Task
	id    int32
	begun bool
	ended bool
	// same reports that the history was exported from the same namespace, so that digests
	// must match.
	same     bool
	header   exportedTask
	branches map[int64]*importedBranch
	// batch collects messages, of about bytes in total, for the branch with number into.
	batch *batch
	bytes int
	into  int64
	// lines counts the lines by kind; cost is roughly what they take in the database.
	lines map[string]int64
	cost  int64
	// limit is the namespace's limit, 0 for none, and used what it used when the import
	// began.
	limit, used int64
	// note says what else counts against the limit.
	note string
}

// importedBranch is a branch that is being imported.
type importedBranch struct {
	id       int64
	row      exportedBranch
	position int64
	digest   conversation.Digest
}

func newImporter(namespace, by string, q *sqlc.Queries) *importer {
	return &importer{
		q: q, by: by, task: history.Task{Namespace: namespace}, branches: map[int64]*importedBranch{}, lines: map[string]int64{},
	}
}

func (i *importer) line(ctx context.Context, line history.ExportLine) error {
	if i.ended {
		return invalid("there are lines after the end")
	}
	if !i.begun && line.Kind != history.ExportTask {
		return invalid("it is a %q line; an export begins with a %q line", line.Kind, history.ExportTask)
	}
	if line.Kind != history.ExportMessage && line.Kind != history.ExportPiece {
		if err := i.flush(ctx); err != nil {
			return err
		}
	}
	i.cost += recordCost + int64(len(line.Body))
	if err := i.checkLimit(); err != nil {
		return err
	}
	if line.Kind != history.ExportEnd {
		i.lines[line.Kind]++
	}
	switch line.Kind {
	case history.ExportTask:
		return decoded(line, func(body exportedTask) error { return i.begin(ctx, body) })
	case history.ExportBranch:
		return decoded(line, func(body exportedBranch) error { return i.branch(ctx, body) })
	case history.ExportPiece:
		return decoded(line, i.piece)
	case history.ExportMessage:
		return decoded(line, func(body exportedMessage) error { return i.message(ctx, body) })
	case history.ExportCheckpoint:
		return decoded(line, func(body exportedCheckpoint) error { return i.checkpoint(ctx, body) })
	case history.ExportOperation:
		return decoded(line, func(body exportedOperation) error { return i.operation(ctx, body) })
	case history.ExportSnapshot:
		return decoded(line, func(body exportedSnapshot) error { return i.snapshot(ctx, body) })
	case history.ExportEvent:
		return decoded(line, func(body exportedEvent) error { return i.event(ctx, body) })
	case history.ExportEnd:
		return decoded(line, i.end)
	}
	return invalid("it is a %q line, which this version does not know; the export was made by a newer version", line.Kind)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{history.ErrInvalid}, args...)...)
}

func decoded[T any](line history.ExportLine, f func(T) error) error {
	var body T
	if err := json.Unmarshal(line.Body, &body); err != nil {
		return invalid("the %s cannot be read: %v", line.Kind, err)
	}
	return f(body)
}

func (i *importer) begin(ctx context.Context, t exportedTask) error {
	switch {
	case i.begun:
		return invalid("there is a second task line")
	case t.Format != history.ExportFormat:
		return invalid("its format is %q; this version reads %q", t.Format, history.ExportFormat)
	case t.UID == "" || t.Name == "":
		return invalid("the task has no name or no UID")
	case !history.IsUID(t.UID):
		// Cleaned, it would differ from the UID that is looked up.
		return invalid("the task's UID is longer than %d bytes, or has characters that no UID has", history.MaxUIDBytes)
	case len(validation.IsDNS1123Subdomain(t.Name)) > 0:
		// A space would part the fields of a notification.
		return invalid("the task's name is not one that a Task may have")
	}
	// Messages of other keys have joined those of the key, and their digests differ.
	joined, err := i.q.JoinedKeys(ctx, i.task.Namespace)
	if err != nil {
		return err
	}
	i.begun, i.same, i.header = true, t.Namespace == i.task.Namespace && len(joined) == 0, t
	i.task.Name, i.task.UID = t.Name, t.UID
	models, err := json.Marshal(t.Models)
	if err != nil {
		return err
	}
	if t.Models == nil {
		models = []byte("{}")
	}
	if err := i.q.UnburyTask(ctx, sqlc.UnburyTaskParams{Uid: i.task.UID, Namespace: i.task.Namespace}); err != nil {
		return err
	}
	if t.Tools == nil {
		t.Tools = []string{}
	}
	i.id, err = i.q.ImportTask(ctx, sqlc.ImportTaskParams{
		Uid: i.task.UID, Namespace: i.task.Namespace, Name: i.task.Name, Attempt: t.Attempt, LastSequence: t.LastSequence,
		CheckpointCount: t.Checkpoints, LatestCheckpoint: t.LatestCheckpoint, CreatedAt: t.Created, UpdatedAt: t.Updated,
		SnapshotEvery: t.SnapshotEvery, SnapshotCount: t.Snapshots, Tools: t.Tools, Models: models,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return i.exists()
	}
	if err != nil {
		return err
	}
	if err := i.q.LockTimeline(ctx, i.task.UID); err != nil {
		return err
	}
	n, err := i.q.ImportSummary(ctx, sqlc.ImportSummaryParams{
		Uid: i.task.UID, Namespace: i.task.Namespace, Name: i.task.Name, State: clean(t.State), Preview: clean(t.Preview),
		StateTime: pgtype.Timestamptz{Time: t.StateTime, Valid: !t.StateTime.IsZero()}, CreatedAt: t.Created, UpdatedAt: t.Updated,
	})
	if err == nil && n == 0 {
		return i.exists()
	}
	return err
}

func (i *importer) exists() error {
	return fmt.Errorf("%w: the history of the task with UID %s; delete that first", history.ErrExists, i.task.UID)
}

func (i *importer) branch(ctx context.Context, b exportedBranch) error {
	if i.branches[b.Branch] != nil || b.Branch == 0 {
		return invalid("branch %d occurs twice or has no number", b.Branch)
	}
	parent := i.branches[b.Parent]
	if b.Parent != 0 && parent == nil {
		return invalid("branch %d has the parent branch %d, which does not precede it", b.Branch, b.Parent)
	}
	if b.Base.Position < 0 || b.Head.Position < b.Base.Position || parent == nil && b.Base.Position != 0 ||
		parent != nil && (b.Base.Position < parent.row.Base.Position || b.Base.Position > parent.row.Head.Position) {
		return invalid("branch %d goes from position %d to %d, which is impossible", b.Branch, b.Base.Position, b.Head.Position)
	}
	if b.Branch < 0 && b.Number < 0 || b.Branch > maxBranch || b.Number > maxBranch {
		return invalid("branch %d has an invalid number", b.Branch)
	}
	for n := range b.Open {
		b.Open[n].ID = shortName(b.Open[n].ID)
	}
	open, err := json.Marshal(b.Open)
	if err != nil {
		return err
	}
	if b.Open == nil {
		open = []byte("[]")
	}
	row := sqlc.ImportBranchParams{
		TaskUid: pgtype.Text{String: i.task.UID, Valid: b.Branch > 0}, Number: b.Branch, Reason: clean(b.Reason),
		BasePosition: b.Base.Position, BaseToolCalls: b.Base.ToolCalls, BaseInputTokens: b.Base.InputTokens,
		BaseOutputTokens: b.Base.OutputTokens, BaseCostMicroUsd: b.Base.CostMicroUSD,
		HeadPosition: b.Head.Position, HeadToolCalls: b.Head.ToolCalls, HeadInputTokens: b.Head.InputTokens,
		HeadOutputTokens: b.Head.OutputTokens, HeadCostMicroUsd: b.Head.CostMicroUSD,
		HeadBoundary: b.Boundary, HeadSettled: b.Settled, HeadOpenCalls: open, CreatedAt: b.Created, Digest: make([]byte, len(conversation.Digest{})),
	}
	if b.Branch < 0 {
		row.Number = b.Number
	}
	if parent != nil {
		row.ParentID = pgtype.Int8{Int64: parent.id, Valid: true}
	}
	id, err := i.q.ImportBranch(ctx, row)
	i.branches[b.Branch] = &importedBranch{id: id, row: b, position: b.Base.Position}
	return err
}

func (i *importer) piece(p exportedPiece) error {
	data := p.Bytes
	if data == nil {
		data = []byte(p.Text)
	}
	if !bytes.Equal(conversation.PieceHash(string(data)), p.Hash) {
		return fmt.Errorf("%w: a piece of a text does not match its hash", history.ErrCorrupted)
	}
	b := i.current()
	b.pieces[conversation.Hash(p.Hash)] = data
	// Until its message is imported, it must not look unused.
	b.awaited[conversation.Hash(p.Hash)] = true
	i.bytes += len(data)
	return nil
}

// current returns the batch that is being collected.
func (i *importer) current() *batch {
	if i.batch == nil {
		i.batch = &batch{
			task: i.task, id: i.id, messages: map[conversation.Hash]conversation.Message{},
			pieces: map[conversation.Hash][]byte{}, awaited: map[conversation.Hash]bool{},
		}
	}
	return i.batch
}

func (i *importer) message(ctx context.Context, e exportedMessage) error {
	branch := i.branches[e.Branch]
	if branch == nil {
		return invalid("a message is on branch %d, which does not precede it", e.Branch)
	}
	if i.into != e.Branch || i.bytes > importBytes {
		if err := i.flush(ctx); err != nil {
			return err
		}
	}
	if err := i.openBranch(ctx, branch); err != nil {
		return err
	}
	i.into = e.Branch
	if e.Sums.Position != branch.position+1 || e.Sums.Position > branch.row.Head.Position {
		return invalid("message %d of branch %d follows on message %d", e.Sums.Position, e.Branch, branch.position)
	}
	b := i.current()
	m, err := e.message(b)
	if err != nil {
		return err
	}
	b.branch = sqlc.Branch{ID: branch.id}
	hash := m.Hash(i.task.Namespace)
	branch.position++
	branch.digest = branch.digest.Add(hash)
	b.messages[hash] = m
	b.hashes = append(b.hashes, hash)
	b.log = conversation.Log{
		Position: e.Sums.Position, Boundary: e.Boundary,
		Totals: conversation.Totals{
			ToolCalls: e.Sums.ToolCalls, InputTokens: e.Sums.InputTokens, OutputTokens: e.Sums.OutputTokens, CostMicroUSD: e.Sums.CostMicroUSD,
		},
	}
	b.digest = branch.digest
	b.addEntry(history.Record{Time: e.Time, Attempt: int64(e.Attempt), Sequence: e.Sequence}, m, 0)
	i.bytes += len(m.Text) + len(m.Raw) + 1024
	return nil
}

// openBranch computes the digest at which a branch begins, before its first message.
func (i *importer) openBranch(ctx context.Context, b *importedBranch) error {
	if b.position != b.row.Base.Position || b.row.Parent == 0 {
		return nil
	}
	digest, err := i.digestAt(ctx, i.branches[b.row.Parent], b.row.Base.Position)
	b.digest = digest
	return err
}

// digestAt returns the digest at a position of a branch whose messages have all been
// stored.
func (i *importer) digestAt(ctx context.Context, b *importedBranch, position int64) (conversation.Digest, error) {
	for position <= b.row.Base.Position && b.row.Parent != 0 {
		b = i.branches[b.row.Parent]
	}
	if position == 0 {
		return conversation.Digest{}, nil
	}
	e, err := i.q.Entry(ctx, sqlc.EntryParams{BranchID: b.id, Position: position})
	if errors.Is(err, pgx.ErrNoRows) {
		return conversation.Digest{}, invalid("message %d of branch %d is missing", position, b.row.Branch)
	}
	if err != nil {
		return conversation.Digest{}, err
	}
	return conversation.Digest(e.Digest), nil
}

// flush stores the collected messages.
func (i *importer) flush(ctx context.Context) error {
	if i.batch == nil {
		return nil
	}
	pieces, err := i.batch.writePieces(ctx, i.q)
	if err != nil {
		return err
	}
	err = i.batch.writeMessages(ctx, i.q, pieces)
	i.batch, i.bytes = nil, 0
	return err
}

func (i *importer) end(e exportedEnd) error {
	for kind, n := range e.Lines {
		if i.lines[kind] != n {
			return invalid("there are %d lines of kind %q; the export had %d", i.lines[kind], kind, n)
		}
	}
	i.ended = true
	return nil
}

// finish checks that the export is complete and activates the imported branch.
func (i *importer) finish(ctx context.Context) error {
	if !i.ended {
		return invalid("the end line is missing: the export is incomplete")
	}
	active := i.branches[i.header.ActiveBranch]
	if active == nil || i.header.ActiveBranch < 0 {
		return invalid("the active branch %d is missing", i.header.ActiveBranch)
	}
	for _, b := range i.branches {
		if b.row.Branch < 0 && !i.inherited(b.row.Branch) {
			return invalid("branch %d belongs to another task and no branch of this one inherits from it", b.row.Branch)
		}
		if b.position != b.row.Head.Position {
			return invalid("branch %d has messages up to %d; the export had them up to %d", b.row.Branch, b.position, b.row.Head.Position)
		}
		if err := i.closeBranch(ctx, b); err != nil {
			return err
		}
	}
	if err := i.q.ActivateBranch(ctx, sqlc.ActivateBranchParams{Uid: i.task.UID, Branch: active.id}); err != nil {
		return err
	}
	return notify(ctx, i.q, i.task, i.header.Attempt)
}

// inherited reports whether a branch of the task inherits from the given one, directly or
// indirectly. A branch that nobody inherits from would belong to nobody and never be
// deleted.
func (i *importer) inherited(branch int64) bool {
	for _, b := range i.branches {
		for up := b; b.row.Branch > 0 && up != nil; up = i.branches[up.row.Parent] {
			if up.row.Parent == branch {
				return true
			}
		}
	}
	return false
}

func (i *importer) closeBranch(ctx context.Context, b *importedBranch) error {
	base, err := i.digestAt(ctx, b, b.row.Base.Position)
	if err != nil {
		return err
	}
	head, err := i.digestAt(ctx, b, b.row.Head.Position)
	if err != nil {
		return err
	}
	if i.same && hex.EncodeToString(head[:]) != b.row.Digest {
		return fmt.Errorf("%w: the digest of branch %d is %s, but was %s when it was exported", history.ErrCorrupted, b.row.Branch, head, b.row.Digest)
	}
	return i.q.SetBranchDigests(ctx, sqlc.SetBranchDigestsParams{ID: b.id, Base: base[:], Head: head[:]})
}
