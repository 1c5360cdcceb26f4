package postgres_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3/lock"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// One database cluster is enough for all of them.
var _ = Describe("A dump that is restored", Ordered, ContinueOnFailure, func() {
	var server *pgtest.Server
	BeforeAll(func() { server = ownServer(GinkgoTB()) })

	for name, test := range cases.Sorted(map[string]func(t testing.TB, server *pgtest.Server){
		"takes the place of what there is":                           dumpTakesThePlace,
		"takes the place of nothing if it is cut off":                cutOffTakesNothing,
		"is noticed by who listens, although the restore takes long": longRestoreIsNoticed,
		"stops no migration, whatever a clean restore leaves behind": cleanRestoreLeaves,
		"is not migrated before its last key if it is a plain one":   plainDumpIsNotMigrated,
		"is let alone if it is restored while a migration waits":     restoreWhileMigrationWaits,
		"does not have a migration make all wait for who reads":      migrationGivesWay,
	}) {
		It(name, func() { test(GinkgoTB(), server) })
	}
})

// dumpTakesThePlace restores a dump as the chart's README says, while servers write and
// migrate.
func dumpTakesThePlace(t testing.TB, server *pgtest.Server) {
	want := schemaOf(t, server, server.Database(t))
	for _, version := range someVersions(t) {
		By(fmt.Sprint("schema ", version), func() {
			live := server.Database(t)
			folder := t.TempDir()
			Expect(asWritten(t, server, folder, dumping(t), databaseOfSchema(t, server, version))).To(ContainSubstring("dump complete"))
			stop := runServer(t, live)
			Expect(asWritten(t, server, folder, restoring(t), live)).To(HaveSuffix("\nrestored\n"))
			store := openAt(t, live)
			Eventually(func() (bool, error) { return store.SchemaIsOlder(t.Context()) }).WithTimeout(time.Minute).Should(BeFalse())
			stop()
			Expect(filepath.Glob(filepath.Join(folder, "pod", "tmp*"))).To(BeEmpty(), "nothing is left in the pod")
			Expect(schemaOf(t, server, live)).To(Equal(want))
			state, err := store.TaskState(t.Context(), "uid-of-a")
			Expect(err).NotTo(HaveOccurred())
			Expect(state.LastSequence).To(Equal(int64(7)))
			Expect(asWritten(t, server, folder, dumping(t), live)).To(ContainSubstring("dump complete"), "what was there before is not in it")
			_, err = connect(t, live).Exec(t.Context(), "DROP SCHEMA replaced CASCADE")
			Expect(err).NotTo(HaveOccurred())
			Expect(asWritten(t, server, folder, restoring(t), live)).To(HaveSuffix("\nrestored\n"))
		})
	}
}

// cutOffTakesNothing: a dump that was cut off when it was made, or on its way to
// Postgres, replaces nothing. Nor does a restore that gets no lock.
func cutOffTakesNothing(t testing.TB, server *pgtest.Server) {
	live, folder := server.Database(t), t.TempDir()
	_, err := openAt(t, live).Begin(t.Context(), taskNamed("a"), 1, nil, history.BeginOptions{})
	Expect(err).NotTo(HaveOccurred())
	_, err = asWritten(t, server, folder, dumping(t), "dbname=missing")
	Expect(err).To(HaveOccurred())
	dump := run(t, server, "", "pg_dump", live)
	middle := strings.Index(dump, "CREATE TABLE public.tasks ")
	for _, cut := range []string{"", dump[:middle], dump[:strings.Index(dump, "-- PostgreSQL database dump complete")]} {
		Expect(os.WriteFile(filepath.Join(folder, "clew.sql.gz"), gzipped(t, cut), 0o600)).To(Succeed())
		said, err := asWritten(t, server, folder, restoring(t), live)
		Expect(err).To(HaveOccurred())
		Expect(said).NotTo(ContainSubstring("restored"))
	}
	Expect(os.WriteFile(filepath.Join(folder, "clew.sql.gz"), gzipped(t, dump), 0o600)).To(Succeed())
	reader, err := connect(t, live).Begin(t.Context())
	Expect(err).NotTo(HaveOccurred())
	_, err = reader.Exec(t.Context(), "SELECT FROM tasks")
	Expect(err).NotTo(HaveOccurred())
	_, err = asWritten(t, server, folder, strings.Replace(restoring(t), "'10s'", "'50ms'", 1), live)
	Expect(err).To(MatchError(ContainSubstring("lock timeout")), "nobody waits long behind it")
	// Cut off on its way, at its beginning and close to its end.
	whole := gzipped(t, dump)
	for _, sent := range []int{1000, len(whole)} {
		cut := strings.NewReplacer("'10s'", "'1h'", "cat >&3", fmt.Sprintf("head -c %d >&3", sent)).Replace(restoring(t))
		_, err := asWritten(t, server, folder, cut, live)
		Expect(err).To(MatchError(ContainSubstring("cut off on its way")), "it does not even ask for the lock, for which it would wait for an hour")
	}
	Expect(reader.Rollback(t.Context())).To(Succeed())
	Expect(count(t, live, "tasks")).To(Equal(1))
	Expect(count(t, live, "pg_namespace WHERE nspname = 'replaced'")).To(BeZero())
}

