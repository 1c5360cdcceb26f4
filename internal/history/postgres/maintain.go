package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// MaintenanceOptions say what RunMaintenance keeps.
type MaintenanceOptions struct {
	// EventRetention is how long events are kept, to the month; for ever if 0.
	EventRetention time.Duration
	// SnapshotRetention is how long automatic snapshots are kept; for ever if 0.
	// Those at checkpoints stay.
	SnapshotRetention time.Duration
	// MessageRetention is how long the history of a task is kept that is
	// written to no more and whose Task is gone; for ever if 0.
	MessageRetention time.Duration
	// TaskExists tells whether the Task object of a history is still there. It
	// is asked right before a history is deleted, and is needed for
	// MessageRetention alone.
	TaskExists func(ctx context.Context, task history.Task) (bool, error)
	// Every is how often retention is looked after; once an hour if 0.
	Every time.Duration
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

const (
	// maintenanceLock is the key of the advisory lock that one runner holds.
	maintenanceLock = 0x636c6577_6d61696e
	// idleWait is how long a runner waits for something to do, or to take over.
	idleWait = 10 * time.Second
	// gatherFor is how long a runner lets writes gather before it looks at them.
	gatherFor = 200 * time.Millisecond
	// orphanRetention is how long pieces of texts are kept whose message never
	// came: longer than a daemon can be cut off and still come back.
	orphanRetention = 30 * 24 * time.Hour
)

// RunMaintenance does what goes on behind the writes until ctx ends, whose
// error it then returns: it indexes new messages for Search as soon as they
// are notified, brings lists up to date, makes the tables of months to come,
// and removes what is older than it is kept. Any number of servers may call
// it: one works at a time, and another takes over when that one is lost.
func (s *Store) RunMaintenance(ctx context.Context, options MaintenanceOptions) error {
	if options.MessageRetention > 0 && options.TaskExists == nil {
		return fmt.Errorf("%w: to delete the history of tasks that are gone, RunMaintenance must be told how to find out", history.ErrInvalid)
	}
	if options.Every <= 0 {
		options.Every = time.Hour
	}
	m := &maintainer{store: s, options: options, metrics: newMaintenanceMetrics(options.Registerer)}
	defer m.metrics.unregister(options.Registerer)
	for {
		if err := m.lead(ctx); err != nil && ctx.Err() == nil {
			s.log.Info("the maintenance of the history database was interrupted; it is taken up again", "error", err.Error(), "after", idleWait.String())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleWait):
		}
	}
}

// maintainer is one caller of RunMaintenance.
type maintainer struct {
	store   *Store
	options MaintenanceOptions
	metrics *maintenanceMetrics
	// cleaned is when retention was looked after last, refreshed when the lists
	// were brought up to date.
	cleaned, refreshed time.Time
}

// lead works as long as it holds the lock; it returns at once if another does.
// The lock goes with the connection.
func (m *maintainer) lead(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, m.store.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	asking, cancel := context.WithTimeout(ctx, listenAnswer)
	defer cancel()
	var mine bool
	if err := conn.QueryRow(asking, "SELECT pg_try_advisory_lock($1)", int64(maintenanceLock)).Scan(&mine); err != nil || !mine {
		return err
	}
	if err := subscribe(ctx, conn); err != nil {
		return err
	}
	m.metrics.leader.Set(1)
	defer m.metrics.leader.Set(0)
	for {
		if err := m.work(ctx); err != nil {
			return err
		}
		if err := m.wait(ctx, conn); err != nil {
			return err
		}
	}
}

// wait returns when something was written, some moments later so that more can
// be done at once, or when nothing was for a while and the connection lives.
func (m *maintainer) wait(ctx context.Context, conn *pgx.Conn) error {
	waiting, cancel := context.WithTimeout(ctx, idleWait)
	defer cancel()
	_, err := conn.WaitForNotification(waiting)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || conn.IsClosed()) {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(gatherFor):
	}
	checking, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	// What was notified meanwhile is done with by what follows.
	if err := conn.Ping(checking); err != nil {
		return err
	}
	return drain(ctx, conn)
}

// drain takes the notifications that have come already.
func drain(ctx context.Context, conn *pgx.Conn) error {
	for {
		now, cancel := context.WithTimeout(ctx, time.Millisecond)
		_, err := conn.WaitForNotification(now)
		cancel()
		if err != nil {
			if ctx.Err() != nil || conn.IsClosed() {
				return err
			}
			return nil
		}
	}
}

// work does all there is to do.
func (m *maintainer) work(ctx context.Context) error {
	indexed, err := m.store.Index(ctx)
	m.metrics.indexed.Add(float64(indexed))
	if err != nil {
		return err
	}
	if err := m.observe(ctx); err != nil {
		return err
	}
	if err := m.sweep(ctx); err != nil {
		return err
	}
	if time.Since(m.refreshed) >= idleWait {
		if err := m.store.refreshSummaries(ctx, ""); err != nil {
			return err
		}
		m.refreshed = time.Now()
	}
	if time.Since(m.cleaned) < m.options.Every {
		return nil
	}
	if err := m.clean(ctx, time.Now()); err != nil {
		return err
	}
	m.cleaned = time.Now()
	return nil
}

