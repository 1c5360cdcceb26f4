package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// stepsAtOnce is how many records of the kinds that take statements of their own are stored in one
// transaction.
const stepsAtOnce = 100

// Append stores records and returns the sequence up to which everything is stored. Records up to the last stored one are ignored, so that a batch
// whose response was lost may be sent again. Errors: history.ErrGap (a *history.GapError;
// last is then the last stored sequence), history.ErrForeign if a given record has the
// sequence of the last stored one but is a different record, history.ErrFenced, also if
// the task's history was deleted, history.ErrNotFound if no attempt has begun,
// history.ErrLimitReached for the grace period after the task or its namespace reaches a
// limit (see Limits), and history.ErrUnavailable. After an error a beginning of the batch may be
// stored, and after ErrUnavailable all of it.
func (s *Store) Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error) {
	for _, part := range parts(records) {
		if last, err = s.appendPart(ctx, task, attempt, part); err != nil {
			return last, err
		}
	}
	return last, nil
}

// parts divides records into those that are stored in one transaction each, at least one: a part ends
// with a move of the conversation, or when it has many records that take statements of their own. The
// task's timeline is locked from its first checkpoint or move on, and the manager waits for it.
func parts(records []history.Record) (all [][]history.Record) {
	begin, steps := 0, 0
	for i, r := range records {
		if r.Checkpoint != nil || r.Event != nil {
			steps++
		}
		if r.Move != nil || steps == stepsAtOnce {
			all = append(all, records[begin:i+1])
			begin, steps = i+1, 0
		}
	}
	if begin < len(records) || len(all) == 0 {
		all = append(all, records[begin:])
	}
	return all
}

// appendPart stores records in one transaction.
func (s *Store) appendPart(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error) {
	doing := fmt.Sprintf("store records of the task %s/%s", task.Namespace, task.Name)
	var refused error
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		refused = nil
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		last = l.row.LastSequence
		if err := l.sameLast(records); err != nil {
			return err
		}
		fresh, err := unseen(records, last)
		if err != nil || len(fresh) == 0 {
			return err
		}
		spenders := after(l.row.SpentThrough, fresh) // also what is left out
		// Reaching the limit is stored, so a refusal must not roll back.
		if fresh, refused, err = s.admit(ctx, q, &l, fresh); err != nil || refused != nil {
			return err
		}
		last = fresh[len(fresh)-1].Last()
		return s.ingest(ctx, q, l, attempt, fresh, spenders)
	})
	if err == nil && refused != nil {
		return 0, fmt.Errorf("%s: %w", doing, refused)
	}
	if err == nil || errors.Is(err, history.ErrGap) {
		return last, err
	}
	return 0, err
}

// unseen drops records that are already stored and bounds the rest, which must continue
// after the last stored one without a gap.
func unseen(records []history.Record, last int64) ([]history.Record, error) {
	fresh, stored := make([]history.Record, 0, len(records)), last
	for _, r := range records {
		if r.Sequence <= last {
			continue
		}
		if r.Sequence != last+1 {
			return nil, &history.GapError{Last: stored, First: r.Sequence}
		}
		fresh = append(fresh, bounded(r))
		last = r.Last()
	}
	return fresh, nil
}

// ingest writes records that follow the last stored one: a run of them, and the move of the conversation
// that may follow it. spenders are those that add to what was spent, as they were sent.
func (s *Store) ingest(ctx context.Context, q *sqlc.Queries, l locked, attempt int64, records, spenders []history.Record) error {
	last, run, checkpoints := records[len(records)-1], records, spentOf(l.row).Checkpoints
	if last.Move != nil {
		run = records[:len(records)-1]
	}
	if len(run) > 0 {
		if err := s.ingestRun(ctx, q, &l, attempt, run); err != nil {
			return err
		}
	}
	if last.Move != nil {
		// As the run left it.
		branch, err := q.Branch(ctx, l.branch.ID)
		if err != nil {
			return err
		}
		l.branch = branch
		if err := l.moveOrRefuse(ctx, q, attempt, last); err != nil {
			return err
		}
	}
	l.row.Attempt = max(l.row.Attempt, attempt)
	l.row.LastSequence, l.row.LastRecordID = last.Last(), int64(last.ID)
	spent := history.SpentBy(spenders)
	spent.Checkpoints = spentOf(l.row).Checkpoints - checkpoints
	together := l.spend(spent, time.Now())
	if err := l.save(ctx, q); err != nil {
		return err
	}
	return spendTogether(ctx, q, together, spenders) // last, since others wait for these rows
}

