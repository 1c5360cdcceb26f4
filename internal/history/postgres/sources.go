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

// If the store was restored to a copy older than a task and the checkpoint it was forked
// from, the task cannot begin until the store has the checkpoint again. The source's
// daemon sends it, unless it is itself waiting for a source. So the waiting task's clock
// alone cannot decide that a checkpoint is lost: each waiting task records itself here,
// and while its source shows signs of life, the task keeps waiting.
const (
	// sourcePatience is how long a task waits for a silent source. A source that was
	// heard from within this time is not silent: every active daemon asks every 5 minutes
	// whether the store has gone back.
	sourcePatience = 6 * time.Minute
	// sourceSilence is how long a waiting task may itself be silent: longer than the
	// longest restart delay of a container. It tries four times a minute, unless it or
	// the store is down.
	sourceSilence = 10 * time.Minute
	// sourcePause is how much of a silence counts as waiting: the source may have been
	// cut off, too.
	sourcePause = time.Minute
	// longestWait bounds the wait for a source that is heard from but does not send the
	// checkpoint.
	longestWait = 30 * time.Minute
	// awaitedRetention is how long waiting tasks are remembered.
	awaitedRetention = 24 * time.Hour
)

// sourceMissingError is the history.ErrNotFound for a source's checkpoint.
type sourceMissingError struct {
	task   history.Task
	source history.Source
}

// Error implements error.
func (e *sourceMissingError) Error() string {
	return fmt.Sprintf("%v: checkpoint %d of the task with UID %s, from which %s/%s is to start",
		history.ErrNotFound, e.source.Checkpoint, clip.Marked(clean(e.source.TaskUID), maxToolName), e.task.Namespace, e.task.Name)
}

// Is reports whether target is history.ErrNotFound.
func (e *sourceMissingError) Is(target error) bool { return target == history.ErrNotFound }

// sourceMissing reports whether an error is about a source's missing checkpoint.
func sourceMissing(err error) bool {
	var missing *sourceMissingError
	return errors.As(err, &missing)
}

// awaitSource records that a task could not begin without its source.
func (s *Store) awaitSource(ctx context.Context, task history.Task) {
	err := s.read().AwaitSource(ctx, sqlc.AwaitSourceParams{TaskUid: task.UID, Namespace: task.Namespace, Silence: sourceSilence.Seconds(), Pause: sourcePause.Seconds()})
	if err != nil { // the task retries soon
		s.log.V(1).Info("could not record that a task waits for its source", "namespace", task.Namespace, "task", task.Name, "error", err.Error())
	}
}

// sourceIsLost reports whether a task has waited long enough to give up a source's
// checkpoint.
func sourceIsLost(ctx context.Context, q *sqlc.Queries, task history.Task, source history.Source) (bool, error) {
	return q.SourceIsLost(ctx, sqlc.SourceIsLostParams{
		TaskUid: task.UID, Namespace: task.Namespace, SourceUid: source.TaskUID,
		Silence: sourceSilence.Seconds(), Pause: sourcePause.Seconds(), Patience: sourcePatience.Seconds(), Longest: longestWait.Seconds(),
	})
}

// firstBranch creates the branch on which a new task's conversation begins. lost reports
// that the inherited conversation is missing.
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

// inherited returns the point at which a task's conversation continues its source's,
// unless that is lost.
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

// sourcePoint finds a checkpoint of another task of the same namespace.
func sourcePoint(ctx context.Context, q *sqlc.Queries, task history.Task, source history.Source) (point, error) {
	missing := &sourceMissingError{task, source}
	adopted, err := q.Adopted(ctx, sqlc.AdoptedParams{FormerUid: source.TaskUID, Namespace: task.Namespace})
	if err == nil {
		source.TaskUID = adopted
	} else if !errors.Is(err, pgx.ErrNoRows) {
		return point{}, err
	}
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

// recordSourceLost records that a conversation begins without what it inherited.
func (s *Store) recordSourceLost(ctx context.Context, q *sqlc.Queries, l *locked, source history.Source) error {
	b, err := newBatch(*l)
	if err != nil {
		return err
	}
	// Not tied to one of the task's records, and before the first one.
	b.recordGap(history.Record{Time: time.Now(), Attempt: l.row.Attempt}, max(source.Position, 1), sourceLostText(source))
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
