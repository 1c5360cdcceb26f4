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
// histories. Afterwards what the agent says, events, and the lists of files of
// checkpoints are left out and counted, so that no task is held up; checkpoints
// and moves of the conversation are stored all the same. These have a reserve
// beside the limit. When that is used up too, everything waits.
type Limits struct {
	TaskBytes, NamespaceBytes int64
	// Grace is 3 minutes if zero. It should be shorter than preparing a pod may take.
	Grace time.Duration
}

const (
	defaultGrace = 3 * time.Minute
	// reserve is the part of a limit, one in so many, that there is beside it for
	// what is stored although the limit is reached; room is the part that must be
	// free before a task that had reached it goes on, lest each short record that
	// still fits began the grace anew.
	reserve = 8
	room    = 16
	// sumKept is for how long the sum of a namespace is believed, and sumsKept
	// for how many: adding it up costs a look at each of its tasks.
	sumKept  = 10 * time.Second
	sumsKept = 4096
)

// Where the limits are set, for whoever reaches one.
const (
	taskLimit      = "historyLimits.taskBytes in the values of Clew's chart, --task-history-bytes of its server"
	namespaceLimit = "historyLimits.namespaceBytes in the values of Clew's chart, --namespace-history-bytes of its server"
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
	beside := int64(0)
	if l.row.LimitMessage != "" {
		beside = -room
	}
	reached, err := s.reached(ctx, q, l, cost, beside)
	if err != nil {
		return nil, nil, err
	}
	if reached == "" {
		l.row.StoredBytes += cost
		if l.row.LimitMessage == "" || cost == 0 {
			return records, nil, nil
		}
		if l.row.LimitNoted.Valid {
			l.preface = fmt.Sprintf("The output is complete again from here on. So far the history lacks %s, %d bytes.",
				counted(l.row.LeftOutRecords, "record"), l.row.LeftOutBytes)
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
		return nil, refused, l.setLimit(ctx, q, reached+"; the agent's output is buffered on its volume for a few minutes and then left out of the history")
	}
	return s.admitRest(ctx, q, l, records, reached)
}

// admitRest admits what is stored although the limit is reached, unless the
// reserve is used up as well.
func (s *Store) admitRest(ctx context.Context, q *sqlc.Queries, l *locked, records []history.Record, reached string) (stored []history.Record, refused, err error) {
	before := l.row
	rest := l.leaveOut(records, time.Now(), reached)
	cost := costOf(rest)
	full, err := s.reached(ctx, q, l, cost, reserve)
	if err != nil {
		return nil, nil, err
	}
	if full != "" {
		l.row = before
		refused = fmt.Errorf("%w: %s", history.ErrLimitReached, full)
		return nil, refused, l.setLimit(ctx, q, full+"; what there was beside it for checkpoints is used up too, and everything waits on the task's volume")
	}
	l.row.StoredBytes += cost
	return rest, nil, l.setLimit(ctx, q, reached+"; the agent's output is left out of the history meanwhile, and checkpoints are kept")
}

// admitMove admits a move of the conversation that comes by itself.
func (s *Store) admitMove(ctx context.Context, q *sqlc.Queries, l *locked, op history.MoveOperation) error {
	more := cost(history.Record{Move: &op})
	full, err := s.reached(ctx, q, l, more, reserve)
	if err == nil && full != "" {
		err = fmt.Errorf("%w: %s", history.ErrLimitReached, full)
	}
	l.row.StoredBytes += more
	return err
}

// reached says which limit so many bytes more would exceed; empty if none. One
// part in beside, unless that is 0, is added to each limit.
func (s *Store) reached(ctx context.Context, q *sqlc.Queries, l *locked, more, beside int64) (string, error) {
	with := func(most int64) int64 {
		if beside == 0 {
			return most
		}
		return most + most/beside
	}
	if most := s.limits.TaskBytes; most > 0 && l.row.StoredBytes+more > with(most) {
		return fmt.Sprintf("the history of this task has reached its limit of %d bytes (%s): have it raised, or go on with a fork of the task", most, taskLimit), nil
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
	if sum.(int64)+more <= with(most) {
		return "", nil
	}
	return fmt.Sprintf("the histories of this namespace have reached their limit of %d bytes (%s): have it raised, or delete some with kubectl clew task delete-history", most, namespaceLimit), nil
}

// leaveOut empties the records of what the agent said, and of what more there is
// that nothing depends on. The conversation tells of it where that begins and, with
// the numbers, where it ends.
func (l *locked) leaveOut(records []history.Record, now time.Time, why string) []history.Record {
	kept := make([]history.Record, 0, len(records))
	first := -1
	for _, r := range records {
		if (r.Message != nil || r.Piece != nil) && r.Time.After(l.row.ActiveAt.Time) {
			l.row.ActiveAt = pgtype.Timestamptz{Time: r.Time, Valid: true}
		}
		rest := indispensable(r)
		if left := said(r) - said(rest); left > 0 || cost(rest) == 0 && cost(r) > 0 {
			l.row.LeftOutRecords++
			l.row.LeftOutBytes += left
		}
		if first < 0 && cost(rest) == 0 && cost(r) > 0 {
			first = len(kept)
		}
		kept = append(kept, rest)
	}
	if first < 0 || l.row.LimitNoted.Valid {
		return kept
	}
	l.row.LimitNoted = pgtype.Timestamptz{Time: now, Valid: true}
	kept[first].Message = &conversation.Message{Role: conversation.RoleSystem,
		Text: "Output is left out of the history from here on: " + why + ". status.leftOutRecords of the Task counts it."}
	return kept
}

// counted is a number of things, in words.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// indispensable is what is stored of a record although the limit is reached:
// without its checkpoints a task cannot go on from where it was.
func indispensable(r history.Record) history.Record {
	r.Message, r.Piece = nil, nil
	if e := r.Event; e != nil && e.Reason != reasonCheckpointRefused && e.Reason != reasonCheckpointLost {
		r.Event = nil
	}
	if r.Checkpoint != nil {
		c := *r.Checkpoint
		c.DirtyFiles, c.Skipped, c.Changes = nil, nil, nil
		r.Checkpoint = &c
	}
	return r
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

// noteRoom notes what the namespace of an import has, and what it may have.
func (s *Store) noteRoom(ctx context.Context, i *importer) (err error) {
	i.most = s.limits.NamespaceBytes
	i.has, err = i.q.NamespaceBytes(ctx, i.task.Namespace)
	return err
}

// fits refuses an import by which its namespace would have more than it may. It is
// asked before a line is stored: what is refused at the end was written already.
func (i *importer) fits() error {
	if i.most > 0 && i.has+i.cost > i.most {
		return fmt.Errorf("%w: with this import the histories of the namespace would take more than the %d bytes that they may take (%s)",
			history.ErrLimitReached, i.most, namespaceLimit)
	}
	return nil
}

// weigh notes what an import takes, and looks once more whether it fits.
func (s *Store) weigh(ctx context.Context, i *importer) error {
	if err := s.noteRoom(ctx, i); err != nil {
		return err
	}
	if err := i.fits(); err != nil {
		return err
	}
	return i.q.SetStoredBytes(ctx, sqlc.SetStoredBytesParams{Uid: i.task.UID, StoredBytes: i.cost})
}
