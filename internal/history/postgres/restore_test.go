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
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// One database cluster is enough for all of them.
var _ = Describe("A dump of the history", Ordered, ContinueOnFailure, Label("slow"), func() {
	var server *pgtest.Server
	BeforeAll(func() { server = ownServer(GinkgoTB()) })

	When("it is restored as the chart's README says, while servers write and migrate", func() {
		It("takes the place of what is there, whatever its schema", func(ctx SpecContext) {
			t := GinkgoTB()
			want := schemaOf(t, server, server.Database(t))
			for _, version := range someVersions() {
				By(fmt.Sprint("restoring schema ", version), func() {
					live, folder := server.Database(t), t.TempDir()
					Expect(asWritten(t, server, folder, dumping(), databaseOfSchema(t, server, version))).To(ContainSubstring("dump complete"))
					stop := runServer(t, live)
					Expect(asWritten(t, server, folder, restoring(), live)).To(HaveSuffix("\nrestored\n"))
					store := openAt(t, live)
					Eventually(func() (bool, error) { return store.SchemaIsOlder(ctx) }).WithTimeout(time.Minute).Should(BeFalse())
					stop()
					Expect(filepath.Glob(filepath.Join(folder, "pod", "tmp*"))).To(BeEmpty(), "nothing is left in the pod")
					Expect(schemaOf(t, server, live)).To(Equal(want))
					Expect(store.TaskState(ctx, "uid-of-a")).To(HaveField("LastSequence", int64(7)))
					Expect(asWritten(t, server, folder, dumping(), live)).To(ContainSubstring("dump complete"), "what was there before is not in it")
					Expect(connect(t, live).Exec(ctx, "DROP SCHEMA replaced CASCADE")).Error().NotTo(HaveOccurred())
					Expect(asWritten(t, server, folder, restoring(), live)).To(HaveSuffix("\nrestored\n"), "it may be restored again")
				})
			}
		})

		It("is noticed by listeners, although the restore takes long", func() { longRestoreIsNoticed(GinkgoTB(), server) })
	})

	When("making or restoring it fails", func() {
		var live, folder, dump string
		BeforeEach(func() {
			t := GinkgoTB()
			live, folder = server.Database(t), t.TempDir()
			begin(t, openAt(t, live), taskNamed("a"), 1)
			dump = run(t, server, "", "pg_dump", live)
		})
		AfterEach(func() {
			Expect(count(GinkgoTB(), live, "tasks")).To(Equal(1), "what was there is still there")
			Expect(count(GinkgoTB(), live, "pg_namespace WHERE nspname = 'replaced'")).To(BeZero())
		})

		It("reports that it could not be made", func() {
			_, err := asWritten(GinkgoTB(), server, folder, dumping(), "dbname=missing")
			Expect(err).To(HaveOccurred())
		})

		It("takes the place of nothing if it was cut off when it was made", func() {
			middle, end := strings.Index(dump, "CREATE TABLE public.tasks "), strings.Index(dump, "-- PostgreSQL database dump complete")
			for _, cut := range []string{"", dump[:middle], dump[:end]} {
				Expect(os.WriteFile(filepath.Join(folder, "clew.sql.gz"), gzipped(cut), 0o600)).To(Succeed())
				said, err := asWritten(GinkgoTB(), server, folder, restoring(), live)
				Expect(err).To(HaveOccurred(), "%d bytes of %d", len(cut), len(dump))
				Expect(said).NotTo(ContainSubstring("restored"))
			}
		})

		It("takes the place of nothing, and waits for no lock, if it is cut off on its way to Postgres", func(ctx SpecContext) {
			whole := gzipped(dump)
			Expect(os.WriteFile(filepath.Join(folder, "clew.sql.gz"), whole, 0o600)).To(Succeed())
			reader := reading(ctx, GinkgoTB(), live)
			// At its beginning and close to its end.
			for _, sent := range []int{1000, len(whole)} {
				cut := strings.NewReplacer("'10s'", "'1h'", "cat >&3", fmt.Sprintf("head -c %d >&3", sent)).Replace(restoring())
				_, err := asWritten(GinkgoTB(), server, folder, cut, live)
				Expect(err).To(MatchError(ContainSubstring("cut off on its way")), "it does not even ask for the lock, for which it would wait for an hour")
			}
			Expect(reader.Rollback(ctx)).To(Succeed())
		})

		It("takes the place of nothing if it is whole, but gets no lock", func(ctx SpecContext) {
			Expect(os.WriteFile(filepath.Join(folder, "clew.sql.gz"), gzipped(dump), 0o600)).To(Succeed())
			reader := reading(ctx, GinkgoTB(), live)
			_, err := asWritten(GinkgoTB(), server, folder, strings.Replace(restoring(), "'10s'", "'50ms'", 1), live)
			Expect(err).To(MatchError(ContainSubstring("lock timeout")), "nobody waits long behind it")
			Expect(reader.Rollback(ctx)).To(Succeed())
		})
	})

	When("it is restored by pg_restore --clean, which removes only what it contains", func() {
		It("can be migrated in spite of what that leaves behind", func(ctx SpecContext) {
			t := GinkgoTB()
			dump, live := filepath.Join(t.TempDir(), "dump"), server.Database(t)
			Expect(connect(t, live).Exec(ctx, "INSERT INTO recorded_transitions VALUES ('uid-of-a', 29)")).Error().NotTo(HaveOccurred())
			begin(t, openAt(t, live), taskNamed("lead"), 1)
			Expect(openAt(t, live).CallTool(ctx, taskNamed("lead"), 1, history.NewToolCall{Tool: "task_stop", Arguments: []byte(`{}`)})).Error().NotTo(HaveOccurred())
			Expect(connect(t, live).Exec(ctx, "INSERT INTO call_effects (branch_id, position, checkpoint, tool, task_uid, task_name, phase) VALUES (1, 1, 0, '', '', '', '')")).Error().NotTo(HaveOccurred())
			run(t, server, "", "pg_dump", "--format=custom", "--file", dump, databaseOfSchema(t, server, 15))
			// It cannot drop each partition's keys separately, reports that and continues.
			said, _ := exec.CommandContext(ctx, server.Program("pg_restore"), "--clean", "--if-exists", "--dbname", live, dump).CombinedOutput()
			// Its session may outlive it for a moment, and looks like a restore in progress.
			store := openAt(t, live)
			Eventually(func() (bool, error) { return store.SchemaIsOlder(ctx) }).WithTimeout(time.Minute).Should(BeTrue(), "%s", said)
			Expect(postgres.Migrate(ctx, live)).To(Succeed())
			Expect(count(t, live, "recorded_transitions")).To(BeZero(), "the older copy may lack those transitions")
			Expect(count(t, live, "tool_calls")).To(BeZero(), "they may be those of other tasks by now")
			Expect(count(t, live, "call_effects")).To(BeZero(), "as may be what calls did")
		})
	})

	When("it is a plain one, whose restore psql does not announce", func() {
		It("is not migrated before its last key", func(ctx SpecContext) {
			t := GinkgoTB()
			for _, version := range someVersions() {
				dump, dsn := dumpOfSchema(t, server, version), emptyDatabase(t, server.Database(t))
				store := openAt(t, dsn)
				key := strings.Index(dump, "ADD CONSTRAINT goose_db_version_pkey")
				first := strings.LastIndex(dump[:strings.Index(dump, "CREATE TABLE public.tasks ")], ";\n") + 1
				next := key + strings.Index(dump[key:], ";") + 1
				last := strings.LastIndex(dump[:strings.Index(dump, "ADD CONSTRAINT tasks_active_branch")], ";\n") + 1
				for at, part := range []string{dump[:first], dump[first:next], dump[next:last]} {
					By(fmt.Sprintf("restoring part %d of schema %d", at, version), func() {
						restore(t, server, dsn, part)
						Expect(postgres.Migrate(ctx, dsn)).To(MatchError(ContainSubstring("being restored")))
						_, err := store.SchemaIsOlder(ctx)
						Expect(err).To(MatchError(history.ErrUnavailable))
					})
				}
				By(fmt.Sprint("restoring the rest of schema ", version), func() {
					restore(t, server, dsn, dump[last:])
					Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
					Expect(store.SchemaIsOlder(ctx)).To(BeFalse())
				})
			}
		})
	})

	When("it is restored while a migration waits for another one", func() {
		It("is left alone, and can be migrated afterwards", func(ctx SpecContext) {
			dsn := databaseOfSchema(GinkgoTB(), server, 17)
			conn := connect(GinkgoTB(), dsn)
			do := func(statement string) {
				GinkgoHelper()
				Expect(conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)).Error().NotTo(HaveOccurred())
			}
			do(fmt.Sprintf("SELECT pg_advisory_lock(%d)", lock.DefaultLockID))
			migrated := make(chan error, 1)
			go func() { migrated <- postgres.Migrate(ctx, dsn) }()
			eventuallySessions(GinkgoTB(), dsn, "query LIKE 'SELECT pg_try_advisory_lock%'", 1)
			do("ALTER TABLE goose_db_version DROP CONSTRAINT goose_db_version_pkey")
			do("SELECT pg_advisory_unlock_all()")
			Eventually(migrated).WithTimeout(time.Minute).Should(Receive(MatchError(ContainSubstring("being restored"))))
			do("ALTER TABLE goose_db_version ADD PRIMARY KEY (id)")
			Expect(postgres.Migrate(ctx, dsn)).To(Succeed(), "the lock is free again")
		})
	})

	When("it is migrated while its tables are read", func() {
		// The migration waits briefly for a table's lock, with everybody else queued behind
		// it. Then it lets them work, and waits longer each time, until it outlasts each of
		// many overlapping transactions.
		It("does not have all others wait behind the migration", func(spec SpecContext) {
			t := GinkgoTB()
			dsn := databaseOfSchema(t, server, 15)
			ctx, cancel := context.WithTimeout(spec, time.Minute)
			var readers sync.WaitGroup
			defer readers.Wait()
			defer cancel()
			first := reading(ctx, t, dsn)
			migration := &postgres.Migration{DSN: dsn, LockTimeout: 20 * time.Millisecond}
			Expect(migration.Try(ctx)).To(And(MatchError(history.ErrUnavailable), MatchError(ContainSubstring("lock timeout"))))
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
		})
	})
})

