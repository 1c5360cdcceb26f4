package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

const (
	// eventShare is the part of a task's limit, one in eventShare, that entries of its timeline may
	// take which are not made from its records. It comes on top of the limit, so that records and
	// entries do not wait for each other's counts.
	eventShare = 8
	// newTaskCost is roughly what the rows take that the first entry of a task causes: in the lists of
	// tasks, and what is noted of its transitions and its usage.
	newTaskCost = 3 * recordCost
)

// allowance is what is known about the room for entries of a task's timeline.
type allowance struct {
	task history.Task
	used sqlc.TaskUsageRow
}

func allowanceOf(ctx context.Context, q *sqlc.Queries, task history.Task) (allowance, error) {
	used, err := q.TaskUsage(ctx, sqlc.TaskUsageParams{TaskUid: task.UID, Namespace: task.Namespace})
	return allowance{task: task, used: used}, err
}

// full returns a message about the limit that entries of so many bytes would exceed; empty if none. A
// fraction of each limit (one in extra, unless extra is 0) is added to it.
func (s *Store) full(ctx context.Context, q *sqlc.Queries, a allowance, more, extra int64) (string, error) {
	if most := s.limits.TaskBytes / eventShare; most > 0 && a.used.EventBytes+more > plus(most, extra) {
		return fmt.Sprintf("the timeline of this task has reached its part of the limit of %d bytes (%s)", s.limits.TaskBytes, taskLimit), nil
	}
	return s.namespaceReached(ctx, q, a.task.Namespace, more, extra)
}

// admitEvents returns those of the events to store; the others are counted in one entry. Beyond the limit
// there is a reserve for those that change how the task stands, and for who has exported, imported or
// deleted a history; beyond that for deletions alone, which make room. The error is
// history.ErrLimitReached if nobody would know of an export or import.
func (s *Store) admitEvents(ctx context.Context, q *sqlc.Queries, a allowance, events []history.Event) ([]history.Event, error) {
	extra := int64(0)
	if a.used.LeftOutSince.Valid {
		extra = -room
	}
	reached, err := s.full(ctx, q, a, a.cost(events), extra)
	if err != nil {
		return nil, err
	}
	if reached == "" {
		if a.used.LeftOutSince.Valid {
			err = q.SetLeftOut(ctx, sqlc.SetLeftOutParams{TaskUid: a.task.UID, Namespace: a.task.Namespace})
		}
		return events, err
	}
	kept := slices.DeleteFunc(slices.Clone(events), func(e history.Event) bool { return !lasting(e) })
	full, err := s.full(ctx, q, a, a.cost(kept), reserve)
	if err != nil {
		return nil, err
	}
	if full != "" {
		for _, e := range kept {
			if e.Type == history.EventTypeAccess && e.Reason != v1alpha1.ReasonHistoryDeleted {
				return nil, fmt.Errorf("%w: %s", history.ErrLimitReached, full)
			}
		}
		kept = slices.DeleteFunc(kept, func(e history.Event) bool { return e.Type != history.EventTypeAccess })
	}
	if full != "" && !a.used.Known {
		return kept, nil // even an entry that counts would be one for each task that is made
	}
	return kept, a.leaveOut(ctx, q, events, kept, reached)
}

// cost is roughly what events take.
func (a allowance) cost(events []history.Event) int64 {
	sum := int64(0)
	if !a.used.Known {
		sum = newTaskCost
	}
	for _, e := range events {
		sum += recordCost + int64(len(e.Reason)+len(e.Actor)+min(len(e.Message), maxEventBytes))
	}
	return sum
}

// lasting reports whether an event is stored although the limit is reached.
func lasting(e history.Event) bool {
	return e.State != "" || e.Publication != nil || slices.Contains([]string{history.EventTypeAccess, history.EventTypeRewind, history.EventTypeFork}, e.Type) ||
		slices.Contains([]string{v1alpha1.EventCheckpointCorrupted, v1alpha1.EventCheckpointHealed}, e.Reason)
}

// leaveOut counts the events that are not kept, in one entry of the timeline for all since the limit
// was reached.
func (a allowance) leaveOut(ctx context.Context, q *sqlc.Queries, events, kept []history.Event, reached string) error {
	var ids []string
	for _, e := range events {
		if e.Transition > 0 && e.Transition <= a.used.Recorded {
			continue // as before, stored or left out
		}
		if !slices.ContainsFunc(kept, func(k history.Event) bool { return k.ID == e.ID }) {
			ids = append(ids, e.ID)
		}
	}
	stored, err := q.EventsKnown(ctx, ids)
	if err != nil || len(ids) == len(stored) {
		return err
	}
	since := a.used.LeftOutSince
	if !since.Valid {
		since = pgtype.Timestamptz{Time: time.Now().UTC().Truncate(time.Microsecond), Valid: true}
		a.used.LeftOut = 0
	}
	n := a.used.LeftOut + int64(len(ids)-len(stored))
	if err := q.SetLeftOut(ctx, sqlc.SetLeftOutParams{TaskUid: a.task.UID, Namespace: a.task.Namespace, LeftOut: n, Since: since}); err != nil {
		return err
	}
	a.used.Known = a.used.Known || len(kept) > 0 // or else nothing was counted for a new task
	return a.countLeftOut(ctx, q, history.Event{
		ID: history.LeftOutEventID(a.task.UID, since.Time), Task: a.task, Time: since.Time, Type: history.EventTypeTask,
		Reason: v1alpha1.EventEntriesLeftOut, Actor: "clew",
		Message: fmt.Sprintf("from here on, %s left out of the timeline: %s", wereEntries(n), reached),
	})
}

// countLeftOut stores the entry that counts, or its new text.
func (a allowance) countLeftOut(ctx context.Context, q *sqlc.Queries, e history.Event) error {
	updated, err := q.SetEventMessage(ctx, sqlc.SetEventMessageParams{Message: e.Message, ID: e.ID, Time: e.Time})
	if err != nil || updated > 0 {
		return err
	}
	return a.store(ctx, q, []history.Event{e})
}

func wereEntries(n int64) string {
	if n == 1 {
		return "1 entry was"
	}
	return fmt.Sprintf("%d entries were", n)
}

// store stores events, each once, and counts what they take.
func (a allowance) store(ctx context.Context, q *sqlc.Queries, events []history.Event) error {
	if len(events) == 0 {
		return nil
	}
	var rows sqlc.InsertEventsParams
	for _, e := range events {
		appendEvent(&rows, e, nil)
	}
	stored, err := q.InsertEvents(ctx, rows)
	if err != nil || stored.Events == 0 {
		return err
	}
	bytes := stored.Events*recordCost + stored.Bytes
	if !a.used.Known {
		bytes += newTaskCost
	}
	return q.ChargeEvents(ctx, sqlc.ChargeEventsParams{TaskUid: a.task.UID, Namespace: a.task.Namespace, Bytes: bytes})
}