// cleanRestoreLeaves: pg_restore --clean removes only what the dump contains.
func cleanRestoreLeaves(t testing.TB, server *pgtest.Server) {
	dump, live := filepath.Join(t.TempDir(), "dump"), server.Database(t)
	_, err := connect(t, live).Exec(t.Context(), "INSERT INTO recorded_transitions VALUES ('uid-of-a', 29)")
	Expect(err).NotTo(HaveOccurred())
	run(t, server, "", "pg_dump", "--format=custom", "--file", dump, databaseOfSchema(t, server, 15))
	// It cannot drop each partition's keys separately, reports that and continues.
	said, _ := exec.CommandContext(t.Context(), server.Program("pg_restore"), "--clean", "--if-exists", "--dbname", live, dump).CombinedOutput()
	// Its session may outlive it for a moment, and looks like a restore in progress.
	store := openAt(t, live)
	Eventually(func() (bool, error) { return store.SchemaIsOlder(t.Context()) }).WithTimeout(time.Minute).Should(BeTrue(), "%s", said)
	Expect(postgres.Migrate(t.Context(), live)).To(Succeed())
	Expect(count(t, live, "recorded_transitions")).To(BeZero(), "the older copy may lack those transitions")
}

// plainDumpIsNotMigrated: psql does not announce that it restores a dump.
func plainDumpIsNotMigrated(t testing.TB, server *pgtest.Server) {
	for _, version := range someVersions(t) {
		dump, dsn := dumpOfSchema(t, server, version), emptyDatabase(t, server.Database(t))
		store := openAt(t, dsn)
		key := strings.Index(dump, "ADD CONSTRAINT goose_db_version_pkey")
		first := strings.LastIndex(dump[:strings.Index(dump, "CREATE TABLE public.tasks ")], ";\n") + 1
		next := key + strings.Index(dump[key:], ";") + 1
		last := strings.LastIndex(dump[:strings.Index(dump, "ADD CONSTRAINT tasks_active_branch")], ";\n") + 1
		for at, part := range []string{dump[:first], dump[first:next], dump[next:last]} {
			restore(t, server, dsn, part)
			Expect(postgres.Migrate(t.Context(), dsn)).To(MatchError(ContainSubstring("being restored")), "part %d of schema %d", at, version)
			_, err := store.SchemaIsOlder(t.Context())
			Expect(err).To(MatchError(history.ErrUnavailable))
		}
		restore(t, server, dsn, dump[last:])
		Expect(postgres.Migrate(t.Context(), dsn)).To(Succeed())
		Expect(store.SchemaIsOlder(t.Context())).To(BeFalse())
	}
}

// restoreWhileMigrationWaits: a migration waits for another one that has the lock.
func restoreWhileMigrationWaits(t testing.TB, server *pgtest.Server) {
	dsn := databaseOfSchema(t, server, 17)
	conn := connect(t, dsn)
	do := func(statement string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		Expect(err).NotTo(HaveOccurred())
	}
	do(fmt.Sprintf("SELECT pg_advisory_lock(%d)", lock.DefaultLockID))
	migrated := make(chan error, 1)
	go func() { migrated <- postgres.Migrate(t.Context(), dsn) }()
	eventuallySessions(t, dsn, "query LIKE 'SELECT pg_try_advisory_lock%'", 1)
	do("ALTER TABLE goose_db_version DROP CONSTRAINT goose_db_version_pkey")
	do("SELECT pg_advisory_unlock_all()")
	Expect(<-migrated).To(MatchError(ContainSubstring("being restored")))
	do("ALTER TABLE goose_db_version ADD PRIMARY KEY (id)")
	Expect(postgres.Migrate(t.Context(), dsn)).To(Succeed(), "the lock is free again")
}

// migrationGivesWay: a migration waits briefly for a table's lock, with everybody else
// queued behind it. Then it lets them work, and waits longer each time, until it outlasts
// each of many overlapping transactions.
func migrationGivesWay(t testing.TB, server *pgtest.Server) {
	dsn := databaseOfSchema(t, server, 15)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	first, err := connect(t, dsn).Begin(ctx)
	Expect(err).NotTo(HaveOccurred())
	_, err = first.Exec(ctx, "SELECT FROM tasks")
	Expect(err).NotTo(HaveOccurred())
	migration := &postgres.Migration{DSN: dsn, LockTimeout: 20 * time.Millisecond}
	failure := migration.Try(ctx)
	Expect(failure).To(And(MatchError(history.ErrUnavailable), MatchError(ContainSubstring("lock timeout"))))
	Expect(migration.LockTimeout).To(Equal(40 * time.Millisecond))
	for i := range 4 {
		conn := connect(t, dsn)
		readers.Go(func() {
			defer GinkgoRecover()
			for ctx.Err() == nil {
				_, _ = conn.Exec(ctx, "SELECT pg_sleep($1) FROM tasks", 0.2+0.05*float64(i))
			}
		})
	}
	eventuallySessions(t, dsn, "wait_event = 'PgSleep'", 4)
	Expect(first.Rollback(ctx)).To(Succeed())
	Eventually(func() error { return migration.Try(ctx) }).WithTimeout(time.Minute).Should(Succeed())
	Expect(migration.LockTimeout).To(Equal(2 * time.Second))
}