// reading begins a transaction that has read the tasks.
func reading(ctx context.Context, t testing.TB, dsn string) pgx.Tx {
	GinkgoHelper()
	tx, err := connect(t, dsn).Begin(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(tx.Exec(ctx, "SELECT FROM tasks")).Error().NotTo(HaveOccurred())
	return tx
}

// eventuallySessions waits until the given number of the database's sessions is in a
// state.
func eventuallySessions(t testing.TB, dsn, state string, want int) {
	GinkgoHelper()
	conn := connect(t, dsn)
	Eventually(func() (found int, err error) {
		err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND `+state).Scan(&found)
		return found, err
	}).WithTimeout(time.Minute).Should(Equal(want))
}

// versions returns the versions of all migrations.
func versions() (all []int64) {
	GinkgoHelper()
	files, err := os.ReadDir("migrations")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		number, _, _ := strings.Cut(file.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		Expect(err).NotTo(HaveOccurred())
		all = append(all, version)
	}
	return all
}

// someVersions returns the oldest, the newest and one in between.
func someVersions() []int64 {
	GinkgoHelper()
	all := versions()
	return []int64{all[0], all[len(all)/2], all[len(all)-1]}
}

// dumping and restoring are the commands given in the chart's README.
func dumping() string   { return typed()[1] }
func restoring() string { return typed()[2] }

// typed returns the first commands under "Make a dump of Postgres": the shared settings,
// and these.
func typed() (blocks []string) {
	GinkgoHelper()
	readme, err := os.ReadFile("../../../charts/clew/README.md")
	Expect(err).NotTo(HaveOccurred())
	_, text, _ := strings.Cut(string(readme), "### Make a dump of Postgres")
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, "    ") {
			blocks = append(blocks, paragraph)
		}
	}
	Expect(len(blocks)).To(BeNumerically(">=", 3), "the chart's README says how to restore: %q", blocks)
	return blocks[:3]
}

// asWritten runs commands of the chart's README, with a database and a folder of the test
// in place of the pod's, and returns their output.
func asWritten(t testing.TB, server *pgtest.Server, folder, commands, dsn string) (string, error) {
	GinkgoHelper()
	pod := filepath.Join(folder, "pod")
	Expect(os.MkdirAll(pod, 0o700)).To(Succeed())
	kubectl := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n"
	Expect(os.WriteFile(filepath.Join(pod, "kubectl"), []byte(kubectl), 0o700)).To(Succeed())
	const address = "--host /run/clew --username clew clew"
	Expect(commands).To(ContainSubstring(address))
	commands = strings.ReplaceAll(typed()[0]+"\n"+commands, address, `--dbname "$DATABASE"`)
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

func gzipped(text string) []byte {
	GinkgoHelper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	Expect(io.WriteString(w, text)).To(Equal(len(text)))
	Expect(w.Close()).To(Succeed())
	return packed.Bytes()
}

// databaseOfSchema is a database with a task, as a program of that version left it.
func databaseOfSchema(t testing.TB, server *pgtest.Server, version int64) (dsn string) {
	GinkgoHelper()
	dsn = emptyDatabase(t, server.Database(t))
	migrateTo(t, dsn, min(version, 2))
	fillOld(t, dsn)
	migrateTo(t, dsn, version)
	return dsn
}

func dumpOfSchema(t testing.TB, server *pgtest.Server, version int64) string {
	GinkgoHelper()
	return unrestricted(run(t, server, "", "pg_dump", databaseOfSchema(t, server, version)))
}

// schemaOf returns the schema of a database, without the description of the schema public
// itself, and without months: there are tables of those that have events.
func schemaOf(t testing.TB, server *pgtest.Server, dsn string) string {
	GinkgoHelper()
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
	GinkgoHelper()
	run(t, server, dump, "psql", "--no-psqlrc", "--single-transaction", "--set", "ON_ERROR_STOP=1", dsn)
}

func run(t testing.TB, server *pgtest.Server, input, program string, args ...string) string {
	GinkgoHelper()
	command := exec.CommandContext(t.Context(), server.Program(program), args...)
	command.Stdin = strings.NewReader(input)
	var failure strings.Builder
	command.Stderr = &failure
	out, err := command.Output()
	Expect(err).NotTo(HaveOccurred(), "%s: %s", program, &failure)
	return string(out)
}

// runServer writes, and migrates a schema that has become older, until it is stopped.
// Errors are expected while tables are being replaced.
func runServer(t testing.TB, dsn string) (stop func()) {
	GinkgoHelper()
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
