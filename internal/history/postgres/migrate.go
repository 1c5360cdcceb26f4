package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/clew-dev/clew/internal/history"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// firstLockTimeout is how long the first try of a migration waits for a table lock.
	// All users of the table queue up behind it meanwhile, while a dump or an open
	// transaction may hold the lock for hours, so a try gives up soon. It is longer than
	// Postgres's deadlock_timeout, after which an autovacuum yields.
	firstLockTimeout = 2 * time.Second
	// maxLockTimeout bounds the wait of a later try. Each waits twice as long as the
	// previous one: on a busy table, only a wait that is longer than every transaction
	// gets the lock.
	maxLockTimeout = 30 * time.Second
	// lockRest is the pause after a try, as a multiple of its wait, in which others can
	// use the tables.
	lockRest = 4
)

// Migrate makes one attempt to migrate the schema of the database; see Migration.Try.
func Migrate(ctx context.Context, dsn string) error {
	return (&Migration{DSN: dsn}).Try(ctx)
}

// Migration migrates the schema of a database over several tries. It is not safe for
// concurrent use, but any number of Migrations may run at once.
type Migration struct {
	DSN string
	// LockTimeout is how long the next try waits for a table lock; 2 s if zero.
	LockTimeout time.Duration

	// failure is the error of the last try if it got no lock; no other try is made before
	// next.
	failure error
	next    time.Time
}

// Try migrates the schema to this program's version. Any number of callers may do so at
// once: an advisory lock makes them take turns. It leaves a schema alone that is newer
// than this program or is being restored. A history.ErrUnavailable is temporary: try
// again. Soon after a try that got no lock, Try returns the same error at once.
func (m *Migration) Try(ctx context.Context) error {
	if m.failure != nil && time.Now().Before(m.next) {
		return m.failure
	}
	wait := cmp.Or(m.LockTimeout, firstLockTimeout)
	err := migrate(ctx, m.DSN, wait)
	m.failure, m.LockTimeout = nil, firstLockTimeout
	if lockTimedOut(err) {
		m.failure, m.LockTimeout = err, min(2*wait, maxLockTimeout)
		m.next = time.Now().Add(lockRest * wait)
	}
	return err
}

func migrate(ctx context.Context, dsn string, lockTimeout time.Duration) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("the DSN of the history database is malformed: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["lock_timeout"] = milliseconds(lockTimeout)
	db := stdlib.OpenDB(*config)
	defer db.Close()

	if err := db.PingContext(ctx); err != nil {
		return wrap(err, "connect to migrate the history database")
	}
	// Checked without the lock, since goose does not take it if there is nothing to do.
	if err := notBeingRestored(ctx, db); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("prepare the migration of the history database: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("prepare the migration of the history database: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(wholeLocker{locker}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("prepare the migration of the history database: %w", err)
	}
	_, err = provider.Up(ctx)
	if errors.Is(err, errRestoring) {
		return errRestoring
	}
	return wrap(err, "migrate the history database")
}

// wholeLocker takes the migration lock unless the database is being restored. A caller
// may have waited for the lock until after a restore began.
type wholeLocker struct{ lock.SessionLocker }

// SessionLock implements lock.SessionLocker.
func (l wholeLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := l.SessionLocker.SessionLock(ctx, conn); err != nil {
		return err
	}
	if err := notBeingRestored(ctx, conn); err != nil {
		// If no answer comes, the lock is released with the connection.
		unlocking, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		return errors.Join(err, l.SessionUnlock(unlocking, conn))
	}
	return nil
}

// querier is a database or a connection to one.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// errRestoring says that the database is incomplete because a restore is in progress.
var errRestoring = fmt.Errorf("%w: it is being restored and is not complete yet: its schema is migrated once all tables have their keys", history.ErrUnavailable)

// notBeingRestored returns errRestoring if only part of the schema exists, as while a
// dump is being restored: a migration would change that part and make the rest fail. An
// empty database may be migrated.
func notBeingRestored(ctx context.Context, db querier) error {
	newest, err := newestMigration()
	if err != nil {
		return err
	}
	// A concurrent migration creates its version table before all others.
	var tables, versions, restoring bool
	err = db.QueryRowContext(ctx, `SELECT coalesce(to_regclass('branches'), to_regclass('tasks')) IS NOT NULL,
		to_regclass('goose_db_version') IS NOT NULL, `+restoreRuns).Scan(&tables, &versions, &restoring)
	if err != nil {
		return wrap(err, "inspect the schema of the history database")
	}
	if !versions && (tables || restoring) {
		return errRestoring
	}
	if !versions {
		return nil
	}
	var version int64
	var whole bool
	if err := db.QueryRowContext(ctx, schemaQuery).Scan(&version, &whole); err != nil {
		return wrap(err, "read the version of the schema of the history database")
	}
	begun := version == 0 && !tables && !restoring
	if !whole && !begun && version <= newest {
		return errRestoring
	}
	return nil
}

// schemaQuery returns the version of the schema and whether it is complete. A dump has
// data before keys, foreign keys last and sorted by name, and the one of active branches
// is the last of them in every version. pg_restore may create keys in another order,
// several at a time.
const schemaQuery = `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), 0),
		EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass('goose_db_version') AND contype = 'p')
		AND EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass('tasks') AND conname = 'tasks_active_branch')
		AND NOT ` + restoreRuns + `
	FROM goose_db_version`

// tablesQuery returns a number that identifies the history's set of tables once it is
// complete: the OID of the key that a dump has last. It is 0 if there is none.
const tablesQuery = `SELECT coalesce(max(oid::bigint), 0) FROM pg_constraint
	WHERE conrelid = to_regclass('tasks') AND conname = 'tasks_active_branch' AND NOT ` + restoreRuns

// restoreRuns reports whether pg_restore is running. It sees the application names of
// other users' sessions only with the right to read pg_stat_activity (pg_read_all_stats);
// otherwise the keys have to suffice.
const restoreRuns = `EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg_restore')`

// SchemaIsOlder reports whether the schema is complete and older than this program, as
// after a restore of an older backup: Migrate is needed again. While a backup is being
// restored, it returns an error that says so and matches history.ErrUnavailable, as for
// an unreachable database.
func (s *Store) SchemaIsOlder(ctx context.Context) (bool, error) {
	newest, err := newestMigration()
	if err != nil {
		return false, err
	}
	var version int64
	var whole bool
	if err := s.pool.QueryRow(ctx, schemaQuery).Scan(&version, &whole); err != nil {
		return false, wrap(err, "read the version of the schema of the history database")
	}
	if !whole {
		return false, errRestoring
	}
	return version < newest, nil
}

// newestMigration returns the schema version that this program works with.
func newestMigration() (newest int64, err error) {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return 0, fmt.Errorf("list the migrations: %w", err)
	}
	for _, file := range files {
		number, _, _ := strings.Cut(file.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the migration %s has no number: %w", file.Name(), err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}
