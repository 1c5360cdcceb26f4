package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// hashesPerPage bounds what a digest holds in memory at a time.
const hashesPerPage = 10_000

// maxPageBytes is the size of the messages after which a page ends.
const maxPageBytes = 16 << 20

// Checkpoint returns a checkpoint with the files it changed;
// history.ErrNotFound if it is not recorded.
func (s *Store) Checkpoint(ctx context.Context, taskUID string, number int64) (history.Checkpoint, error) {
	doing := fmt.Sprintf("read checkpoint %d of the task with UID %s", number, taskUID)
	row, err := s.read().Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: taskUID, Number: number})
	if err != nil {
		return history.Checkpoint{}, wrap(err, doing)
	}
	c, err := checkpointOf(row)
	if err != nil {
		return c, err
	}
	changes, err := s.read().CheckpointChanges(ctx, sqlc.CheckpointChangesParams{TaskUid: taskUID, Number: number})
	if err != nil {
		return c, wrap(err, doing)
	}
	if err := json.Unmarshal(changes, &c.Changes); err != nil {
		return c, fmt.Errorf("%s: its changed files: %w", doing, err)
	}
	return c, nil
}

// CheckpointsAfter returns up to limit checkpoints with numbers above after,
// in the order of their numbers. A task without records has none.
func (s *Store) CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error) {
	rows, err := s.read().CheckpointsAfter(ctx, sqlc.CheckpointsAfterParams{TaskUid: taskUID, After: after, UpToRows: int32(limit)})
	if err != nil {
		return nil, wrap(err, "list the checkpoints of the task with UID "+taskUID)
	}
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

// Conversation returns up to limit messages of the task's active branch after
// a position, oldest first, inherited ones included; fewer if they are large,
// and none only at the end. history.ErrNotFound if the task has never begun.
func (s *Store) Conversation(ctx context.Context, taskUID string, after int64, limit int) ([]history.Entry, error) {
	doing := "read the conversation of the task with UID " + taskUID
	found, err := s.read().Task(ctx, taskUID)
	if err != nil {
		return nil, wrap(err, doing)
	}
	entries, err := s.entries(ctx, found.Task, found.Branch, after, limit)
	return entries, wrap(err, doing)
}

// entries reads (after, after+limit] of a branch, or a part from its beginning:
// positions are dense, so the limit is a range.
func (s *Store) entries(ctx context.Context, t sqlc.Task, b sqlc.Branch, after int64, limit int) ([]history.Entry, error) {
	upTo := min(b.HeadPosition, after+int64(limit))
	if upTo <= after {
		return nil, nil
	}
	rows, err := s.read().Conversation(ctx, sqlc.ConversationParams{
		Upto: upTo, BranchID: b.ID, After: after, UpToRows: upTo - after, UpToBytes: maxPageBytes, Namespace: t.Namespace,
	})
	if err != nil {
		return nil, err
	}
	entries := make([]history.Entry, 0, len(rows))
	for _, row := range rows {
		entries = append(entries, entryOf(row, t.Uid))
	}
	return entries, nil
}

// TaskConversation returns a part of a task's conversation, found by name;
// history.ErrNotFound if there is no such task or branch.
func (s *Store) TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	doing := fmt.Sprintf("read the conversation of the task %s/%s", query.Namespace, query.Name)
	task, branch, err := s.findBranch(ctx, query)
	if err != nil {
		return history.EntryPage{}, wrap(err, doing)
	}
	after := max(query.After, 0)
	if query.Last > 0 {
		after = max(branch.HeadPosition-int64(query.Last), 0)
	}
	entries, err := s.entries(ctx, task, branch, after, query.Limit)
	if err != nil {
		return history.EntryPage{}, wrap(err, doing)
	}
	return history.EntryPage{
		Task:      history.Task{Namespace: task.Namespace, Name: task.Name, UID: task.Uid},
		Entries:   entries,
		Branch:    branchName(branch.Number),
		Remaining: max(branch.HeadPosition-after-int64(len(entries)), 0),
	}, nil
}

