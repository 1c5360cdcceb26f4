package postgres_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var hexLiteral = regexp.MustCompile(`\\x([0-9a-f]{2,})`)

// decodeHex returns the bytes of a dump as text.
func decodeHex(dump string) string {
	var b strings.Builder
	for _, m := range hexLiteral.FindAllStringSubmatch(dump, -1) {
		decoded, _ := hex.DecodeString(m[1])
		b.Write(decoded)
		b.WriteByte('\n')
	}
	return b.String()
}

func clean(t testing.TB, store *postgres.Store, options postgres.MaintenanceOptions) {
	t.Helper()
	if err := store.Clean(t.Context(), options); err != nil {
		t.Fatal(err)
	}
}

func eventTables(t testing.TB, dsn string) []string {
	t.Helper()
	rows, err := connect(t, dsn).Query(t.Context(), `SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

var _ = Describe("Maintaining the history", func() {
	It("events are kept by month", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		task := taskNamed("a")
		now := time.Now().UTC()
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		// Two that have no table yet, one of them in the next month.
		ages := []time.Time{now.AddDate(-3, 0, 0), now, month.AddDate(0, 1, 0)}
		for i, at := range ages {
			if err := store.RecordEvents(t.Context(), []history.Event{event(task, int64(i), at)}); err != nil {
				t.Fatal(err)
			}
		}
		if n := count(t, dsn, "events_default"); n != 2 {
			t.Errorf("%d events without a table of their own, want 2", n)
		}
		for range 2 {
			clean(t, store, postgres.MaintenanceOptions{})
		}
		want := []string{"events_default"}
		for i := range 3 {
			want = append(want, month.AddDate(0, i, 0).Format("events_2006_01"))
		}
		sorted := map[string]bool{}
		for _, name := range eventTables(t, dsn) {
			sorted[name] = true
		}
		for _, name := range want {
			if !sorted[name] {
				t.Errorf("there is no table %s", name)
			}
		}
		if n := count(t, dsn, "events_default"); n != 1 {
			t.Errorf("%d events without a table of their own, want 1", n)
		}
		// Recorded again, in whatever month, they are stored once.
		again := event(task, 1, now.AddDate(0, -5, 0))
		if err := store.RecordEvents(t.Context(), []history.Event{again}); err != nil {
			t.Fatal(err)
		}
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(HaveLen(3))
		for i := range 2 {
			Expect(page.Events[i].Time).To(BeTemporally(">", page.Events[i+1].Time), "event %d is newer than the next", i)
		}
	})

	It("old events are dropped", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		task := taskNamed("a")
		now := time.Now().UTC()
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		old := month.AddDate(0, -14, 0)
		table := old.Format("events_2006_01")
		if _, err := connect(t, dsn).Exec(t.Context(), fmt.Sprintf(`CREATE TABLE %s PARTITION OF events FOR VALUES FROM ('%s') TO ('%s')`,
			table, old.Format(time.RFC3339), old.AddDate(0, 1, 0).Format(time.RFC3339))); err != nil {
			t.Fatal(err)
		}
		for i, at := range []time.Time{old.Add(time.Hour), month.AddDate(-2, 0, 0), month.AddDate(0, -6, 0), now} {
			if err := store.RecordEvents(t.Context(), []history.Event{event(task, int64(i), at)}); err != nil {
				t.Fatal(err)
			}
		}
		w := begin(t, store, taskNamed("b"), 1)
		w.append(checkpoint(1))
		clean(t, store, postgres.MaintenanceOptions{})
		if n := count(t, dsn, "events"); n != 4 {
			t.Errorf("%d events are left without a limit, want 4", n)
		}
		clean(t, store, postgres.MaintenanceOptions{EventRetention: 365 * 24 * time.Hour})
		if n := count(t, dsn, "events"); n != 2 {
			t.Errorf("%d events are left, want 2", n)
		}
		for _, name := range eventTables(t, dsn) {
			if name == table {
				t.Errorf("the table %s still exists", name)
			}
		}
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", UID: w.task.UID, Limit: 10})
		if err != nil || len(page.Events) != 1 {
			t.Errorf("the timeline has an existing checkpoint once: %+v, %v", page, err)
		}
	})

	// The creation of a checkpoint appears once, whoever records it first.
	Describe("a checkpoint appears once", func() {
		for _, first := range []string{"record", "transition", "both"} {
			It(first, func() {
				t := GinkgoTB()
				store := open(t)
				w := begin(t, store, taskNamed("a"), 1)
				transition := transition(w.task, 1, "CheckpointCreated", time.Now().AddDate(0, -1, 0))
				transition.Checkpoint, transition.Type = 1, history.EventTypeCheckpoint
				record := func() {
					if err := store.RecordEvents(t.Context(), []history.Event{transition}); err != nil {
						t.Error(err)
					}
				}
				switch first {
				case "record":
					w.append(checkpoint(1))
					record()
				case "transition":
					record()
					w.append(checkpoint(1))
				default:
					done := make(chan struct{})
					go func() { record(); close(done) }()
					w.append(checkpoint(1))
					<-done
				}
				for _, query := range []history.TimelineQuery{{}, {Name: "a"}, {Types: []string{"checkpoint"}}} {
					query.Namespace, query.Limit = "team", 10
					page, err := store.Timeline(t.Context(), query)
					Expect(err).NotTo(HaveOccurred())
					Expect(page.Events).To(ConsistOf(HaveField("Checkpoint", int64(1))), "%+v", query)
				}
			})
		}
	})

	// Consecutive pages of events and checkpoints lose nothing, even at equal times.
	It("pages of the timeline include checkpoints", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		at := time.Now().Add(-time.Hour).Truncate(time.Second)
		for i := range int64(30) {
			c := checkpoint(i + 1)
			c.Checkpoint.Time = at.Add(time.Duration(i/5) * time.Second)
			w.append(c)
			if err := store.RecordEvents(t.Context(), []history.Event{event(w.task, i, at.Add(time.Duration(i/5)*time.Second))}); err != nil {
				t.Fatal(err)
			}
		}
		for _, query := range []history.TimelineQuery{{}, {Name: "a"}} {
			query.Namespace, query.Limit = "team", 7
			seen := map[string]bool{}
			for {
				page, err := store.Timeline(t.Context(), query)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range page.Events {
					if seen[e.ID] {
						t.Fatalf("%s was read twice", e.ID)
					}
					seen[e.ID] = true
				}
				if !page.More {
					break
				}
				last := page.Events[len(page.Events)-1]
				query.Before = history.EventKey{Time: last.Time, ID: last.ID}
			}
			if len(seen) != 60 {
				t.Errorf("%d events", len(seen))
			}
		}
	})

	It("old snapshots are removed", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		beginWith(t, w, 1)
		w.append(user("1"), user("2"), checkpoint(1), user("3"))
		if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE entries SET time = now() - interval '91 days' WHERE position <= 2`); err != nil {
			t.Fatal(err)
		}
		clean(t, store, postgres.MaintenanceOptions{SnapshotRetention: 90 * 24 * time.Hour})
		var ordinals []int64
		for _, s := range w.snapshots(0) {
			ordinals = append(ordinals, s.Ordinal)
		}
		// The one at the checkpoint is kept.
		if d := cmp.Diff([]int64{2, 3}, ordinals); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		w.append(user("4"))
		if got := w.snapshots(3); len(got) != 1 || got[0].Ordinal != 4 {
			t.Errorf("they are not counted on: %+v", got)
		}
	})

	// Pieces without a message are kept as long as the message may still arrive.
	It("pieces without a message are removed", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(piece("early"), piece("lost"))
		clean(t, store, postgres.MaintenanceOptions{})
		if n := count(t, dsn, "pieces"); n != 2 {
			t.Fatalf("%d pieces, want 2", n)
		}
		conn := connect(t, dsn)
		if _, err := conn.Exec(t.Context(), `UPDATE pending_pieces SET created_at = now() - interval '31 days'`); err != nil {
			t.Fatal(err)
		}
		w.append(call("1"), history.Record{Piece: []byte("early")}, cutResult("1", "early and more")) // refers to another piece
		w.append(cutResult("2", "early      "), piece("x"))
		clean(t, store, postgres.MaintenanceOptions{})
		if n := count(t, dsn, "pieces"); n != 1 {
			t.Errorf("%d pieces, want only the young one", n)
		}
	})

	It("histories of gone tasks are deleted", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		for _, name := range []string{"gone", "there", "young"} {
			begin(t, store, taskNamed(name), 1).append(user(name))
		}
		if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE tasks SET updated_at = now() - interval '11 days' WHERE name <> 'young'`); err != nil {
			t.Fatal(err)
		}
		clean(t, store, postgres.MaintenanceOptions{
			MessageRetention: 10 * 24 * time.Hour,
			TaskExists:       func(_ context.Context, task history.Task) (bool, error) { return task.Name == "there", nil },
		})
		page, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", Limit: 5, Sort: history.SortName})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Tasks).To(HaveExactElements(HaveField("Name", "there"), HaveField("Name", "young")))
		err = store.RunMaintenance(t.Context(), postgres.MaintenanceOptions{MessageRetention: time.Hour})
		if !errors.Is(err, history.ErrInvalid) {
			t.Errorf("without a way to ask whether the Task exists: %v", err)
		}
	})

	// Of two maintainers of a database one works; messages are found soon after they were
	// stored, even after that one has stopped or the database server has restarted.
	It("maintenance runs until it is ended", func() {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := server.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		registries := []*prometheus.Registry{prometheus.NewRegistry(), prometheus.NewRegistry()}
		var stop [2]context.CancelFunc
		done := make(chan error, 2)
		for i := range stop {
			ctx, cancel := context.WithCancel(t.Context())
			stop[i] = cancel
			go func() { done <- store.RunMaintenance(ctx, postgres.MaintenanceOptions{Registerer: registries[i]}) }()
		}
		leaders := func() (n float64) {
			for _, r := range registries {
				families, _ := r.Gather()
				for _, f := range families {
					if f.GetName() == "clew_history_maintenance_leader" {
						n += f.GetMetric()[0].GetGauge().GetValue()
					}
				}
			}
			return n
		}
		finds := func(word string) {
			t.Helper()
			Eventually(func() ([]history.SearchHit, error) {
				page, err := store.Search(t.Context(), history.SearchQuery{Namespace: "team", Text: word, Limit: 5})
				return page.Hits, err
			}).WithTimeout(45*time.Second).WithPolling(20*time.Millisecond).Should(HaveLen(1), "hits for %s", word)
		}
		w.append(user("first"))
		finds("first")
		if n := leaders(); n != 1 {
			t.Errorf("%g work at a time", n)
		}
		if n, err := testutil.GatherAndCount(registries[0], "clew_history_index_lag_seconds", "clew_history_swept_rows_total"); err != nil || n != 5 {
			t.Errorf("%d metrics, %v", n, err)
		}
		if err := server.StopNow(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, store, w.task, w.number(user("second")))
		finds("second")
		stop[0]()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		w.append(user("third"))
		finds("third")
		stop[1]()
		<-done
	})
})
