package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// MaintenanceOptions configure RunMaintenance.
type MaintenanceOptions struct {
	// EventRetention is how long events are kept, rounded to months; forever if 0.
	EventRetention time.Duration
	// SnapshotRetention is how long automatic snapshots are kept; forever if 0. Snapshots
	// of checkpoints are always kept.
	SnapshotRetention time.Duration
	// MessageRetention is how long the history of a task is kept after its Task was first found
	// gone, and after its last write; forever if 0. A cluster that was lost takes all Tasks with
	// it, and their manifests have that long to be applied again.
	MessageRetention time.Duration
	// LiveTasks returns the UIDs of all Task objects. It is required only with MessageRetention.
	LiveTasks func(ctx context.Context) ([]string, error)
	// TaskExists reports whether a history's Task object still exists: one with the task's UID or that
	// of a former one whose history it has adopted, or one that says of itself that it continues one of
	// them. An older copy of the cluster or of this database knows nothing of an adoption. It returns as
	// well the newest task whose history the Task of that name says it continues; "" for none. It is
	// called right before a history is deleted, and is required only with MessageRetention.
	TaskExists func(ctx context.Context, task history.Task, formers []string) (exists bool, continues string, err error)
	// Awaited reports whether a Task waits that has the name of a gone one and may yet adopt its
	// history. It is required only with MessageRetention.
	Awaited func(ctx context.Context, task history.Task) (bool, error)
	// DeleteCode deletes the code of a task and of the former ones whose histories it has adopted. It
	// may be repeated. It is required only with MessageRetention; without it and TaskExists, deletions
	// that somebody else has begun are not finished.
	DeleteCode func(ctx context.Context, task history.Task, formers []string) error
	// HasUID reports whether a Task of any namespace has that UID. It is called right before the
	// kept spec of a task that never began is deleted; without it, such specs stay.
	HasUID func(ctx context.Context, uid string) (bool, error)
	// Alongside runs beside the maintenance in the one runner that works, until its context ends; nil
	// for nothing.
	Alongside func(ctx context.Context)
	// Every is the interval at which retention is applied; one hour if 0.
	Every time.Duration
	// ClaimTime is how long histories that have exceeded MessageRetention are looked for each time; 5
	// minutes if 0. The next time goes on after those.
	ClaimTime time.Duration
	// Registerer receives the metrics; nil for none.
	Registerer prometheus.Registerer
}

const (
	// maintenanceLock is the key of the advisory lock that one runner holds.
	maintenanceLock = 0x636c6577_6d61696e
	// idleWait is how long a runner waits for work, or to take over.
	idleWait = 10 * time.Second
	// gatherFor is how long a runner lets writes accumulate before it processes them.
	gatherFor = 200 * time.Millisecond
	// orphanRetention is how long pieces are kept whose message never arrived: longer
	// than a daemon can be cut off and still return.
	orphanRetention = 30 * 24 * time.Hour
	// goneBatch is how many tasks are noted as gone, or as back, in one transaction.
	goneBatch = 1000
	// claimTime is the default of ClaimTime: nothing else is done meanwhile, not for any namespace.
	claimTime = 5 * time.Minute
	// specPatience is how long the kept spec of a task that has not begun stays, at least.
	specPatience = time.Hour
)

// RunMaintenance does the work that follows writes until ctx ends, and returns ctx's
// error: it indexes new messages for Search as soon as it is notified of them, refreshes
// the sums in lists, creates the tables of coming months, and removes what has exceeded
// its retention. Any number of servers may call it: one works at a time, and another
// takes over if that one is lost.
func (s *Store) RunMaintenance(ctx context.Context, options MaintenanceOptions) error {
	if options.MessageRetention > 0 && (options.LiveTasks == nil || options.TaskExists == nil || options.Awaited == nil || options.DeleteCode == nil) {
		return fmt.Errorf("%w: MessageRetention requires LiveTasks, TaskExists, Awaited and DeleteCode", history.ErrInvalid)
	}
	if options.Every <= 0 {
		options.Every = time.Hour
	}
	m := &maintainer{store: s, options: options, metrics: newMaintenanceMetrics(options.Registerer)}
	defer m.metrics.unregister(options.Registerer)
	for {
		if err := m.lead(ctx); err != nil && ctx.Err() == nil {
			s.log.Info("the maintenance of the history database was interrupted; it is resumed", "error", err.Error(), "after", idleWait.String())
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
	// cleaned is when retention was last applied, refreshed when the lists were last
	// refreshed.
	cleaned, refreshed time.Time
	// looked is the id of the last history that was looked at for its retention; 0 if that was the last
	// of all.
	looked int32
}

// lead works while it holds the advisory lock; it returns at once if another runner does.
// The lock ends with the connection.
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
	timed, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	var mine bool
	if err := conn.QueryRow(timed, "SELECT pg_try_advisory_lock($1)", int64(maintenanceLock)).Scan(&mine); err != nil || !mine {
		return err
	}
	if err := subscribe(ctx, conn, Channel); err != nil {
		return err
	}
	m.metrics.leader.Set(1)
	defer m.metrics.leader.Set(0)
	if m.options.Alongside != nil {
		leading, end := context.WithCancel(ctx)
		var aside sync.WaitGroup
		defer aside.Wait()
		defer end()
		aside.Go(func() { m.options.Alongside(leading) })
	}
	for {
		if err := m.work(ctx); err != nil {
			return err
		}
		if err := m.wait(ctx, conn); err != nil {
			return err
		}
	}
}

// wait returns shortly after something was written, so that more can be done at once, or
// after a while without writes if the connection is alive.
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
	// What was notified meanwhile is covered by the work that follows.
	if err := conn.Ping(checking); err != nil {
		return err
	}
	return drain(ctx, conn)
}

