package postgres

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Checkpoint returns a checkpoint with the files it changed and what is known of its
// integrity; history.ErrNotFound if it is
// not recorded in that namespace.
func (s *Store) Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error) {
	doing := fmt.Sprintf("read checkpoint %d of the task with UID %s in namespace %s", number, task.UID, task.Namespace)
	row, err := s.read().Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: task.UID, Number: narrow(number)})
	if err == nil && row.Namespace != task.Namespace {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return history.Checkpoint{}, wrap(err, doing)
	}
	c, err := checkpointOf(row)
	if err != nil {
		return c, err
	}
	changes, err := s.read().CheckpointChanges(ctx, sqlc.CheckpointChangesParams{TaskUid: task.UID, Number: narrow(number)})
	if err != nil {
		return c, wrap(err, doing)
	}
	if c.Changes, err = changesOf(changes); err != nil {
		return c, fmt.Errorf("%s: its changed files: %w", doing, err)
	}
	c.Integrity, err = s.integrity(ctx, task.UID, number)
	return c, wrap(err, doing)
}

// CheckpointsAfter returns up to limit checkpoints with numbers above after, in ascending
// order. A task without records has none.
func (s *Store) CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error) {
	rows, err := s.read().CheckpointsAfter(ctx, sqlc.CheckpointsAfterParams{TaskUid: taskUID, After: narrow(after), UpToRows: int32(limit)})
	if err != nil {
		return nil, wrap(err, "list the checkpoints of the task with UID "+taskUID)
	}
	return checkpointsOf(rows)
}

// CheckpointsBefore returns up to limit checkpoints of a task in a namespace with numbers below
// before, or the newest ones if that is 0, in descending order. A task without records has none.
func (s *Store) CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error) {
	if before <= 0 {
		before = math.MaxInt32
	}
	rows, err := s.read().CheckpointsBefore(ctx, sqlc.CheckpointsBeforeParams{TaskUid: task.UID, Before: narrow(before), UpToRows: int32(limit)})
	if err != nil {
		return nil, wrap(err, fmt.Sprintf("list the checkpoints of the task with UID %s in namespace %s", task.UID, task.Namespace))
	}
	if len(rows) > 0 && rows[0].Namespace != task.Namespace {
		return nil, nil
	}
	return checkpointsOf(rows)
}

// LatestCheckpoints returns the sizes of the newest checkpoints of tasks of a namespace, in any order,
// without those of tasks that have none.
func (s *Store) LatestCheckpoints(ctx context.Context, namespace string, taskUIDs []string) ([]history.CheckpointSize, error) {
	rows, err := s.read().LatestCheckpoints(ctx, sqlc.LatestCheckpointsParams{TaskUids: listOf(taskUIDs), Namespace: namespace})
	sizes := make([]history.CheckpointSize, 0, len(rows))
	for _, row := range rows {
		sizes = append(sizes, history.CheckpointSize{
			TaskUID: row.Uid, Number: int64(row.Number), FilesChanged: row.FilesChanged,
			LinesAdded: int64(row.LinesAdded), LinesRemoved: int64(row.LinesRemoved),
		})
	}
	return sizes, wrap(err, "read the newest checkpoints of tasks of the namespace "+namespace)
}

func checkpointsOf(rows []sqlc.RecordedCheckpoint) ([]history.Checkpoint, error) {
	checkpoints := make([]history.Checkpoint, 0, len(rows))
	for _, row := range rows {
		c, err := checkpointOf(row)
		if err != nil {
			return nil, err
		}
		checkpoints = append(checkpoints, c)
	}
	return checkpoints, nil
}

// lostPage is how many lost checkpoints are read at a time.
const lostPage = 500

// LostCheckpoints calls each with the lost checkpoints of all tasks, a page at a time,
// until it returns an error: the number of losses is up to whoever reports them. After
// history.ErrSkipTask it continues behind the last task of the page.
func (s *Store) LostCheckpoints(ctx context.Context, each func([]history.CheckpointKey) error) error {
	for from := (sqlc.LostCheckpointsParams{UpToRows: lostPage}); ; {
		rows, err := s.read().LostCheckpoints(ctx, from)
		if err != nil {
			return wrap(err, "list the lost checkpoints")
		}
		if len(rows) == 0 {
			return nil
		}
		keys := make([]history.CheckpointKey, 0, len(rows))
		for _, row := range rows {
			keys = append(keys, history.CheckpointKey{Task: history.Key{Namespace: row.Namespace, UID: row.Uid}, Number: int64(row.Number)})
			from.AfterTask, from.AfterNumber = row.TaskID, row.Number
		}
		switch err := each(keys); {
		case errors.Is(err, history.ErrSkipTask):
			from.AfterNumber = math.MaxInt32
		case err != nil:
			return err
		}
	}
}

