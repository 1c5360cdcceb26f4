package server

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history/postgres"
)

const (
	// schemaEvery is how often a server checks whether the schema has become older.
	schemaEvery = 5 * time.Second
	// noSchema is reported until the schema has been migrated at the start.
	noSchema = "the schema of the history database has not been migrated yet"
	// olderSchema is reported by /readyz while the schema is older.
	olderSchema = "the schema of the history database is older than this server, as after a restore of an older backup, and is being migrated; some requests cannot be answered until then"
)

// schemaKeeper keeps the schema of the history database up to date.
type schemaKeeper struct {
	migration *postgres.Migration
	store     *postgres.Store
	ready     *readiness
	log       logr.Logger
	// older is set while /readyz reports an older schema, and perhaps why the last try to
	// migrate it failed.
	older bool
}

// keepSchema migrates the schema, however long the database takes to become available,
// and again whenever an older backup is restored. The server stays ready then: most
// requests can be answered.
func keepSchema(ctx context.Context, dsn string, store *postgres.Store, ready *readiness, log logr.Logger) {
	s := &schemaKeeper{migration: &postgres.Migration{DSN: dsn}, store: store, ready: ready, log: log}
	done := retry(ctx, log, "the schema of the history database could not be migrated; retrying", func() error {
		err := s.migration.Try(ctx)
		if err != nil {
			ready.wait(0, noSchema+": "+err.Error())
		}
		return err
	})
	if !done {
		return
	}
	ready.done(0)
	ticks := time.NewTicker(schemaEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			s.renew(ctx)
		}
	}
}

// renew migrates a schema that has become older. Failures are retried at the next check.
func (s *schemaKeeper) renew(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, schemaEvery)
	defer cancel()
	older, err := s.store.SchemaIsOlder(timed)
	if err != nil { // the database is unreachable, or being restored
		s.warn(false, "the schema of the history database cannot be read: "+err.Error())
		s.log.V(1).Info("the version of the history database's schema could not be read", "error", err.Error())
		return
	}
	if !older {
		s.warn(false, "")
		return
	}
	if !s.older { // otherwise the warning may say why the last try failed
		s.warn(true, olderSchema)
	}
	s.log.Info("the schema of the history database is older than this server, as after a restore of an older backup; migrating it")
	if err := s.migration.Try(ctx); err != nil {
		s.warn(true, olderSchema+"; the last try failed: "+err.Error())
		s.log.Info("the schema of the history database could not be migrated; retrying", "error", err.Error(), "after", schemaEvery.String())
		return
	}
	s.warn(false, "")
}

// warn sets what /readyz reports, and whether that is an older schema.
func (s *schemaKeeper) warn(older bool, problem string) {
	s.older = older
	s.ready.warn(problem)
}
