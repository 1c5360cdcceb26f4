package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Limits bound what the records of a task, and of all tasks of a namespace, may
// take; 0 for no limit. A database that is full stops for everyone, so nobody
// may fill it.
//
// From when a limit is reached, records are refused for the grace period: the
// daemon keeps them, and nothing is lost if somebody raises the limit or deletes
// histories. Afterwards what the agent says is left out and counted, so that no
// task is held up for good; checkpoints and usage are stored all the same.
type Limits struct {
	TaskBytes, NamespaceBytes int64
	// Grace is 3 minutes if zero. It should be shorter than preparing a pod may take.
	Grace time.Duration
}

const (
	defaultGrace = 3 * time.Minute
	// recordCost is about what a record takes besides its texts: its row, and its
	// part of the indexes.
	recordCost = 512
	// sumKept is for how long the sum of a namespace is believed, and sumsKept
	// for how many: adding it up costs a look at each of its tasks.
	sumKept  = 10 * time.Second
	sumsKept = 4096
	// noteEvery is how often a conversation is told that it lacks something.
	noteEvery = time.Minute
)

type limits struct {
	Limits
	sums *cache.LRUExpireCache
}

func newLimits(l Limits) *limits {
	if l.Grace <= 0 {
		l.Grace = defaultGrace
	}
	return &limits{Limits: l, sums: cache.NewLRUExpireCache(sumsKept)}
}

// admit returns what of the records is to be stored, or why none of them may be
// yet. It notes in the task's row where the task stands.
func (s *Store) admit(ctx context.Context, q *sqlc.Queries, l *locked, records []history.Record) (stored []history.Record, refused, err error) {
	cost := costOf(records)
	reached, err := s.reached(ctx, q, l, cost)
	if err != nil {
		return nil, nil, err
	}
	if reached == "" {
		l.row.StoredBytes += cost
		if l.row.LimitMessage == "" {
			return records, nil, nil
		}
		l.row.LimitSince, l.row.LimitNoted, l.row.LimitMessage = pgtype.Timestamptz{}, pgtype.Timestamptz{}, ""
		return records, nil, l.saveLimit(ctx, q)
	}
	now := time.Now()
	if !l.row.LimitSince.Valid {
		l.row.LimitSince = pgtype.Timestamptz{Time: now, Valid: true}
	}
	if now.Before(l.row.LimitSince.Time.Add(s.limits.Grace)) {
		refused = fmt.Errorf("%w: %s", history.ErrLimitReached, reached)
		return nil, refused, l.setLimit(ctx, q, reached+"; the agent's output waits on its volume for some minutes, and is left out of the history then")
	}
	records = l.leaveOut(records, now, reached)
	l.row.StoredBytes += costOf(records)
	return records, nil, l.setLimit(ctx, q, reached+"; the agent's output is left out of the history meanwhile, and checkpoints are kept")
}

// reached says which limit so many bytes more would exceed; empty if none.
func (s *Store) reached(ctx context.Context, q *sqlc.Queries, l *locked, more int64) (string, error) {
	if most := s.limits.TaskBytes; most > 0 && l.row.StoredBytes+more > most {
		return fmt.Sprintf("the history of this task has reached its limit of %d bytes (the server's --task-history-bytes)", most), nil
	}
	most := s.limits.NamespaceBytes
	if most <= 0 {
		return "", nil
	}
	sum, ok := s.limits.sums.Get(l.task.Namespace)
	if !ok {
		var err error
		if sum, err = q.NamespaceBytes(ctx, l.task.Namespace); err != nil {
			return "", err
		}
		s.limits.sums.Add(l.task.Namespace, sum, sumKept)
	}
	if sum.(int64)+more <= most {
		return "", nil
	}
	return fmt.Sprintf("the histories of this namespace have reached their limit of %d bytes (the server's --namespace-history-bytes); delete some with kubectl clew task delete-history", most), nil
}

// costOf is about what records take.
func costOf(records []history.Record) int64 {
	cost := int64(0)
	for _, r := range records {
		cost += recordCost + int64(len(r.Piece))
		if r.Message == nil {
			continue
		}
		for _, t := range r.Message.Texts() {
			cost += int64(len(*t.Text))
		}
	}
	return cost
}

// leaveOut empties the records of what the agent said. The conversation tells of
// it in the place of the last one, now and then.
func (l *locked) leaveOut(records []history.Record, now time.Time, why string) []history.Record {
	kept := make([]history.Record, 0, len(records))
	last := -1
	for _, r := range records {
		if r.Message != nil || r.Piece != nil {
			l.row.LeftOutRecords++
			l.row.LeftOutBytes += costOf([]history.Record{r}) - recordCost
			r.Message, r.Piece = nil, nil
			last = len(kept)
		}
		kept = append(kept, r)
	}
	if last < 0 || l.row.LimitNoted.Valid && now.Before(l.row.LimitNoted.Time.Add(noteEvery)) {
		return kept
	}
	l.row.LimitNoted = pgtype.Timestamptz{Time: now, Valid: true}
	kept[last].Message = &conversation.Message{Role: conversation.RoleSystem, Text: fmt.Sprintf(
		"Output was left out here: %d records of %d bytes so far, since %s.", l.row.LeftOutRecords, l.row.LeftOutBytes, why)}
	return kept
}

// setLimit stores where the task stands, and tells who listens if that is new.
func (l *locked) setLimit(ctx context.Context, q *sqlc.Queries, message string) error {
	if l.row.LimitMessage == message {
		return l.saveLimit(ctx, q)
	}
	l.row.LimitMessage = message
	if err := l.saveLimit(ctx, q); err != nil {
		return err
	}
	return notify(ctx, q, l.task, l.row.Attempt)
}

func (l *locked) saveLimit(ctx context.Context, q *sqlc.Queries) error {
	return q.SetTaskLimit(ctx, sqlc.SetTaskLimitParams{
		Uid: l.row.Uid, Since: l.row.LimitSince, Noted: l.row.LimitNoted, Message: l.row.LimitMessage,
		LeftOutRecords: l.row.LeftOutRecords, LeftOutBytes: l.row.LeftOutBytes,
	})
}

// weigh notes what an import takes, and refuses it if its namespace would have
// more than it may.
func (s *Store) weigh(ctx context.Context, i *importer) error {
	if most := s.limits.NamespaceBytes; most > 0 {
		sum, err := i.q.NamespaceBytes(ctx, i.task.Namespace)
		if err != nil {
			return err
		}
		if sum+i.cost > most {
			return fmt.Errorf("%w: with this import the histories of the namespace would take %d bytes, and they may take %d (the server's --namespace-history-bytes)",
				history.ErrLimitReached, sum+i.cost, most)
		}
	}
	return i.q.SetStoredBytes(ctx, sqlc.SetStoredBytesParams{Uid: i.task.UID, StoredBytes: i.cost})
}