func (s *Store) findBranch(ctx context.Context, query history.ConversationQuery) (sqlc.Task, sqlc.Branch, error) {
	var none sqlc.Task
	uid := query.UID
	if uid == "" {
		var err error
		uid, err = s.read().NewestTaskNamed(ctx, sqlc.NewestTaskNamedParams{Namespace: query.Namespace, Name: query.Name})
		if err != nil {
			return none, sqlc.Branch{}, err
		}
	}
	found, err := s.read().Task(ctx, uid)
	if err != nil {
		return none, sqlc.Branch{}, err
	}
	if found.Task.Namespace != query.Namespace || query.Name != "" && found.Task.Name != query.Name {
		return none, sqlc.Branch{}, pgx.ErrNoRows
	}
	if query.Branch == "" {
		return found.Task, found.Branch, nil
	}
	number, ok := branchNumber(query.Branch)
	if !ok {
		return none, sqlc.Branch{}, pgx.ErrNoRows
	}
	branch, err := s.read().BranchByNumber(ctx, sqlc.BranchByNumberParams{TaskUid: uid, Number: number})
	return found.Task, branch, err
}

// Snapshot returns the turn boundary of a checkpoint, or of the newest
// position if checkpoint is 0, with its sums and the digest of the messages up
// to it; history.ErrNotFound if the task or the checkpoint is unknown. For one
// checkpoint it is the same at any time.
func (s *Store) Snapshot(ctx context.Context, taskUID string, query history.SnapshotQuery) (history.Snapshot, error) {
	checkpoint := query.Checkpoint
	var result history.Snapshot
	doing := fmt.Sprintf("resolve a snapshot of the task with UID %s at checkpoint %d", taskUID, checkpoint)
	err := s.snapshot(ctx, doing, func(q *sqlc.Queries) error {
		p, err := snapshotPoint(ctx, q, taskUID, checkpoint)
		if err != nil {
			return err
		}
		digest, err := digest(ctx, q, p)
		result = history.Snapshot{
			Position: history.Position{Branch: branchName(p.number), Position: p.position, ToolCalls: p.totals.ToolCalls},
			Totals:   totals(p.position, p.totals),
			Digest:   digest,
		}
		return err
	})
	return result, err
}

func snapshotPoint(ctx context.Context, q *sqlc.Queries, taskUID string, checkpoint int64) (point, error) {
	if checkpoint != 0 {
		return checkpointPoint(ctx, q, taskUID, checkpoint)
	}
	found, err := q.Task(ctx, taskUID)
	if err != nil {
		return point{}, err
	}
	log, err := logOf(found.Branch)
	if err != nil {
		return point{}, err
	}
	p := point{branch: found.Branch.ID, number: found.Branch.Number, position: log.Boundary, totals: log.Totals}
	if log.Boundary != log.Position {
		p.totals, err = totalsAt(ctx, q, found.Branch, log.Boundary)
	}
	return p, err
}

// digest is the SHA-256 over the hashes of the messages up to the point.
func digest(ctx context.Context, q *sqlc.Queries, p point) (string, error) {
	sum := sha256.New()
	for after := int64(0); after < p.position; after += hashesPerPage {
		hashes, err := q.ConversationHashes(ctx, sqlc.ConversationHashesParams{
			Upto: min(p.position, after+hashesPerPage), BranchID: p.branch, After: after, UpToRows: hashesPerPage,
		})
		if err != nil {
			return "", err
		}
		if want := min(hashesPerPage, p.position-after); int64(len(hashes)) != want {
			return "", errors.New("the conversation has a hole: the history database is damaged")
		}
		for _, h := range hashes {
			sum.Write(h)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Text returns the whole of a text that was cut; history.ErrCorrupted if a
// piece is missing.
func (s *Store) Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error) {
	return "", history.ErrCorrupted
}
