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
	// firstLockTimeout is how long the first try of a migration waits for a lock on a
	// table. All who use the table wait behind it meanwhile, while somebody's dump or open
	// transaction may hold it for hours: so a try gives up soon. It is longer than
	// Postgres's deadlock_timeout, after which an autovacuum makes way.
	firstLockTimeout = 2 * time.Second
	// maxLockTimeout is how long a try waits at most. Each waits for twice as long as the
	// one before: where there is always somebody at work, only who waits for longer than
	// each of their transactions takes gets the lock.
	maxLockTimeout = 30 * time.Second
	// lockRest is how many times as long others then have the tables to themselves.
	lockRest = 4
)

// Migrate brings the schema of the database up to date, in one try of a Migration.
func Migrate(ctx context.Context, dsn string) error {
	return (&Migration{DSN: dsn}).Try(ctx)
}

// Migration brings the schema of a database up to date, try by try. It is for one caller
// at a time; there may be any number of them.
type Migration struct {
	DSN string
	// LockTimeout is how long the next try waits for a lock on a table; 2 s if zero.
	LockTimeout time.Duration

	// failure is of the last try, if that got no lock, and there is no other before next.
	failure error
	next    time.Time
}

// Try brings the schema up to date. Any number of callers may do so at once: an advisory
// lock lets one work and the others wait. A schema newer than this program's is left
// alone, and so is one that is being restored. Errors that say history.ErrUnavailable
// pass: try again. Soon after a try that got no lock, Try returns the same error at once.
func (m *Migration) Try(ctx context.Context) error {
	if m.failure != nil && time.Now().Before(m.next) {
		return m.failure
	}
	wait := cmp.Or(m.LockTimeout, firstLockTimeout)
	err := migrate(ctx, m.DSN, wait)
	m.failure, m.LockTimeout = nil, firstLockTimeout
	if lockedOut(err) {
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
	// Without the lock, since it is not taken where there is nothing to do.
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

// wholeLocker takes the lock of migrations, unless the database is being restored. Who
// asked before may have waited for the lock until a restore has begun.
type wholeLocker struct{ lock.SessionLocker }

// SessionLock implements lock.SessionLocker.
func (l wholeLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := l.SessionLocker.SessionLock(ctx, conn); err != nil {
		return err
	}
	if err := notBeingRestored(ctx, conn); err != nil {
		// Where no answer comes, the lock ends with the connection.
		unlocking, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		return errors.Join(err, l.SessionUnlock(unlocking, conn))
	}
	return nil
}

// querier is a database or a connection to it.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// errRestoring says that the database is not whole yet.
var errRestoring = fmt.Errorf("%w: it is being restored, and is not whole yet: its schema is brought up to date when all tables have their keys", history.ErrUnavailable)

// notBeingRestored returns errRestoring if only a part of the schema is there, as of a
// dump that is being restored: a migration would work on that part, and have the rest
// fail. An empty database is to be migrated.
func notBeingRestored(ctx context.Context, db querier) error {
	newest, err := newestMigration()
	if err != nil {
		return err
	}
	// Another migration makes its table of versions before all others.
	var tables, versions, restoring bool
	err = db.QueryRowContext(ctx, `SELECT coalesce(to_regclass('branches'), to_regclass('tasks')) IS NOT NULL,
		to_regclass('goose_db_version') IS NOT NULL, `+restoreRuns).Scan(&tables, &versions, &restoring)
	if err != nil {
		return wrap(err, "look for the schema of the history database")
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

// schemaQuery tells the version of the schema, and whether it is whole. A dump's data
// come before its keys, those between tables come last, by name, and that of active
// branches is the last of them, in each version. pg_restore may make keys in another
// order, several at a time.
const schemaQuery = `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), 0),
		EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass('goose_db_version') AND contype = 'p')
		AND EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass('tasks') AND conname = 'tasks_active_branch')
		AND NOT ` + restoreRuns + `
	FROM goose_db_version`

// tablesQuery tells by a number which tables those of the history are, once they are
// whole: that of the key that a dump has last. Without one it is 0.
const tablesQuery = `SELECT coalesce(max(oid::bigint), 0) FROM pg_constraint
	WHERE conrelid = to_regclass('tasks') AND conname = 'tasks_active_branch' AND NOT ` + restoreRuns

// restoreRuns tells whether somebody restores a dump with pg_restore. Of the sessions of
// other users, only who may read pg_stat_activity (pg_read_all_stats) sees the names: the
// keys have to be enough.
const restoreRuns = `EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg_restore')`

// SchemaIsOlder says that the schema is whole and of before this program, as after a
// restore of an older backup: Migrate is needed again. While a backup is being restored,
// the error says so, and is history.ErrUnavailable as for a database that is away.
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

// newestMigration is the version of the schema that this program works with.
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
