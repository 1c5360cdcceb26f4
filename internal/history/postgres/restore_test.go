package postgres_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// What the chart's README tells to put before and after a dump. Without the end, as of a
// dump that is cut off, nothing changes.
const (
	replaceAll = "BEGIN; LOCK TABLE tasks; ALTER SCHEMA public RENAME TO replaced; CREATE SCHEMA public;\n"
	endReplace = "COMMIT;\n"
)

// TestADumpOfAnySchemaTakesThePlaceOfWhatThereIs: as the chart's README says, while
// servers write and migrate.
func TestADumpOfAnySchemaTakesThePlaceOfWhatThereIs(t *testing.T) {
	server := ownServer(t)
	want := schemaOf(t, server, server.Database(t))
	for _, version := range versions(t) {
		t.Run(fmt.Sprint("schema ", version), func(t *testing.T) {
			g := gomega.NewWithT(t)
			dump := dumpOfSchema(t, server, version)
			live := server.Database(t)
			stop := runServer(t, live)
			run(t, server, replaceAll+dump+endReplace, "psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", live)
			store := openAt(t, live)
			g.Eventually(func() (bool, error) { return store.SchemaIsOlder(t.Context()) }).WithTimeout(time.Minute).Should(gomega.BeFalse())
			stop()
			g.Expect(schemaOf(t, server, live)).To(gomega.Equal(want))
			state, err := store.TaskState(t.Context(), "uid-of-a")
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(state.LastSequence).To(gomega.Equal(int64(7)))
			_, err = connect(t, live).Exec(t.Context(), "DROP SCHEMA replaced CASCADE")
			g.Expect(err).NotTo(gomega.HaveOccurred())
		})
	}
}

// TestADumpThatIsCutOffTakesThePlaceOfNothing.
func TestADumpThatIsCutOffTakesThePlaceOfNothing(t *testing.T) {
	g, server := gomega.NewWithT(t), ownServer(t)
	dump, live := dumpOfSchema(t, server, 18), server.Database(t)
	run(t, server, replaceAll+dump, "psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", live)
	g.Expect(openAt(t, live).TaskState(t.Context(), "uid-of-a")).Error().To(gomega.MatchError(history.ErrNotFound))
}

// TestWhatACleanRestoreLeavesBehindDoesNotStopMigrations: pg_restore --clean removes only
// what is in the dump.
func TestWhatACleanRestoreLeavesBehindDoesNotStopMigrations(t *testing.T) {
	g, server := gomega.NewWithT(t), ownServer(t)
	dump, live := filepath.Join(t.TempDir(), "dump"), server.Database(t)
	_, err := connect(t, live).Exec(t.Context(), "INSERT INTO recorded_transitions VALUES ('uid-of-a', 29)")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	run(t, server, "", "pg_dump", "--format=custom", "--file", dump, databaseOfSchema(t, server, 15))
	// It cannot drop each partition's keys by themselves, says so and goes on.
	_ = exec.CommandContext(t.Context(), server.Program("pg_restore"), "--clean", "--if-exists", "--dbname", live, dump).Run()
	g.Expect(openAt(t, live).SchemaIsOlder(t.Context())).To(gomega.BeTrue())
	g.Expect(postgres.Migrate(t.Context(), live)).To(gomega.Succeed())
	g.Expect(count(t, live, "recorded_transitions")).To(gomega.BeZero(), "the older copy may lack those transitions")
}

// TestAPlainDumpIsNotMigratedBeforeItsLastKey: psql does not say that it restores one.
func TestAPlainDumpIsNotMigratedBeforeItsLastKey(t *testing.T) {
	g, server := gomega.NewWithT(t), ownServer(t)
	all := versions(t)
	for _, version := range all[:len(all)-1] {
		dump, dsn := dumpOfSchema(t, server, version), emptyDatabase(t, server.Database(t))
		store := openAt(t, dsn)
		key := strings.Index(dump, "ADD CONSTRAINT goose_db_version_pkey")
		first := strings.LastIndex(dump[:strings.Index(dump, "CREATE TABLE public.tasks ")], ";\n") + 1
		next := key + strings.Index(dump[key:], ";") + 1
		last := strings.LastIndex(dump[:strings.Index(dump, "ADD CONSTRAINT tasks_active_branch")], ";\n") + 1
		for at, part := range []string{dump[:first], dump[first:next], dump[next:last]} {
			restore(t, server, dsn, part)
			g.Expect(postgres.Migrate(t.Context(), dsn)).To(gomega.MatchError(gomega.ContainSubstring("being restored")), "part %d of schema %d", at, version)
			_, err := store.SchemaIsOlder(t.Context())
			g.Expect(err).To(gomega.MatchError(history.ErrUnavailable))
		}
		restore(t, server, dsn, dump[last:])
		g.Expect(postgres.Migrate(t.Context(), dsn)).To(gomega.Succeed())
		g.Expect(store.SchemaIsOlder(t.Context())).To(gomega.BeFalse())
	}
}