// observe sets the metrics that tell how far the index is behind.
func (m *maintainer) observe(ctx context.Context) error {
	lag, err := m.store.read().IndexLag(ctx)
	if err != nil {
		return wrap(err, "look how many messages wait to be indexed")
	}
	m.metrics.waiting.Set(float64(lag.Waiting))
	m.metrics.failed.Set(float64(lag.Failed))
	m.metrics.lag.Set(lag.Seconds)
	return nil
}

// Clean makes the tables of months to come and removes what is older than it
// is kept, once, as RunMaintenance does every now and then.
func (s *Store) Clean(ctx context.Context, options MaintenanceOptions) error {
	m := &maintainer{store: s, options: options, metrics: newMaintenanceMetrics(nil)}
	return m.clean(ctx, time.Now())
}

func (m *maintainer) clean(ctx context.Context, now time.Time) error {
	if err := m.store.makePartitions(ctx, now); err != nil {
		return err
	}
	if m.options.EventRetention > 0 {
		removed, err := m.store.dropPartitions(ctx, now.Add(-m.options.EventRetention))
		m.metrics.swept.WithLabelValues("events").Add(float64(removed))
		if err != nil {
			return err
		}
	}
	if m.options.SnapshotRetention > 0 {
		if err := m.forgetSnapshots(ctx, now.Add(-m.options.SnapshotRetention)); err != nil {
			return err
		}
	}
	if m.options.MessageRetention > 0 {
		if err := m.deleteGoneTasks(ctx, now.Add(-m.options.MessageRetention)); err != nil {
			return err
		}
	}
	if err := m.inBatches(ctx, "give up pieces of texts", func(q *sqlc.Queries) (int64, error) {
		return q.GiveUpPieces(ctx, sqlc.GiveUpPiecesParams{Before: now.Add(-orphanRetention), UpToRows: sweepBatch})
	}); err != nil {
		return err
	}
	if err := m.inBatches(ctx, "forget who waited for a source", func(q *sqlc.Queries) (int64, error) {
		return q.ForgetAwaitedSources(ctx, sqlc.ForgetAwaitedSourcesParams{Before: now.Add(-awaitedRetention), UpToRows: sweepBatch})
	}); err != nil {
		return err
	}
	return m.sweep(ctx)
}

// sweep removes what a deletion has left behind.
func (m *maintainer) sweep(ctx context.Context) error {
	removed, err := m.store.sweep(ctx)
	m.metrics.swept.WithLabelValues("messages").Add(float64(removed.messages))
	m.metrics.swept.WithLabelValues("pieces").Add(float64(removed.pieces))
	return err
}

func (m *maintainer) forgetSnapshots(ctx context.Context, before time.Time) error {
	return m.inBatches(ctx, "forget old snapshots", func(q *sqlc.Queries) (int64, error) {
		n, err := q.ForgetSnapshots(ctx, sqlc.ForgetSnapshotsParams{Before: before, UpToRows: sweepBatch})
		m.metrics.swept.WithLabelValues("snapshots").Add(float64(n))
		return n, err
	})
}

// inBatches repeats f, in a transaction each, until there is no more to do.
func (m *maintainer) inBatches(ctx context.Context, doing string, f func(*sqlc.Queries) (int64, error)) error {
	for {
		var n int64
		err := m.store.write(ctx, doing, func(q *sqlc.Queries) error {
			var err error
			n, err = f(q)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
	}
}

// deleteGoneTasks deletes the histories that were last written to before the
// time and whose Task is gone.
func (m *maintainer) deleteGoneTasks(ctx context.Context, before time.Time) error {
	page := sqlc.IdleTasksParams{Before: before, UpToRows: sweepBatch}
	for {
		idle, err := m.store.read().IdleTasks(ctx, page)
		if err != nil || len(idle) == 0 {
			return wrap(err, "look for histories that are older than they are kept")
		}
		for _, row := range idle {
			page.AfterTime, page.AfterUid = row.UpdatedAt, row.Uid
			task := history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}
			exists, err := m.options.TaskExists(ctx, task)
			if err != nil {
				return fmt.Errorf("look whether the task %s/%s is still there: %w", task.Namespace, task.Name, err)
			}
			if exists {
				continue
			}
			deleted, err := m.store.DeleteTask(ctx, task.UID)
			if err != nil && !errors.Is(err, history.ErrNotFound) {
				return err
			}
			m.metrics.swept.WithLabelValues("messages").Add(float64(deleted.Messages))
			m.metrics.swept.WithLabelValues("pieces").Add(float64(deleted.Pieces))
			m.store.log.Info("deleted the history of a task that is gone, since it is older than histories are kept",
				"namespace", task.Namespace, "task", task.Name, "uid", task.UID, "messages", deleted.Messages)
		}
	}
}
