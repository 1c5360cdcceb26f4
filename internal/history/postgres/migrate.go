package postgres

import (
	"context"
	"database/sql"
	"embed"
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

// migrationLockTimeout is how long a migration waits for a lock on a table. All who use
// the table wait behind it meanwhile, while somebody's dump or open transaction may hold
// it for hours: so a migration gives up soon, and is tried again. It is longer than
// Postgres's deadlock_timeout, after which an autovacuum makes way.
const migrationLockTimeout = 2 * time.Second

// Migrate brings the schema of the database up to date. Any number of callers
// may do so at once: an advisory lock lets one work and the others wait. A
// schema newer than this program's is left alone, and so is one that is being
// restored. Errors that say history.ErrUnavailable pass: try again.
func Migrate(ctx context.Context, dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("the DSN of the history database is malformed: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["lock_timeout"] = milliseconds(migrationLockTimeout)
	db := stdlib.OpenDB(*config)
	defer db.Close()

	if err := db.PingContext(ctx); err != nil {
		return wrap(err, "connect to migrate the history database")
	}
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
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("prepare the migration of the history database: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return wrap(err, "migrate the history database")
	}
	return nil
}

// errRestoring says that the database is not whole yet.
var errRestoring = fmt.Errorf("%w: it is being restored, and is not whole yet: its schema is brought up to date when all tables have their keys", history.ErrUnavailable)

// notBeingRestored returns errRestoring if only a part of the schema is there, as of a
// dump that is being restored: a migration would work on that part, and have the rest
// fail. An empty database is to be migrated.
func notBeingRestored(ctx context.Context, db *sql.DB) error {
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
	if !whole && !begun && version < newest {
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

// restoreRuns tells whether somebody restores a dump.
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