// TestAMigrationDoesNotHaveAllWaitForWhoReads: it waits for a table's lock for a moment,
// and all others behind it.
func TestAMigrationDoesNotHaveAllWaitForWhoReads(t *testing.T) {
	g, server := gomega.NewWithT(t), ownServer(t)
	dsn := databaseOfSchema(t, server, 15)
	reader, err := connect(t, dsn).Begin(t.Context())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = reader.Exec(t.Context(), "SELECT FROM tasks")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = postgres.Migrate(ctx, dsn)
	g.Expect(err).To(gomega.And(gomega.MatchError(history.ErrUnavailable), gomega.MatchError(gomega.ContainSubstring("lock timeout"))))
	g.Expect(reader.Rollback(t.Context())).To(gomega.Succeed())
	g.Expect(postgres.Migrate(t.Context(), dsn)).To(gomega.Succeed())
}

// versions are those of all migrations.
func versions(t *testing.T) (all []int64) {
	t.Helper()
	files, err := os.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		number, _, _ := strings.Cut(file.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, version)
	}
	return all
}

// databaseOfSchema is one with a task, as a program of that time left it.
func databaseOfSchema(t *testing.T, server *pgtest.Server, version int64) (dsn string) {
	t.Helper()
	dsn = emptyDatabase(t, server.Database(t))
	migrateTo(t, dsn, min(version, 2))
	fillOld(t, dsn)
	migrateTo(t, dsn, version)
	return dsn
}

func dumpOfSchema(t *testing.T, server *pgtest.Server, version int64) string {
	t.Helper()
	return unrestricted(run(t, server, "", "pg_dump", databaseOfSchema(t, server, version)))
}

// schemaOf is what a database has, but for what is told of the schema public itself, and
// for months: there are those that there are events of.
func schemaOf(t *testing.T, server *pgtest.Server, dsn string) string {
	t.Helper()
	_, tables, _ := strings.Cut(run(t, server, "", "pg_dump", "--schema-only", "--schema=public", "--exclude-table=public.events_2*", dsn), "CREATE TABLE")
	tables, _, _ = strings.Cut(tables, "-- PostgreSQL database dump complete")
	tables, _, _ = strings.Cut(tables, "-- Name: SCHEMA public; Type: ACL")
	return tables
}

// unrestricted leaves out of a dump what differs each time, and pairs up over all of it.
func unrestricted(dump string) string {
	var kept []string
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func restore(t *testing.T, server *pgtest.Server, dsn, dump string) {
	t.Helper()
	run(t, server, dump, "psql", "--no-psqlrc", "--single-transaction", "--set", "ON_ERROR_STOP=1", dsn)
}

func run(t *testing.T, server *pgtest.Server, input, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), server.Program(program), args...)
	command.Stdin = strings.NewReader(input)
	var failure strings.Builder
	command.Stderr = &failure
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, failure.String())
	}
	return string(out)
}

// runServer writes, and migrates what has become older, until it is stopped. What is
// being replaced refuses much.
func runServer(t *testing.T, dsn string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	store := openAt(t, dsn)
	var work sync.WaitGroup
	often := func(do func(i int)) {
		work.Go(func() {
			ticks := time.NewTicker(10 * time.Millisecond)
			defer ticks.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				do(i)
				select {
				case <-ticks.C:
				case <-ctx.Done():
				}
			}
		})
	}
	often(func(i int) {
		_, _ = store.Begin(ctx, taskNamed(fmt.Sprint("at work ", i)), 1, nil, history.BeginOptions{})
	})
	often(func(int) {
		if older, err := store.SchemaIsOlder(ctx); err == nil && older {
			_ = postgres.Migrate(ctx, dsn) // it is tried again
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}
