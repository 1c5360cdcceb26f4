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

// Limits bound the storage that the records of a task, and of all tasks of a namespace,
// may use; 0 for no limit. A full database stops everyone, so no tenant may fill it.
//
// Once a limit is reached, records are refused for the grace period: the daemon keeps
// them, and nothing is lost if the limit is raised or histories are deleted. After that,
// the agent's output, events and the file lists of checkpoints are left out and counted,
// so that no task is blocked; checkpoints and moves of the conversation are still stored.
// For these there is a reserve on top of the limit. When the reserve is used up as well,
// everything waits.
type Limits struct {
	TaskBytes, NamespaceBytes int64
	// Grace is 3 minutes if zero. It should be shorter than the time that preparing a pod
	// may take.
	Grace time.Duration
	// ProblemEvery is the least time between two changes of a task's problem; 2 seconds if zero. The
	// manager writes each to the Task's status. Daemons report less often, and each time what is the
	// case then.
	ProblemEvery time.Duration
}

const (
	defaultGrace        = 3 * time.Minute
	defaultProblemEvery = 2 * time.Second
	// reserve is the fraction of a limit (one in reserve) on top of it for what is stored
	// although the limit is reached. room is the fraction that must be free before a task
	// that had reached its limit continues; otherwise each short record that still fits
	// would begin the grace period again.
	reserve = 8
	room    = 16
	// sumKept is how long the sum of a namespace is cached, and sumsKept for how many
	// namespaces: computing it reads all of their tasks.
	sumKept  = 10 * time.Second
	sumsKept = 4096
)

// Where the limits are set, for users who reach one.
const (
	taskLimit      = "historyLimits.taskBytes in the values of Clew's chart, --task-history-bytes of its server and manager"
	namespaceLimit = "historyLimits.namespaceBytes in the values of Clew's chart, --namespace-history-bytes of its server and manager"
)

type limits struct {
	Limits
	sums *cache.LRUExpireCache
}

func newLimits(l Limits) *limits {
	if l.Grace <= 0 {
		l.Grace = defaultGrace
	}
	if l.ProblemEvery <= 0 {
		l.ProblemEvery = defaultProblemEvery
	}
	return &limits{Limits: l, sums: cache.NewLRUExpireCache(sumsKept)}
}

