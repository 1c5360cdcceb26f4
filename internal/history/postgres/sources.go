package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A task that was started from another one's checkpoint cannot begin in a store that
// was put back to before both until it has the checkpoint again. The source's daemon
// sends it, unless it, too, waits for a source of its own. So it is not the waiting
// task's clock that says when a checkpoint is lost: each one that waits leaves a note
// here, and while a source is heard of, the tasks that were started from it wait on.
const (
	// sourcePatience is how long a task waits for a source that is silent. A source
	// that was heard of within this time is not: each daemon at work asks every 5
	// minutes whether the store has gone back.
	sourcePatience = 6 * time.Minute
	// sourceSilence is how long a task that waits may be silent: for longer than a
	// container is kept from starting again. It tries four times a minute, unless it or
	// the store is down.
	sourceSilence = 10 * time.Minute
	// sourcePause is how much of a silence counts: the source may have been cut off, too.
	sourcePause = time.Minute
	// longestWait is how long a source is waited for that is heard of, and does not
	// send the checkpoint.
	longestWait = 30 * time.Minute
	// awaitedRetention is how long those who wait are remembered.
	awaitedRetention = 24 * time.Hour
)

// sourceMissingError is the history.ErrNotFound of a source's checkpoint.
type sourceMissingError struct {
	task   history.Task
	source history.Source
}

// Error implements error.
func (e *sourceMissingError) Error() string {
	return fmt.Sprintf("%v: checkpoint %d of the task with UID %s, from which %s/%s is to start",
		history.ErrNotFound, e.source.Checkpoint, clip.Marked(clean(e.source.TaskUID), maxToolName), e.task.Namespace, e.task.Name)
}

// Is says that it is a history.ErrNotFound.
func (e *sourceMissingError) Is(target error) bool { return target == history.ErrNotFound }

// sourceMissing says that an error is of a source's checkpoint that is not there.
func sourceMissing(err error) bool {
	var missing *sourceMissingError
	return errors.As(err, &missing)
}

// awaitSource notes that a task could not begin without its source.
func (s *Store) awaitSource(ctx context.Context, task history.Task) {
	err := s.read().AwaitSource(ctx, sqlc.AwaitSourceParams{TaskUid: task.UID, Namespace: task.Namespace, Silence: sourceSilence.Seconds(), Pause: sourcePause.Seconds()})
	if err != nil { // it asks again soon
		s.log.V(1).Info("could not note that a task waits for its source", "namespace", task.Namespace, "task", task.Name, "error", err.Error())
	}
}

// sourceIsLost says that a task has waited for long enough for a source's checkpoint.
func sourceIsLost(ctx context.Context, q *sqlc.Queries, task history.Task, source history.Source) (bool, error) {
	return q.SourceIsLost(ctx, sqlc.SourceIsLostParams{
		TaskUid: task.UID, Namespace: task.Namespace, SourceUid: source.TaskUID,
		Silence: sourceSilence.Seconds(), Pause: sourcePause.Seconds(), Patience: sourcePatience.Seconds(), Longest: longestWait.Seconds(),
	})
}

// firstBranch makes the branch that a new task's conversation begins on. lost says
// that it lacks what it should have of its source.
func firstBranch(ctx context.Context, q *sqlc.Queries, task history.Task, source *history.Source) (lost bool, err error) {
	base := point{}
	reason := "Begin"
	if source != nil && source.IncludeConversation {
		if base, lost, err = inherited(ctx, q, task, *source); err != nil {
			return false, err
		}
		reason = "Fork"
	}
	_, err = branchAt(ctx, q, task.UID, base, reason)
	return lost, err
}

// inherited is where a task's conversation begins in its source's, unless that is lost.
func inherited(ctx context.Context, q *sqlc.Queries, task history.Task, source history.Source) (base point, lost bool, err error) {
	base, err = sourcePoint(ctx, q, task, source)
	if sourceMissing(err) && source.MayBeLost {
		missing := err
		if lost, err = sourceIsLost(ctx, q, task, source); err == nil && !lost {
			err = missing
		}
	}
	if err != nil {
		return point{}, false, err
	}
	return base, lost, q.SourceIsFound(ctx, task.UID)
}

// sourcePoint finds the point of another task of the same namespace.
func sourcePoint(ctx context.Context, q *sqlc.Queries, task history.Task, source history.Source) (point, error) {
	missing := &sourceMissingError{task, source}
	owner, err := q.HoldTask(ctx, source.TaskUID)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && owner != task.Namespace {
		return point{}, missing
	}
	if err != nil {
		return point{}, err
	}
	found, err := checkpointPoint(ctx, q, source.TaskUID, source.Checkpoint)
	if errors.Is(err, pgx.ErrNoRows) {
		return point{}, missing
	}
	return found, err
}

// tellSourceLost tells of a conversation that begins without what it had inherited.
func (s *Store) tellSourceLost(ctx context.Context, q *sqlc.Queries, l *locked, source history.Source) error {
	b, err := newBatch(*l)
	if err != nil {
		return err
	}
	// Behind no record of the task's own, and before the first one.
	b.tellGap(history.Record{Time: time.Now(), Attempt: l.row.Attempt}, max(source.Position, 1), sourceLostText(source))
	if err := s.writeBatch(ctx, q, b); err != nil {
		return err
	}
	l.row.LostRecords += b.lost
	if err := l.save(ctx, q); err != nil {
		return err
	}
	l.branch, err = q.Branch(ctx, l.row.ActiveBranch)
	return err
}
