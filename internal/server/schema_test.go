package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onsi/gomega"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// TestAnOlderBackupIsMigratedByRunningServers runs two servers: each stays ready and
// reports the migration.
func TestAnOlderBackupIsMigratedByRunningServers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	g := gomega.NewWithT(t)
	database, err := pgtest.Start(t.Context(), postgres.Migrate)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { _ = database.Stop() })
	dsn := database.Database(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { conn.Close(context.Background()) })
	store, err := postgres.Open(t.Context(), dsn, testr.New(t))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(store.Close)

	ctx, end := context.WithCancel(t.Context())
	var servers sync.WaitGroup
	defer servers.Wait()
	defer end()
	both := []*readiness{newReadiness("schema"), newReadiness("schema")}
	for _, ready := range both {
		servers.Go(func() { keepSchema(ctx, dsn, store, ready, testr.New(t)) })
	}
	soon := func(check func(g gomega.Gomega)) {
		t.Helper()
		g.Eventually(check).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).Should(gomega.Succeed())
	}
	said := func(ready *readiness) string {
		answer := httptest.NewRecorder()
		ready.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		g.Expect(answer.Code).To(gomega.Equal(http.StatusOK))
		return answer.Body.String()
	}
	for _, ready := range both {
		soon(func(g gomega.Gomega) { g.Expect(ready.check()).To(gomega.Succeed()) })
	}
	// Blocking the migration lets the test see what is reported meanwhile.
	do := func(statement string) {
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	do(fmt.Sprintf("SELECT pg_advisory_lock(%d)", lock.DefaultLockID))
	migrateDownTo(t, dsn, 17)
	for _, ready := range both {
		soon(func(g gomega.Gomega) { g.Expect(said(ready)).To(gomega.ContainSubstring("older than this server")) })
	}
	do("SELECT pg_advisory_unlock_all()")
	for _, ready := range both {
		soon(func(g gomega.Gomega) { g.Expect(said(ready)).To(gomega.Equal("ok\n")) })
	}
	// Migration 18 made this table.
	fork := history.Task{Namespace: "team", Name: "fork", UID: "uid-of-fork"}
	_, err = store.Begin(t.Context(), fork, 1, &history.Source{TaskUID: "lost", Checkpoint: 1, IncludeConversation: true}, history.BeginOptions{})
	g.Expect(err).To(gomega.MatchError(history.ErrNotFound), "it waits for its source, and not for a table")
}

// migrateDownTo makes the schema that of an older version, as after a restore of an older
// backup. It takes no lock.
func migrateDownTo(t *testing.T, dsn string, version int64) {
	t.Helper()
	g := gomega.NewWithT(t)
	config, err := pgx.ParseConfig(dsn)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("../history/postgres/migrations"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = provider.DownTo(t.Context(), version)
	g.Expect(err).NotTo(gomega.HaveOccurred())
}

// TestMigrationFailuresAreReported checks /readyz at the start, and
// later.
func TestMigrationFailuresAreReported(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	g := gomega.NewWithT(t)
	database, err := pgtest.Start(t.Context(), postgres.Migrate)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { _ = database.Stop() })
	dsn := database.Database(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { conn.Close(context.Background()) })
	store, err := postgres.Open(t.Context(), dsn, testr.New(t))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(store.Close)
	do := func(statement string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	ctx, end := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer end()
	ready := newReadiness("schema")
	says := func(code int, text string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			answer := httptest.NewRecorder()
			ready.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			g.Expect(answer.Code).To(gomega.Equal(code))
			g.Expect(answer.Body.String()).To(gomega.ContainSubstring(text))
		}).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).Should(gomega.Succeed())
	}
	do("DELETE FROM goose_db_version WHERE version_id >= 17")
	serving.Go(func() { keepSchema(ctx, dsn, store, ready, testr.New(t)) })
	says(http.StatusInternalServerError, `"checkpoints_lost" already exists`)
	do("DROP INDEX checkpoints_lost")
	says(http.StatusOK, "ok\n")
	do("DELETE FROM goose_db_version WHERE version_id >= 17")
	says(http.StatusOK, `"checkpoints_lost" already exists`)
	do("ALTER TABLE goose_db_version RENAME TO elsewhere")
	says(http.StatusOK, "cannot be read")
	do("ALTER TABLE elsewhere RENAME TO goose_db_version; DROP INDEX checkpoints_lost")
	g.Eventually(ready.warning).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).Should(gomega.BeEmpty())
}