// admit returns the part of the records to store, or why none of them may be stored yet.
// It updates the limit columns of the task's row.
func (s *Store) admit(ctx context.Context, q *sqlc.Queries, l *locked, records []history.Record) (stored []history.Record, refused, err error) {
	cost := costOf(records)
	extra := int64(0)
	if l.row.LimitMessage != "" {
		extra = -room
	}
	reached, err := s.reached(ctx, q, l, cost, extra)
	if err != nil {
		return nil, nil, err
	}
	if reached == "" {
		l.row.StoredBytes += cost
		// A move alone says nothing that the words about what was left out could stand before.
		if l.row.LimitMessage == "" || cost == 0 || records[0].Move != nil {
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

// admitRest admits what is stored although the limit is reached, unless the reserve is
// used up as well.
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
		return nil, refused, l.setLimit(ctx, q, full+"; the reserve for checkpoints is used up too, so everything waits on the task's volume")
	}
	l.row.StoredBytes += cost
	return rest, nil, l.setLimit(ctx, q, reached+"; the agent's output is left out of the history meanwhile, and checkpoints are kept")
}

// admitMove admits a move of the conversation that is not part of a batch.
func (s *Store) admitMove(ctx context.Context, q *sqlc.Queries, l *locked, op history.MoveOperation) error {
	more := cost(history.Record{Move: &op})
	full, err := s.reached(ctx, q, l, more, reserve)
	if err == nil && full != "" {
		err = fmt.Errorf("%w: %s", history.ErrLimitReached, full)
	}
	l.row.StoredBytes += more
	return err
}

// reached returns a message about the limit that more bytes would exceed; empty if none.
// A fraction of each limit (one in extra, unless extra is 0) is added to it.
func (s *Store) reached(ctx context.Context, q *sqlc.Queries, l *locked, more, extra int64) (string, error) {
	if reached := s.taskReached(l.row.StoredBytes+more, extra); reached != "" {
		return reached, nil
	}
	return s.namespaceReached(ctx, q, l.task.Namespace, more, extra)
}

// taskReached is reached for the limit of a task that would have so many bytes.
func (s *Store) taskReached(bytes, extra int64) string {
	most := s.limits.TaskBytes
	if most <= 0 || bytes <= plus(most, extra) {
		return ""
	}
	return fmt.Sprintf("the history of this task has reached its limit of %d bytes (%s): have it raised, or continue in a fork of the task", most, taskLimit)
}

// namespaceReached is reached for the limit of a namespace.
func (s *Store) namespaceReached(ctx context.Context, q *sqlc.Queries, namespace string, more, extra int64) (string, error) {
	most := s.limits.NamespaceBytes
	if most <= 0 {
		return "", nil
	}
	used, err := s.namespaceUsage(ctx, q, namespace)
	if err != nil || used.counted(most)+more <= plus(most, extra) {
		return "", err
	}
	return fmt.Sprintf("the histories of this namespace have reached their limit of %d bytes%s (%s): have it raised, or delete some with kubectl clew task delete-history", most, used.note(most), namespaceLimit), nil
}

// plus returns a limit with a fraction of it added: one in extra, or nothing if extra is 0.
func plus(most, extra int64) int64 {
	if extra == 0 {
		return most
	}
	return most + most/extra
}

// usage is how much the histories of a namespace take, and those that others have left which had its
// name, with kept specs, all entries of timelines, and the calls of tools.
type usage struct{ own, others int64 }

// counted returns what counts against the limit of the namespace. What others have left counts only
// as far as it is more than one namespace may store: the next one of the name is not refused for what
// it can neither see nor delete, and who makes and deletes a namespace again and again gets no more
// than twice the limit.
func (u usage) counted(most int64) int64 { return u.own + max(0, u.others-most-most/reserve) }

// note says that what others have left counts, if it does; how much it is is not told.
func (u usage) note(most int64) string {
	if u.counted(most) == u.own {
		return ""
	}
	return ", together with what earlier namespaces of this name have left, beyond that limit"
}

// namespaceUsage returns the usage of a namespace as of a short time ago.
func (s *Store) namespaceUsage(ctx context.Context, q *sqlc.Queries, namespace string) (usage, error) {
	if sum, ok := s.limits.sums.Get(namespace); ok {
		return sum.(usage), nil
	}
	sum, err := usageNow(ctx, q, namespace)
	if err == nil {
		s.limits.sums.Add(namespace, sum, sumKept)
	}
	return sum, err
}

// usageNow returns the usage of a namespace.
func usageNow(ctx context.Context, q *sqlc.Queries, namespace string) (usage, error) {
	row, err := q.NamespaceBytes(ctx, namespace)
	return usage{own: row.Own, others: row.Others}, err
}

// leaveOut removes the agent's output, and everything else that nothing depends on, from
// the records. A message in the conversation marks where that begins; another, with the
// counts, marks where it ends.
func (l *locked) leaveOut(records []history.Record, now time.Time, why string) []history.Record {
	kept := make([]history.Record, 0, len(records))
	first := -1
	for _, r := range records {
		if (r.Message != nil || r.Piece != nil) && r.Time.After(l.row.ActiveAt.Time) {
			l.row.ActiveAt = pgtype.Timestamptz{Time: r.Time, Valid: true}
		}
		if isWork(r) && r.Time.After(l.row.WorkedAt.Time) {
			l.row.WorkedAt = pgtype.Timestamptz{Time: r.Time, Valid: true}
		}
		rest := indispensable(r)
		if left := contentBytes(r) - contentBytes(rest); left > 0 || cost(rest) == 0 && cost(r) > 0 {
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

// counted formats a number of things.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// indispensable returns the part of a record that is stored although the limit is
// reached: without its checkpoints a task cannot continue from where it was, and a call of a tool that
// nobody knows to be over would be taken for the agent's next one.
func indispensable(r history.Record) history.Record {
	r.Message, r.Piece = nil, nil
	if e := r.Event; e != nil && e.Reason != reasonCheckpointRefused && e.Reason != reasonCheckpointLost && e.Details[history.ToolCallDelivered] == "" {
		r.Event = nil
	}
	if r.Checkpoint != nil {
		c := *r.Checkpoint
		c.DirtyFiles, c.Skipped, c.Changes = nil, nil, nil
		r.Checkpoint = &c
	}
	return r
}

// setLimit stores the state of the limit, and notifies listeners if the message has
// changed.
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

// loadUsage loads the limit and the usage of the import's namespace.
func (s *Store) loadUsage(ctx context.Context, i *importer) error {
	i.limit = s.limits.NamespaceBytes
	used, err := usageNow(ctx, i.q, i.task.Namespace)
	i.used, i.note = used.counted(i.limit), used.note(i.limit)
	return err
}

// checkLimit refuses an import that would exceed the limit of its namespace. It is called
// before each line is stored, so that a refused import has not been written to the end.
func (i *importer) checkLimit() error {
	if i.limit > 0 && i.used+i.cost > i.limit {
		return fmt.Errorf("%w: with this import the histories of the namespace would exceed their limit of %d bytes%s (%s)",
			history.ErrLimitReached, i.limit, i.note, namespaceLimit)
	}
	return nil
}

// finishLimit checks the limit once more and stores the size of the import.
func (s *Store) finishLimit(ctx context.Context, i *importer) error {
	if err := s.loadUsage(ctx, i); err != nil {
		return err
	}
	if err := i.checkLimit(); err != nil {
		return err
	}
	return i.q.SetStoredBytes(ctx, sqlc.SetStoredBytesParams{Uid: i.task.UID, StoredBytes: i.cost})
}