// ingestRun writes records that all belong to the active branch.
func (s *Store) ingestRun(ctx context.Context, q *sqlc.Queries, l *locked, attempt int64, records []history.Record) error {
	b, err := newBatch(*l)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Attempt < 1 || r.Attempt > attempt {
			r.Attempt = attempt
		}
		if err := b.add(r); err != nil {
			return err
		}
	}
	if err := s.writeBatch(ctx, q, b); err != nil {
		return err
	}
	if err := s.writeCheckpoints(ctx, q, l, b); err != nil {
		return err
	}
	if err := b.writeEffects(ctx, q); err != nil {
		return err
	}
	if err := deliver(ctx, q, l.row.ID, b.delivered); err != nil {
		return err
	}
	if err := b.updateAgent(&l.row); err != nil {
		return err
	}
	if err := b.updateRequests(&l.row, attempt); err != nil {
		return err
	}
	if err := b.updateHolds(&l.row); err != nil {
		return err
	}
	l.row.SnapshotCount = b.snapshots
	l.row.LostRecords += b.lost
	return b.summarize(ctx, q, &l.row)
}

// writeBatch stores everything but the checkpoints.
func (s *Store) writeBatch(ctx context.Context, q *sqlc.Queries, b *batch) error {
	pieces, err := b.writePieces(ctx, q)
	if err != nil {
		return err
	}
	if err := b.writeMessages(ctx, q, pieces); err != nil {
		return err
	}
	for _, missing := range b.missing {
		s.log.Info("a message refers to a missing piece; its text is stored without it",
			"namespace", b.task.Namespace, "task", b.task.Name, "piece", missing)
	}
	if b.tellsOfCalls {
		if err := q.LockTimeline(ctx, b.task.UID); err != nil {
			return err
		}
	}
	if len(b.events.ID) > 0 {
		if _, err := q.InsertEvents(ctx, b.events); err != nil {
			return err
		}
	}
	head, err := headOf(b.branch.ID, b.log, b.digest)
	if err != nil {
		return err
	}
	return q.SetBranchHead(ctx, head)
}

// writeCheckpoints stores new checkpoints, and news about those that are already stored.
func (s *Store) writeCheckpoints(ctx context.Context, q *sqlc.Queries, l *locked, b *batch) error {
	places, err := l.placesOf(ctx, q, b)
	if err != nil {
		return err
	}
	if len(b.checkpoints) > 0 {
		if err := q.LockTimeline(ctx, b.task.UID); err != nil {
			return err
		}
	}
	var made []int64
	for _, row := range b.checkpoints {
		if p, ok := places[row.Number]; ok {
			place(&row, p)
		}
		inserted, err := q.InsertCheckpoint(ctx, row)
		if err != nil {
			return err
		}
		if inserted == 0 {
			if err := s.updateCheckpoint(ctx, q, b.task, row); err != nil {
				return err
			}
			continue
		}
		made = append(made, int64(row.Number))
		if err := notifyTimeline(ctx, q, b.task.Key(), checkpointAdded(int64(row.Number))); err != nil {
			return err
		}
		l.row.CheckpointCount++
		if row.Trigger == string(v1alpha1.TriggerManual) {
			l.row.RequestedCheckpoints++
		}
		l.row.LatestCheckpoint = max(l.row.LatestCheckpoint, int64(row.Number))
	}
	if len(made) > 0 {
		if err := q.ForgetCheckpointEvents(ctx, sqlc.ForgetCheckpointEventsParams{TaskUid: b.task.UID, Numbers: made}); err != nil {
			return err
		}
	}
	for _, loss := range b.losses {
		if err := q.SetCheckpointLost(ctx, loss); err != nil {
			return err
		}
	}
	for _, refusal := range b.refusals {
		if err := q.SetCheckpointRefused(ctx, refusal); err != nil {
			return err
		}
	}
	return nil
}