// drain discards the notifications that have already arrived.
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

// work does everything that is due.
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
	m.metrics.cleaned.SetToCurrentTime()
	return nil
}

// observe sets the metrics of the search index's backlog.
func (m *maintainer) observe(ctx context.Context) error {
	lag, err := m.store.read().IndexLag(ctx)
	if err != nil {
		return wrap(err, "count the messages that wait to be indexed")
	}
	m.metrics.waiting.Set(float64(lag.Waiting))
	m.metrics.failed.Set(float64(lag.Failed))
	m.metrics.lag.Set(lag.Seconds)
	return nil
}

// Clean creates the tables of coming months and removes what has exceeded its retention,
// once; RunMaintenance does so regularly.
func (s *Store) Clean(ctx context.Context, options MaintenanceOptions) error {
	m := &maintainer{store: s, options: options, metrics: newMaintenanceMetrics(nil)}
	return m.clean(ctx, time.Now())
}

func (m *maintainer) clean(ctx context.Context, now time.Time) error {
	if err := m.store.makePartitions(ctx, now); err != nil {
		return err
	}
	if m.options.EventRetention > 0 {
		before := now.Add(-m.options.EventRetention)
		removed, err := m.store.dropPartitions(ctx, before)
		m.metrics.swept.WithLabelValues("events").Add(float64(removed))
		if err != nil {
			return err
		}
		if err := m.inBatches(ctx, "forget how much the events took that were removed", func(q *sqlc.Queries) (int64, error) {
			return q.ForgetUsage(ctx, sqlc.ForgetUsageParams{Before: before.AddDate(0, -1, 0), UpToRows: sweepBatch})
		}); err != nil {
			return err
		}
	}
	if m.options.SnapshotRetention > 0 {
		if err := m.expireSnapshots(ctx, now.Add(-m.options.SnapshotRetention)); err != nil {
			return err
		}
	}
	if m.options.MessageRetention > 0 {
		if err := m.claimGoneTasks(ctx); err != nil {
			return err
		}
	}
	if err := m.finishDeletions(ctx); err != nil {
		return err
	}
	if err := m.deleteIdleSpecs(ctx, now.Add(-specPatience)); err != nil {
		return err
	}
	if err := m.inBatches(ctx, "give up orphaned pieces of texts", func(q *sqlc.Queries) (int64, error) {
		return q.GiveUpPieces(ctx, sqlc.GiveUpPiecesParams{Before: now.Add(-orphanRetention), UpToRows: sweepBatch})
	}); err != nil {
		return err
	}
	if err := m.inBatches(ctx, "forget tasks that waited for a source", func(q *sqlc.Queries) (int64, error) {
		return q.ForgetAwaitedSources(ctx, sqlc.ForgetAwaitedSourcesParams{Before: now.Add(-awaitedRetention), UpToRows: sweepBatch})
	}); err != nil {
		return err
	}
	if _, err := m.store.read().ForgetBudgets(ctx); err != nil {
		return wrap(err, "forget budgets of what is gone")
	}
	// A manager of a former release, in an upgrade or brought back, keeps them in the specs alone.
	if _, err := m.store.read().JoinContracts(ctx); err != nil {
		return wrap(err, "note to which contracts tasks belong")
	}
	return m.sweep(ctx)
}

// sweep removes the leftovers of deletions.
func (m *maintainer) sweep(ctx context.Context) error {
	removed, err := m.store.sweep(ctx)
	m.metrics.swept.WithLabelValues("messages").Add(float64(removed.messages))
	m.metrics.swept.WithLabelValues("pieces").Add(float64(removed.pieces))
	return err
}

func (m *maintainer) expireSnapshots(ctx context.Context, before time.Time) error {
	return m.inBatches(ctx, "forget old snapshots", func(q *sqlc.Queries) (int64, error) {
		n, err := q.ForgetSnapshots(ctx, sqlc.ForgetSnapshotsParams{Before: before, UpToRows: sweepBatch})
		m.metrics.swept.WithLabelValues("snapshots").Add(float64(n))
		return n, err
	})
}

// inBatches repeats f, each time in its own transaction, until it does nothing.
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
