package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// messagesPerCheck bounds how many messages a verification holds in memory at a time.
const messagesPerCheck = 500

// Snapshot returns a turn boundary with its sums and the digest of the messages up to it:
// that of a checkpoint, of a position of the active branch, or the newest one. It reads
// all messages up to it and verifies their hashes and the digest. The result for a
// checkpoint never changes. Errors: history.ErrNotFound if the task, the checkpoint or
// the position is unknown in that namespace; history.ErrCorrupted, which says where.
func (s *Store) Snapshot(ctx context.Context, task history.Key, query history.SnapshotQuery) (history.Snapshot, error) {
	var result history.Snapshot
	doing := fmt.Sprintf("resolve a snapshot of the task with UID %s in namespace %s", task.UID, task.Namespace)
	err := s.snapshot(ctx, doing, func(q *sqlc.Queries) error {
		found, err := q.Task(ctx, task.UID)
		if err == nil && found.Task.Namespace != task.Namespace {
			err = pgx.ErrNoRows
		}
		if err != nil {
			return err
		}
		p, err := snapshotPoint(ctx, q, found.Task, found.Branch, query)
		if err != nil {
			return err
		}
		if err := verify(ctx, q, p); err != nil {
			return err
		}
		result, err = snapshotOf(ctx, q, task.UID, p, query)
		return err
	})
	return result, err
}

func snapshotOf(ctx context.Context, q *sqlc.Queries, taskUID string, p point, query history.SnapshotQuery) (history.Snapshot, error) {
	result := history.Snapshot{
		Kind:     history.SnapshotManual,
		Position: history.Position{Branch: branchName(p.number), Position: p.position, ToolCalls: p.totals.ToolCalls},
		Totals:   totals(p.position, p.totals),
		Digest:   p.digest.String(),
	}
	if query.Checkpoint != 0 {
		c, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: taskUID, Number: narrow(query.Checkpoint)})
		result.Kind, result.Checkpoint, result.Time = history.SnapshotCheckpoint, query.Checkpoint, c.Time
		return result, err
	}
	var before *history.Checkpoint
	if p.branch != 0 {
		b, err := q.Branch(ctx, p.branch)
		if err != nil {
			return result, err
		}
		if before, err = checkpointBefore(ctx, q, taskUID, b, p.position, endOfTime()); err != nil {
			return result, err
		}
	}
	if before != nil {
		result.Checkpoint = before.Number
	}
	return result, nil
}

func snapshotPoint(ctx context.Context, q *sqlc.Queries, t sqlc.Task, b sqlc.Branch, query history.SnapshotQuery) (point, error) {
	switch {
	case query.Checkpoint != 0:
		return checkpointPoint(ctx, q, t.Uid, query.Checkpoint)
	case query.Position != 0:
		return boundaryPoint(ctx, q, b, query.Position)
	}
	log, err := logOf(b)
	if err != nil || log.Boundary != log.Position {
		p, at := pointAt(ctx, q, b, log.Boundary)
		if err == nil {
			err = at
		}
		return p, err
	}
	return point{branch: b.ID, number: b.Number, position: log.Position, totals: log.Totals, digest: conversation.Digest(b.HeadDigest)}, nil
}

// verify reads all messages up to a point and compares them with its digest.
func verify(ctx context.Context, q *sqlc.Queries, p point) error {
	var chain conversation.Digest
	for after := int64(0); after < p.position; {
		upTo := min(p.position, after+messagesPerCheck)
		rows, err := q.Conversation(ctx, sqlc.ConversationParams{
			Upto: upTo, BranchID: p.branch, After: after, UpToRows: upTo - after, UpToBytes: maxPageBytes,
		})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("%w: message %d is missing", history.ErrCorrupted, after+1)
		}
		for _, row := range rows {
			after++
			if row.Position != after {
				return fmt.Errorf("%w: message %d is missing", history.ErrCorrupted, after)
			}
			hash, err := verifyMessage(ctx, q, row)
			if err != nil {
				return err
			}
			chain = chain.Add(hash)
			if !bytes.Equal(chain[:], row.Digest) {
				return fmt.Errorf("%w: the digest of the messages up to %d is %s, but was %s when they were stored",
					history.ErrCorrupted, after, chain, hex.EncodeToString(row.Digest))
			}
		}
	}
	if chain != p.digest {
		return fmt.Errorf("%w: the digest of the messages up to %d is %s, but was %s when they were stored",
			history.ErrCorrupted, p.position, chain, p.digest)
	}
	return nil
}

// verifyMessage compares a message, and the pieces it refers to, with its hash.
func verifyMessage(ctx context.Context, q *sqlc.Queries, row sqlc.ConversationRow) (conversation.Hash, error) {
	m, err := rowMessage(row)
	if err != nil {
		return conversation.Hash{}, fmt.Errorf("%w: message %d: %w", history.ErrCorrupted, row.Position, err)
	}
	hash := m.Hash(row.Namespace)
	if !bytes.Equal(hash[:], row.Hash) {
		return hash, fmt.Errorf("%w: message %d has changed since it was stored", history.ErrCorrupted, row.Position)
	}
	distinct := map[conversation.Hash]bool{}
	for _, piece := range pieceHashes(m) {
		distinct[piece] = true
	}
	if len(distinct) == 0 {
		return hash, nil
	}
	intact, err := q.IntactPieces(ctx, sqlc.IntactPiecesParams{Namespace: row.Namespace, Hashes: byteSlices(sortedHashes(distinct))})
	if err == nil && int(intact) != len(distinct) {
		err = fmt.Errorf("%w: message %d lacks %d of the %d pieces of its texts", history.ErrCorrupted, row.Position, len(distinct)-int(intact), len(distinct))
	}
	return hash, err
}

// SnapshotsAfter returns up to limit automatic snapshots with ordinals above
// afterOrdinal, in order. The messages behind them are not verified; see Snapshot.
func (s *Store) SnapshotsAfter(ctx context.Context, taskUID string, afterOrdinal int64, limit int) ([]history.Snapshot, error) {
	rows, err := s.read().SnapshotsAfter(ctx, sqlc.SnapshotsAfterParams{TaskUid: taskUID, After: narrow(afterOrdinal), UpToRows: int32(limit)})
	if err != nil {
		return nil, wrap(err, "list the snapshots of the task with UID "+taskUID)
	}
	snapshots := make([]history.Snapshot, 0, len(rows))
	for _, row := range rows {
		if row.Checkpoint == 0 && row.ParentID.Valid {
			number, err := s.read().CheckpointBefore(ctx, sqlc.CheckpointBeforeParams{TaskUid: taskUID, BranchID: row.BranchID, Upto: row.Position, TakenBy: endOfTime()})
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return nil, wrap(err, "list the snapshots of the task with UID "+taskUID)
			}
			row.Checkpoint = int64(number)
		}
		snapshots = append(snapshots, history.Snapshot{
			Ordinal: int64(row.Snapshot), Kind: history.SnapshotAutomatic, Time: row.Time,
			Position: history.Position{Branch: branchName(row.BranchNumber), Position: row.Position, ToolCalls: row.ToolCalls},
			Totals: totals(row.Position, conversation.Totals{
				ToolCalls: row.ToolCalls, InputTokens: row.InputTokens, OutputTokens: row.OutputTokens, CostMicroUSD: row.CostMicroUsd,
			}),
			Digest: hex.EncodeToString(row.Digest), Checkpoint: row.Checkpoint,
		})
	}
	return snapshots, nil
}