// updateCheckpoint stores what is new about an existing checkpoint.
func (s *Store) updateCheckpoint(ctx context.Context, q *sqlc.Queries, task history.Task, row sqlc.InsertCheckpointParams) error {
	updated, err := q.SetCheckpointDurable(ctx, sqlc.SetCheckpointDurableParams{
		Durable: row.Durable, RequestedByName: row.RequestedByName, RequestedByUid: row.RequestedByUid,
		TaskID: row.TaskID, Number: row.Number, Commit: row.Commit,
	})
	if err == nil && updated == 0 {
		s.log.Info("a checkpoint was recorded again with another commit; the first one is kept",
			"namespace", task.Namespace, "task", task.Name, "checkpoint", row.Number, "ignoredCommit", unpack(row.Commit))
	}
	return err
}

// updateAgent sets how the agent ended, when it began and was last active, and whether all that it has
// left is stored.
func (b *batch) updateAgent(row *sqlc.Task) error {
	if b.activeAt.After(row.ActiveAt.Time) {
		row.ActiveAt = pgtype.Timestamptz{Time: b.activeAt, Valid: true}
	}
	if b.workedAt.After(row.WorkedAt.Time) {
		row.WorkedAt = pgtype.Timestamptz{Time: b.workedAt, Valid: true}
	}
	if b.agentAttempt > row.AgentAttempt {
		row.AgentAttempt, row.AgentSince = b.agentAttempt, pgtype.Timestamptz{Time: b.agentSince, Valid: true}
	}
	row.StoredAttempt = max(row.StoredAttempt, b.storedAttempt)
	if b.end == nil {
		return nil
	}
	encoded, err := json.Marshal(b.end)
	if err != nil {
		return fmt.Errorf("encode how the agent ended: %w", err)
	}
	row.AgentEnd = encoded
	return nil
}

// summarize updates what lists show of the task.
func (b *batch) summarize(ctx context.Context, q *sqlc.Queries, row *sqlc.Task) error {
	for tool := range b.tools {
		if at, known := slices.BinarySearch(row.Tools, tool); !known && len(row.Tools) < maxTools {
			row.Tools = slices.Insert(row.Tools, at, tool)
		}
	}
	if len(b.models) > 0 {
		sums, err := modelsOf(row.Models)
		if err != nil {
			return err
		}
		for model, used := range b.models {
			if _, known := sums[model]; known || len(sums) < maxModels {
				sums[model] = sums[model].plus(used)
			}
		}
		if row.Models, err = json.Marshal(sums); err != nil {
			return err
		}
	}
	if b.preview == "" {
		return nil
	}
	return q.ListTask(ctx, sqlc.ListTaskParams{Uid: row.Uid, Namespace: row.Namespace, Name: row.Name, Preview: b.preview})
}

// Bounds of what a task's row keeps: an agent that makes up names must not make the row
// grow.
const (
	maxTools  = 500
	maxModels = 50
)

// modelSums is the usage of one model.
type modelSums struct {
	Input  int64 `json:"input"`
	Cached int64 `json:"cached"`
	Output int64 `json:"output"`
	Cost   int64 `json:"cost"`
}

func (s modelSums) plus(u history.Usage) modelSums {
	return modelSums{s.Input + u.InputTokens, s.Cached + u.CachedInputTokens, s.Output + u.OutputTokens, max(s.Cost+u.CostMicroUSD, 0)}
}

func modelsOf(text []byte) (map[string]modelSums, error) {
	sums := map[string]modelSums{}
	if err := json.Unmarshal(text, &sums); err != nil {
		return nil, fmt.Errorf("read the task's usage of each model: %w", err)
	}
	return sums, nil
}

// narrow clamps a number to its column; numbers that do not fit are not real.
func narrow(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
