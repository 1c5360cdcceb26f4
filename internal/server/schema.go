package server

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history/postgres"
)

const (
	// schemaEvery is how often a server looks whether the schema has become older.
	schemaEvery = 5 * time.Second
	// olderSchema says what /readyz does while it is.
	olderSchema = "the schema of the history database is older than this server, as after a restore of an older backup, and is being brought up to date; some requests cannot be answered until then"
)

// keepSchema brings the schema up to date, however long the database takes to be there,
// and again whenever an older backup was restored. The server stays ready then: most of
// what it is asked for can be answered.
func keepSchema(ctx context.Context, dsn string, store *postgres.Store, ready *readiness, log logr.Logger) {
	done := retry(ctx, log, "The schema of the history database could not be brought up to date; trying again.", func() error {
		return postgres.Migrate(ctx, dsn)
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
			renewSchema(ctx, dsn, store, ready, log)
		}
	}
}

// renewSchema brings a schema up to date that has become older. What fails is tried again
// at the next look.
func renewSchema(ctx context.Context, dsn string, store *postgres.Store, ready *readiness, log logr.Logger) {
	looking, cancel := context.WithTimeout(ctx, schemaEvery)
	defer cancel()
	older, err := store.SchemaIsOlder(looking)
	if err != nil { // the database is away, or being restored
		log.V(1).Info("The version of the history database's schema could not be read.", "error", err.Error())
		return
	}
	if !older {
		ready.note("")
		return
	}
	ready.note(olderSchema)
	log.Info("The schema of the history database is older than this server, as after a restore of an older backup; it is brought up to date.")
	if err := postgres.Migrate(ctx, dsn); err != nil {
		log.Info("The schema of the history database could not be brought up to date; trying again.", "error", err.Error(), "after", schemaEvery.String())
		return
	}
	ready.note("")
}
