package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr"
	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// connect serves benchmarks as well, as do the other helpers that take a Gomega of t.
func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func count(t testing.TB, dsn, table string) (n int) {
	GinkgoHelper()
	Expect(connect(t, dsn).QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n)).To(Succeed())
	return n
}

// ownServer starts a server that the test may stop.
func ownServer(t testing.TB) *pgtest.Server {
	GinkgoHelper()
	server, err := pgtest.Start(t.Context(), postgres.Migrate)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(server.Stop)
	return server
}

// eventually appends until the store is available again, as a daemon does.
func eventually(t testing.TB, store *postgres.Store, task history.Task, records []history.Record) {
	GinkgoHelper()
	Eventually(func() error {
		_, err := store.Append(t.Context(), task, 1, records)
		if err != nil && !errors.Is(err, history.ErrUnavailable) {
			return StopTrying("the error is not an outage").Wrap(err)
		}
		return err
	}).WithTimeout(30*time.Second).WithPolling(10*time.Millisecond).Should(Succeed(), "the store did not come back")
}

var _ = Describe("The store", func() {
	When("the server is stopped and started again", Label("slow"), func() {
		var server *pgtest.Server
		var store *postgres.Store
		BeforeEach(func() {
			t := GinkgoTB()
			server = ownServer(t)
			store = openAt(t, server.Database(t))
		})

		It("reports every call as unavailable meanwhile, and then goes on", func(ctx SpecContext) {
			w := begin(GinkgoTB(), store, taskNamed("a"), 1)
			w.append(user("1"))
			Expect(server.StopNow()).To(Succeed())
			calls := map[string]func() error{
				"append":   func() error { _, err := store.Append(ctx, w.task, 1, nil); return err },
				"begin":    func() error { _, err := store.Begin(ctx, w.task, 1, nil, history.BeginOptions{}); return err },
				"state":    func() error { _, err := store.TaskState(ctx, w.task.UID); return err },
				"timeline": func() error { _, err := store.Timeline(ctx, history.TimelineQuery{Limit: 1}); return err },
				"events":   func() error { return store.RecordEvents(ctx, []history.Event{event(w.task, 1, time.Now())}) },
				"schema":   func() error { _, err := store.SchemaIsOlder(ctx); return err },
				"alive":    func() error { return store.Alive(ctx) },
			}
			for name, call := range calls {
				Expect(call()).To(And(MatchError(history.ErrUnavailable), Not(MatchError(history.ErrSlow))), name)
			}
			Expect(server.Restart(ctx)).To(Succeed())
			eventually(GinkgoTB(), store, w.task, w.number(user("2")))
			Expect(w.texts()).To(HaveExactElements("U 1", "U 2"))
		})

		It("notifies listeners of each change, and of the interruption", func(ctx SpecContext) {
			listening, cancel := context.WithCancel(ctx)
			notified, ended := make(chan history.Notification, 100), make(chan error, 1)
			go func() { ended <- store.Listen(listening, func(n history.Notification) { notified <- n }) }()
			expect := func(want history.Notification) {
				GinkgoHelper()
				Eventually(notified).WithTimeout(20 * time.Second).Should(Receive(Equal(want)))
			}
			everything, ofTask := history.Notification{}, history.Notification{Task: taskNamed("a"), Attempt: 1}

			expect(everything)
			w := begin(GinkgoTB(), store, taskNamed("a"), 1)
			expect(ofTask)
			w.append(user("1"))
			expect(ofTask)

			Expect(server.StopNow()).To(Succeed())
			Expect(server.Restart(ctx)).To(Succeed())
			expect(everything)
			eventually(GinkgoTB(), store, w.task, w.number(user("2")))
			expect(ofTask)
			cancel()
			Eventually(ended).WithTimeout(20 * time.Second).Should(Receive(MatchError(context.Canceled)))
		})
	})

	When("the server's backends are killed while batches are sent", Label("slow"), func() {
		// PostgreSQL then breaks all connections and recovers.
		It("loses nothing and repeats nothing", func(ctx SpecContext) {
			t := GinkgoTB()
			dsn := ownServer(t).Database(t)
			store := openAt(t, dsn)
			w := begin(t, store, taskNamed("a"), 1)

			killing, cancel := context.WithCancel(ctx)
			var killer sync.WaitGroup
			killer.Go(func() {
				defer GinkgoRecover()
				// The pace of the kills: in between, the server recovers and takes batches.
				pace := time.NewTicker(150 * time.Millisecond)
				defer pace.Stop()
				for kills := 0; kills < 5 && killing.Err() == nil; {
					if killBackend(killing, dsn) {
						kills++
					}
					<-pace.C
				}
				cancel()
			})
			for n := 0; killing.Err() == nil; n++ {
				eventually(t, store, w.task, w.number(user(fmt.Sprint(n)), agent(fmt.Sprint(n))))
			}
			killer.Wait()
			eventually(t, store, w.task, w.number(user("last")))

			var want []string
			for n := range (w.last - 1) / 2 {
				want = append(want, fmt.Sprint("U ", n), fmt.Sprint("A ", n))
			}
			Expect(w.texts()).To(Equal(append(want, "U last")))
		})
	})

	When("another call keeps a task's row", func() {
		// The manager stops calling a store that cannot be reached, for all tasks.
		It("calls about the task are slow, and the database answers all the same", func(ctx SpecContext) {
			t := GinkgoTB()
			dsn := pg.Database(t)
			store := openAt(t, dsn)
			w := begin(t, store, taskNamed("a"), 1)
			holding, err := connect(t, dsn).Begin(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(holding.Exec(ctx, "SELECT FROM tasks WHERE uid = $1 FOR UPDATE", w.task.UID)).Error().NotTo(HaveOccurred())
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			Expect(store.Append(short, w.task, 1, w.number(user("1")))).Error().To(And(MatchError(history.ErrSlow), MatchError(history.ErrUnavailable)))
			Expect(store.Alive(ctx)).To(Succeed())
			begin(t, store, taskNamed("b"), 1).append(user("1"))
			Expect(holding.Rollback(ctx)).To(Succeed())
		})
	})

	When("its DSN leads nowhere", func() {
		It("reports a malformed one without its password", func(ctx SpecContext) {
			_, err := postgres.Open(ctx, "postgres://u:secret@[", logr.Discard())
			Expect(err).To(MatchError(Not(ContainSubstring("secret"))))
		})

		It("is unavailable, and does not show the password", func(ctx SpecContext) {
			_, err := openAt(GinkgoTB(), "postgres://u:secret@127.0.0.1:1/none").SchemaIsOlder(ctx)
			Expect(err).To(And(MatchError(history.ErrUnavailable), MatchError(Not(ContainSubstring("secret")))))
		})
	})

	When("the database has no schema yet", Label("slow"), func() {
		It("is unavailable until it is migrated, which many may do at once", func(ctx SpecContext) {
			t := GinkgoTB()
			server := ownServer(t)
			dsn := strings.Replace(server.Database(t), "/clew_", "/fresh_", 1)
			conn := connect(t, strings.Replace(dsn, "/fresh_", "/clew_", 1))
			name := dsn[strings.Index(dsn, "/fresh_")+1 : strings.Index(dsn, "?")]
			Expect(conn.Exec(ctx, "CREATE DATABASE "+name, pgx.QueryExecModeSimpleProtocol)).Error().NotTo(HaveOccurred())
			store := openAt(t, dsn)
			_, err := store.SchemaIsOlder(ctx)
			Expect(err).To(MatchError(history.ErrUnavailable))
			var migrations sync.WaitGroup
			for range 4 {
				migrations.Go(func() {
					defer GinkgoRecover()
					Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
				})
			}
			migrations.Wait()
			Expect(store.SchemaIsOlder(ctx)).To(BeFalse())
		})
	})
})

// killBackend kills one of the server's backends that serves a Store.
func killBackend(ctx context.Context, dsn string) bool {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var pid int
	err = conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity
		WHERE application_name = 'clew' AND backend_type = 'client backend' LIMIT 1`).Scan(&pid)
	return err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil
}
