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

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func count(t testing.TB, dsn, table string) (n int) {
	t.Helper()
	if err := connect(t, dsn).QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// ownServer starts a server that the test may stop.
func ownServer(t testing.TB) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(t.Context(), postgres.Migrate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// eventually appends until the store is available again, as a daemon does.
func eventually(t testing.TB, store *postgres.Store, task history.Task, records []history.Record) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		_, err := store.Append(t.Context(), task, 1, records)
		if err != nil && !errors.Is(err, history.ErrUnavailable) {
			return StopTrying("the error is not an outage").Wrap(err)
		}
		return err
	}).WithTimeout(30*time.Second).WithPolling(10*time.Millisecond).Should(Succeed(), "the store did not come back")
}

var _ = Describe("Postgres that goes away", func() {
	It("a restart of the server is survived", func() {
		t := GinkgoTB()
		server := ownServer(t)
		store := openAt(t, server.Database(t))
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("1"))
		if err := server.StopNow(); err != nil {
			t.Fatal(err)
		}
		calls := map[string]func() error{
			"append":   func() error { _, err := store.Append(t.Context(), w.task, 1, nil); return err },
			"begin":    func() error { _, err := store.Begin(t.Context(), w.task, 1, nil, history.BeginOptions{}); return err },
			"state":    func() error { _, err := store.TaskState(t.Context(), w.task.UID); return err },
			"timeline": func() error { _, err := store.Timeline(t.Context(), history.TimelineQuery{Limit: 1}); return err },
			"events":   func() error { return store.RecordEvents(t.Context(), []history.Event{event(w.task, 1, time.Now())}) },
			"schema":   func() error { _, err := store.SchemaIsOlder(t.Context()); return err },
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, history.ErrUnavailable) {
				t.Errorf("%s with the server down: %v", name, err)
			}
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, store, w.task, w.number(user("2")))
		if got := strings.Join(w.texts(), ", "); got != "U 1, U 2" {
			t.Errorf("conversation: %s", got)
		}
	})

	// A backend is killed repeatedly while batches are sent: PostgreSQL then breaks all
	// connections and recovers. Nothing is lost or duplicated.
	It("backends that are killed are replaced", func() {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := server.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)

		ctx, cancel := context.WithCancel(t.Context())
		var killer sync.WaitGroup
		killer.Go(func() {
			defer GinkgoRecover()
			// The pace of the kills: in between, the server recovers and takes batches.
			pace := time.NewTicker(150 * time.Millisecond)
			defer pace.Stop()
			for kills := 0; kills < 5 && ctx.Err() == nil; {
				if killBackend(ctx, dsn) {
					kills++
				}
				<-pace.C
			}
			cancel()
		})
		for n := 0; ctx.Err() == nil; n++ {
			eventually(t, store, w.task, w.number(user(fmt.Sprint(n)), agent(fmt.Sprint(n))))
		}
		killer.Wait()
		eventually(t, store, w.task, w.number(user("last")))

		texts := w.texts()
		if int64(len(texts)) != w.last {
			t.Fatalf("%d messages of %d", len(texts), w.last)
		}
		for i, text := range texts[:len(texts)-1] {
			if want := fmt.Sprint([]string{"U ", "A "}[i%2], i/2); text != want {
				t.Fatalf("message %d is %q, want %q", i, text, want)
			}
		}
	})

	It("listeners are notified of each change", func() {
		t := GinkgoTB()
		server := ownServer(t)
		store := openAt(t, server.Database(t))
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan history.Notification, 100)
		done := make(chan error)
		go func() { done <- store.Listen(ctx, func(n history.Notification) { got <- n }) }()

		expect := func(want history.Notification) {
			t.Helper()
			for {
				select {
				case n := <-got:
					if n == want {
						return
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("no notification %+v", want)
				}
			}
		}
		expect(history.Notification{})
		w := begin(t, store, taskNamed("a"), 1)
		expect(history.Notification{Task: w.task, Attempt: 1})
		w.append(user("1"))
		expect(history.Notification{Task: w.task, Attempt: 1})

		if err := server.StopNow(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(history.Notification{})
		eventually(t, store, w.task, w.number(user("2")))
		expect(history.Notification{Task: w.task, Attempt: 1})
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})

	It("an invalid DSN is refused", func() {
		t := GinkgoTB()
		if _, err := postgres.Open(t.Context(), "postgres://u:secret@[", logr.Discard()); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("malformed DSN: %v", err)
		}
		store := openAt(t, "postgres://u:secret@127.0.0.1:1/none")
		if _, err := store.SchemaIsOlder(t.Context()); !errors.Is(err, history.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("unreachable: %v", err)
		}
	})

	It("many may migrate at once", func() {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := strings.Replace(server.Database(t), "/clew_", "/fresh_", 1)
		conn := connect(t, strings.Replace(dsn, "/fresh_", "/clew_", 1))
		name := dsn[strings.Index(dsn, "/fresh_")+1 : strings.Index(dsn, "?")]
		if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		store := openAt(t, dsn)
		if _, err := store.SchemaIsOlder(t.Context()); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("ready without a schema: %v", err)
		}
		var migrations sync.WaitGroup
		for range 4 {
			migrations.Go(func() {
				defer GinkgoRecover()
				if err := postgres.Migrate(t.Context(), dsn); err != nil {
					t.Error(err)
				}
			})
		}
		migrations.Wait()
		if older, err := store.SchemaIsOlder(t.Context()); older || err != nil {
			t.Errorf("older: %v, %v", older, err)
		}
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
