package server

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history/postgres"
)

const (
	// schemaEvery is how often a server looks whether the schema has become older.
	schemaEvery = 5 * time.Second
	// noSchema is what a server waits for at its start.
	noSchema = "the schema of the history database was not brought up to date yet"
	// olderSchema says what /readyz does while it is.
	olderSchema = "the schema of the history database is older than this server, as after a restore of an older backup, and is being brought up to date; some requests cannot be answered until then"
)

// keepSchema brings the schema up to date, however long the database takes to be there,
// and again whenever an older backup was restored. The server stays ready then: most of
// what it is asked for can be answered.
func keepSchema(ctx context.Context, dsn string, store *postgres.Store, ready *readiness, log logr.Logger) {
	migration := &postgres.Migration{DSN: dsn}
	done := retry(ctx, log, "the schema of the history database could not be brought up to date; trying again", func() error {
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

// renewSchema brings a schema up to date that has become older. What fails is tried again
// at the next look.
func renewSchema(ctx context.Context, migration *postgres.Migration, store *postgres.Store, ready *readiness, log logr.Logger) {
	looking, cancel := context.WithTimeout(ctx, schemaEvery)
	defer cancel()
	older, err := store.SchemaIsOlder(looking)
	if err != nil { // the database is away, or being restored
		ready.note("the schema of the history database cannot be read: " + err.Error())
		log.V(1).Info("the version of the history database's schema could not be read", "error", err.Error())
		return
	}
	if !older {
		ready.note("")
		return
	}
	if !strings.HasPrefix(ready.noted(), olderSchema) { // else it says why the last try failed
		ready.note(olderSchema)
	}
	log.Info("the schema of the history database is older than this server, as after a restore of an older backup; it is brought up to date")
	if err := migration.Try(ctx); err != nil {
		ready.note(olderSchema + "; the last try failed: " + err.Error())
		log.Info("the schema of the history database could not be brought up to date; trying again", "error", err.Error(), "after", schemaEvery.String())
		return
	}
	ready.note("")
}