// eventuallySessions waits until the given number of the database's sessions is in a
// state.
func eventuallySessions(t testing.TB, dsn, state string, want int) {
	t.Helper()
	conn := connect(t, dsn)
	Eventually(func() (found int, err error) {
		err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND `+state).Scan(&found)
		return found, err
	}).WithTimeout(time.Minute).Should(Equal(want))
}

// versions returns the versions of all migrations.
func versions(t testing.TB) (all []int64) {
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

// someVersions returns the oldest, the newest and one in between.
func someVersions(t testing.TB) []int64 {
	t.Helper()
	all := versions(t)
	return []int64{all[0], all[len(all)/2], all[len(all)-1]}
}

// dumping and restoring are the commands given in the chart's README.
func dumping(t testing.TB) string   { return typed(t)[1] }
func restoring(t testing.TB) string { return typed(t)[2] }

// typed returns the first commands under "Make a dump of Postgres": the shared settings,
// and these.
func typed(t testing.TB) (blocks []string) {
	t.Helper()
	readme, err := os.ReadFile("../../../charts/clew/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "### Make a dump of Postgres")
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, "    ") {
			blocks = append(blocks, paragraph)
		}
	}
	if len(blocks) < 3 {
		t.Fatalf("the chart's README does not say how to restore: %q", blocks)
	}
	return blocks[:3]
}

// asWritten runs commands of the chart's README, with a database and a folder of the test
// in place of the pod's, and returns their output.
func asWritten(t testing.TB, server *pgtest.Server, folder, commands, dsn string) (string, error) {
	t.Helper()
	pod := filepath.Join(folder, "pod")
	if err := os.MkdirAll(pod, 0o700); err != nil {
		t.Fatal(err)
	}
	kubectl := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(pod, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	const address = "--host /run/clew --username clew clew"
	if !strings.Contains(commands, address) {
		t.Fatalf("%s is not in %s", address, commands)
	}
	commands = strings.ReplaceAll(typed(t)[0]+"\n"+commands, address, `--dbname "$DATABASE"`)
	command := exec.CommandContext(t.Context(), "bash", "-c", commands)
	command.Dir = folder
	path := pod + ":" + filepath.Dir(server.Program("psql")) + ":" + os.Getenv("PATH")
	command.Env = append(os.Environ(), "PATH="+path, "DATABASE="+dsn, "TMPDIR="+pod)
	out, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

func gzipped(t testing.TB, text string) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// databaseOfSchema is a database with a task, as a program of that version left it.
func databaseOfSchema(t testing.TB, server *pgtest.Server, version int64) (dsn string) {
	t.Helper()
	dsn = emptyDatabase(t, server.Database(t))
	migrateTo(t, dsn, min(version, 2))
	fillOld(t, dsn)
	migrateTo(t, dsn, version)
	return dsn
}

func dumpOfSchema(t testing.TB, server *pgtest.Server, version int64) string {
	t.Helper()
	return unrestricted(run(t, server, "", "pg_dump", databaseOfSchema(t, server, version)))
}

// schemaOf returns the schema of a database, without the description of the schema public
// itself, and without months: there are tables of those that have events.
func schemaOf(t testing.TB, server *pgtest.Server, dsn string) string {
	t.Helper()
	_, tables, _ := strings.Cut(run(t, server, "", "pg_dump", "--schema-only", "--schema=public", "--exclude-table=public.events_2*", dsn), "CREATE TABLE")
	tables, _, _ = strings.Cut(tables, "-- PostgreSQL database dump complete")
	tables, _, _ = strings.Cut(tables, "-- Name: SCHEMA public; Type: ACL")
	return tables
}

// unrestricted removes from a dump the token that differs each time and appears in pairs.
func unrestricted(dump string) string {
	var kept []string
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func restore(t testing.TB, server *pgtest.Server, dsn, dump string) {
	t.Helper()
	run(t, server, dump, "psql", "--no-psqlrc", "--single-transaction", "--set", "ON_ERROR_STOP=1", dsn)
}

func run(t testing.TB, server *pgtest.Server, input, program string, args ...string) string {
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

// runServer writes, and migrates a schema that has become older, until it is stopped.
// Errors are expected while tables are being replaced.
func runServer(t testing.TB, dsn string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	store := openAt(t, dsn)
	var work sync.WaitGroup
	often := func(do func(i int)) {
		work.Go(func() {
			defer GinkgoRecover()
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
			_ = postgres.Migrate(ctx, dsn) // retried
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}