// checkpointRow returns the row of a checkpoint that is recorded at the batch's head.
func checkpointRow(b *batch, r history.Record) (sqlc.InsertCheckpointParams, error) {
	c := boundedCheckpoint(*r.Checkpoint)
	row := sqlc.InsertCheckpointParams{
		TaskID: b.id, Namespace: b.task.Namespace, Number: narrow(c.Number), Previous: narrow(c.Number - 1), Attempt: narrow(r.Attempt),
		Trigger: c.Trigger, Time: plausibleTime(c.Time, r.Time), Message: c.Message,
		Commit: pack(c.Commit), Tree: pack(c.Tree), Parent: pack(c.Parent), Base: pack(c.Base), StateCommit: pack(c.StateCommit),
		FilesChanged: c.FilesChanged, LinesAdded: narrow(c.LinesAdded), LinesRemoved: narrow(c.LinesRemoved),
		GitHead: pack(c.GitHead), GitBranch: c.GitBranch, DirtyFiles: c.DirtyFiles, DirtyFileCount: c.DirtyFileCount,
		Files: narrow(c.Files), Bytes: c.Bytes, SkippedCount: c.SkippedCount, Durable: c.Durable,
		RequestedByName: c.RequestedByName, RequestedByUid: c.RequestedByUID,
		Consistency: c.Consistency, FrozenMs: narrow(c.FrozenMilliseconds),
		BranchID: b.branch.ID, Position: b.log.Position, Turn: narrow(b.log.Position - b.log.Boundary),
		InputTokens: b.log.Totals.InputTokens, OutputTokens: b.log.Totals.OutputTokens, CostMicroUsd: b.log.Totals.CostMicroUSD,
	}
	var err error
	if row.Skipped, err = jsonText(c.Skipped, len(c.Skipped) == 0); err != nil {
		return row, err
	}
	if row.Changes, err = changesText(c.Changes); err != nil {
		return row, err
	}
	if row.RiskyTool, err = jsonText(c.RiskyTool, c.RiskyTool == nil); err != nil {
		return row, err
	}
	row.Session, err = jsonText(c.Session, c.Session == nil)
	return row, err
}

func checkpointOf(row sqlc.RecordedCheckpoint) (history.Checkpoint, error) {
	c := history.Checkpoint{
		TaskUID: row.TaskUid, Number: int64(row.Number), Attempt: int64(row.Attempt), Trigger: row.Trigger, Time: row.Time, Message: row.Message,
		Commit: unpack(row.Commit), Tree: unpack(row.Tree), Parent: unpack(row.Parent), Base: unpack(row.Base), StateCommit: unpack(row.StateCommit),
		FilesChanged: row.FilesChanged, LinesAdded: row.LinesAdded, LinesRemoved: row.LinesRemoved,
		GitHead: unpack(row.GitHead), GitBranch: row.GitBranch, DirtyFiles: row.DirtyFiles, DirtyFileCount: row.DirtyFileCount,
		Files: row.Files, Bytes: row.Bytes, SkippedCount: row.SkippedCount, Durable: row.Durable, Refused: row.Refused, Lost: row.Lost,
		RequestedByName: row.RequestedByName, RequestedByUID: row.RequestedByUid,
		Consistency: row.Consistency, FrozenMilliseconds: int64(row.FrozenMs),
		Position: history.Position{Branch: branchName(row.BranchNumber), Position: row.Position, ToolCalls: row.ToolCalls},
		Totals: totals(row.Position, conversation.Totals{
			ToolCalls: row.ToolCalls, InputTokens: row.InputTokens, OutputTokens: row.OutputTokens, CostMicroUSD: row.CostMicroUsd,
		}),
		Digest: hex.EncodeToString(row.Digest),
	}
	for _, field := range []struct {
		text string
		into any
	}{{row.Skipped, &c.Skipped}, {row.RiskyTool, &c.RiskyTool}, {row.Session, &c.Session}} {
		if field.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(field.text), field.into); err != nil {
			return c, fmt.Errorf("read checkpoint %d of the task with UID %s: %w", row.Number, row.TaskUid, err)
		}
	}
	return c, nil
}

func jsonText(value any, empty bool) (string, error) {
	if empty {
		return "", nil
	}
	encoded, err := json.Marshal(value)
	return string(encoded), err
}

// changesText encodes changed files as pairs of action and path. Known actions are
// shortened to their first letter.
func changesText(files []history.FileChange) (string, error) {
	pairs := make([][2]string, 0, len(files))
	for _, f := range files {
		action := f.Action
		for short, long := range actions {
			if action == long {
				action = short
			}
		}
		pairs = append(pairs, [2]string{action, f.Path})
	}
	return jsonText(pairs, len(pairs) == 0)
}

// actions maps the stored letters to actions.
var actions = map[string]string{"A": "Added", "M": "Modified", "D": "Deleted"}

// changesOf decodes the output of changesText, and the objects that older versions
// stored.
func changesOf(text string) ([]history.FileChange, error) {
	if text == "" {
		return nil, nil
	}
	var pairs [][2]string
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		var changes []history.FileChange
		return changes, json.Unmarshal([]byte(text), &changes)
	}
	changes := make([]history.FileChange, 0, len(pairs))
	for _, p := range pairs {
		action := p[0]
		if long, ok := actions[action]; ok {
			action = long
		}
		changes = append(changes, history.FileChange{Path: p[1], Action: action})
	}
	return changes, nil
}

// pack stores an object id as its bytes. Any other text follows a zero byte, or two if it
// would otherwise be as long as an id; text contains no zero bytes.
func pack(id string) []byte {
	id = clean(id)
	if decoded, err := hex.DecodeString(id); err == nil && (len(decoded) == 20 || len(decoded) == 32) && id == strings.ToLower(id) {
		return decoded
	}
	switch len(id) {
	case 0:
		return []byte{}
	case 19, 31:
		return append([]byte{0, 0}, id...)
	}
	return append([]byte{0}, id...)
}

// unpack reverses pack.
func unpack(packed []byte) string {
	if len(packed) == 20 || len(packed) == 32 {
		return hex.EncodeToString(packed)
	}
	return strings.TrimLeft(string(packed), "\x00")
}
