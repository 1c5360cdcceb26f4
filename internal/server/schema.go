package server

import (
	"context"
	"strings"
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

// keepSchema migrates the schema, however long the database takes to become available,
// and again whenever an older backup is restored. The server stays ready then: most
// requests can be answered.
func keepSchema(ctx context.Context, dsn string, store *postgres.Store, ready *readiness, log logr.Logger) {
	migration := &postgres.Migration{DSN: dsn}
	done := retry(ctx, log, "the schema of the history database could not be migrated; trying again", func() error {
		err := migration.Try(ctx)
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
			renewSchema(ctx, migration, store, ready, log)
		}
	}
}

// renewSchema migrates a schema that has become older. Failures are retried at the next
// check.
func renewSchema(ctx context.Context, migration *postgres.Migration, store *postgres.Store, ready *readiness, log logr.Logger) {
	timed, cancel := context.WithTimeout(ctx, schemaEvery)
	defer cancel()
	older, err := store.SchemaIsOlder(timed)
	if err != nil { // the database is unreachable, or being restored
		ready.warn("the schema of the history database cannot be read: " + err.Error())
		log.V(1).Info("the version of the history database's schema could not be read", "error", err.Error())
		return
	}
	if !older {
		ready.warn("")
		return
	}
	if !strings.HasPrefix(ready.warning(), olderSchema) { // otherwise it says why the last try failed
		ready.warn(olderSchema)
	}
	log.Info("the schema of the history database is older than this server, as after a restore of an older backup; migrating it")
	if err := migration.Try(ctx); err != nil {
		ready.warn(olderSchema + "; the last try failed: " + err.Error())
		log.Info("the schema of the history database could not be migrated; trying again", "error", err.Error(), "after", schemaEvery.String())
		return
	}
	ready.warn("")
}
