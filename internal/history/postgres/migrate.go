package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the schema of the database up to date. Any number of callers
// may do so at once: an advisory lock lets one work and the others wait. A
// schema newer than this program's is left alone.
func Migrate(ctx context.Context, dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("the DSN of the history database is malformed: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	db := stdlib.OpenDB(*config)
	defer db.Close()

	if err := db.PingContext(ctx); err != nil {
		return wrap(err, "connect to migrate the history database")
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

// SchemaIsOlder says that the schema is whole and of before this program, as after a
// restore of an older backup: Migrate is needed again. While the backup is still being
// restored, it is not: a dump's data come before its keys, and a migration in between
// would work on a part of them.
func (s *Store) SchemaIsOlder(ctx context.Context) (bool, error) {
	newest, err := newestMigration()
	if err != nil {
		return false, err
	}
	var older bool
	err = s.pool.QueryRow(ctx, `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), 0) BETWEEN 1 AND $1::bigint - 1
			AND EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'goose_db_version'::regclass AND contype = 'p')
			AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg_restore')
		FROM goose_db_version`, newest).Scan(&older)
	return older, wrap(err, "read the version of the schema of the history database")
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
