package postgres_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
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
	GinkgoHelper()
	Expect(store.Clean(t.Context(), options)).To(Succeed())
}

// eventTables returns the partitions of the table of events.
func eventTables(t testing.TB, dsn string) []string {
	GinkgoHelper()
	rows, err := connect(t, dsn).Query(t.Context(), `SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass ORDER BY 1`)
	Expect(err).NotTo(HaveOccurred())
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	Expect(err).NotTo(HaveOccurred())
	return names
}

var _ = Describe("Maintaining the history", func() {
	var (
		t     testing.TB
		dsn   string
		store *postgres.Store
	)
	BeforeEach(func() {
		t = GinkgoTB()
		dsn = pg.Database(t)
		store = openAt(t, dsn)
	})

	It("events are kept by month", func(ctx SpecContext) {
		task := taskNamed("a")
		now := time.Now().UTC()
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		// Two that have no table yet, one of them in the next month.
		ages := []time.Time{now.AddDate(-3, 0, 0), now, month.AddDate(0, 1, 0)}
		for i, at := range ages {
			Expect(store.RecordEvents(ctx, []history.Event{event(task, int64(i), at)})).To(Succeed())
		}
		Expect(count(t, dsn, "events_default")).To(Equal(2), "events without a table of their own")
		for range 2 {
			clean(t, store, postgres.MaintenanceOptions{})
		}
		Expect(eventTables(t, dsn)).To(ContainElements("events_default", month.Format("events_2006_01"),
			month.AddDate(0, 1, 0).Format("events_2006_01"), month.AddDate(0, 2, 0).Format("events_2006_01")))
		Expect(count(t, dsn, "events_default")).To(Equal(1), "events without a table of their own")

		By("recording one again in another month: it is stored once")
		again := event(task, 1, now.AddDate(0, -5, 0))
		Expect(store.RecordEvents(ctx, []history.Event{again})).To(Succeed())
		page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(HaveLen(3))
		for i := range 2 {
			Expect(page.Events[i].Time).To(BeTemporally(">", page.Events[i+1].Time), "event %d is newer than the next", i)
		}
	})

	It("old events are dropped", func(ctx SpecContext) {
		task := taskNamed("a")
		now := time.Now().UTC()
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		old := month.AddDate(0, -14, 0)
		table := old.Format("events_2006_01")
		create := fmt.Sprintf(`CREATE TABLE %s PARTITION OF events FOR VALUES FROM ('%s') TO ('%s')`,
			table, old.Format(time.RFC3339), old.AddDate(0, 1, 0).Format(time.RFC3339))
		Expect(connect(t, dsn).Exec(ctx, create)).Error().NotTo(HaveOccurred())
		for i, at := range []time.Time{old.Add(time.Hour), month.AddDate(-2, 0, 0), month.AddDate(0, -6, 0), now} {
			Expect(store.RecordEvents(ctx, []history.Event{event(task, int64(i), at)})).To(Succeed())
		}
		w := begin(t, store, taskNamed("b"), 1)
		w.append(checkpoint(1))
		clean(t, store, postgres.MaintenanceOptions{})
		Expect(count(t, dsn, "events")).To(Equal(4), "events without a limit")
		clean(t, store, postgres.MaintenanceOptions{EventRetention: 365 * 24 * time.Hour})
		Expect(count(t, dsn, "events")).To(Equal(2), "events of the last year")
		Expect(eventTables(t, dsn)).NotTo(ContainElement(table), "a table of old events is dropped")
		Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "team", UID: w.task.UID, Limit: 10})).
			To(HaveField("Events", ConsistOf(HaveField("Type", history.EventTypeCheckpoint), HaveField("Type", history.EventTypeFile))),
				"the timeline has an existing checkpoint once, and its files")
	})

	// The creation of a checkpoint appears once, whoever records it first.
	Describe("a checkpoint appears once", func() {
		for _, first := range []string{"record", "transition", "both"} {
			It(first, func(ctx SpecContext) {
				w := begin(t, store, taskNamed("a"), 1)
				transition := transition(w.task, 1, "CheckpointCreated", time.Now().AddDate(0, -1, 0))
				transition.Checkpoint, transition.Type = 1, history.EventTypeCheckpoint
				record := func() {
					Expect(store.RecordEvents(ctx, []history.Event{transition})).To(Succeed())
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
					go func() {
						defer GinkgoRecover()
						defer close(done)
						record()
					}()
					w.append(checkpoint(1))
					<-done
				}
				for _, query := range []history.TimelineQuery{{}, {Name: "a"}, {Types: []string{"checkpoint"}}} {
					query.Namespace, query.Limit = "team", 10
					page, err := store.Timeline(ctx, query)
					Expect(err).NotTo(HaveOccurred())
					ofFiles := func(e history.Event) bool { return e.Type == history.EventTypeFile }
					Expect(slices.DeleteFunc(page.Events, ofFiles)).To(ConsistOf(HaveField("Checkpoint", int64(1))), "%+v", query)
				}
			})
		}
	})

	// Consecutive pages of events, checkpoints and their files lose nothing, even at equal times.
	It("pages of the timeline include checkpoints", func(ctx SpecContext) {
		w := begin(t, store, taskNamed("a"), 1)
		at := time.Now().Add(-time.Hour).Truncate(time.Second)
		for i := range int64(30) {
			c := checkpoint(i + 1)
			c.Checkpoint.Time = at.Add(time.Duration(i/5) * time.Second)
			w.append(c)
			Expect(store.RecordEvents(ctx, []history.Event{event(w.task, i, at.Add(time.Duration(i/5)*time.Second))})).To(Succeed())
		}
		for _, query := range []history.TimelineQuery{{}, {Name: "a"}} {
			query.Namespace, query.Limit = "team", 7
			seen := map[string]bool{}
			for {
				page, err := store.Timeline(ctx, query)
				Expect(err).NotTo(HaveOccurred())
				for _, e := range page.Events {
					Expect(seen).NotTo(HaveKey(e.ID), "no event is read twice")
					seen[e.ID] = true
				}
				if !page.More {
					break
				}
				last := page.Events[len(page.Events)-1]
				query.Before = history.EventKey{Time: last.Time, ID: last.ID}
			}
			Expect(seen).To(HaveLen(90), "%+v", query)
		}
	})

	It("old snapshots are removed", func(ctx SpecContext) {
		w := begin(t, store, taskNamed("a"), 1)
		beginWith(t, w, 1)
		w.append(user("1"), user("2"), checkpoint(1), user("3"))
		Expect(connect(t, dsn).Exec(ctx, `UPDATE entries SET time = now() - interval '91 days' WHERE position <= 2`)).Error().NotTo(HaveOccurred())
		clean(t, store, postgres.MaintenanceOptions{SnapshotRetention: 90 * 24 * time.Hour})
		Expect(w.snapshots(0)).To(HaveExactElements(HaveField("Ordinal", int64(2)), HaveField("Ordinal", int64(3))),
			"the old one at the checkpoint is kept")
		w.append(user("4"))
		Expect(w.snapshots(3)).To(HaveExactElements(HaveField("Ordinal", int64(4))), "the next one is numbered from there")
	})

	// Pieces without a message are kept as long as the message may still arrive.
	It("pieces without a message are removed", func(ctx SpecContext) {
		w := begin(t, store, taskNamed("a"), 1)
		w.append(piece("early"), piece("lost"))
		clean(t, store, postgres.MaintenanceOptions{})
		Expect(count(t, dsn, "pieces")).To(Equal(2), "young pieces are kept")

		By("cleaning up a month later")
		conn := connect(t, dsn)
		Expect(conn.Exec(ctx, `UPDATE pending_pieces SET created_at = now() - interval '31 days'`)).Error().NotTo(HaveOccurred())
		w.append(call("1"), history.Record{Piece: []byte("early")}, cutResult("1", "early and more")) // refers to another piece
		w.append(cutResult("2", "early      "), piece("x"))
		clean(t, store, postgres.MaintenanceOptions{})
		Expect(count(t, dsn, "pieces")).To(Equal(1), "only the young piece is kept")
	})

	It("a retention of messages is refused without a way to ask which Tasks exist, and to delete code", func(ctx SpecContext) {
		complete := postgres.MaintenanceOptions{
			LiveTasks:  func(context.Context) ([]string, error) { return nil, nil },
			TaskExists: func(context.Context, history.Task, []string) (bool, string, error) { return false, "", nil },
			Awaited:    func(context.Context, history.Task) (bool, error) { return false, nil },
			DeleteCode: func(context.Context, history.Task, []string) error { return nil },
		}
		for lacking, without := range cases.Sorted(map[string]func(*postgres.MaintenanceOptions){
			"LiveTasks":  func(o *postgres.MaintenanceOptions) { o.LiveTasks = nil },
			"TaskExists": func(o *postgres.MaintenanceOptions) { o.TaskExists = nil },
			"Awaited":    func(o *postgres.MaintenanceOptions) { o.Awaited = nil },
			"DeleteCode": func(o *postgres.MaintenanceOptions) { o.DeleteCode = nil },
		}) {
			options := complete
			without(&options)
			options.MessageRetention = time.Hour
			Expect(store.RunMaintenance(ctx, options)).To(MatchError(history.ErrInvalid), lacking)
		}
	})

	// Of two maintainers of a database one works; messages are found soon after they were
	// stored, even after that one has stopped or the database server has restarted.
	It("maintenance runs until it is ended", Label("slow"), func(ctx SpecContext) {
		server := ownServer(t)
		dsn := server.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		registries := []*prometheus.Registry{prometheus.NewRegistry(), prometheus.NewRegistry()}
		var stop [2]context.CancelFunc
		done := make(chan error, 2)
		var beside atomic.Int64 // how many do what is done alongside
		for i := range stop {
			ctx, cancel := context.WithCancel(ctx)
			stop[i] = cancel
			options := postgres.MaintenanceOptions{Registerer: registries[i], Alongside: func(ctx context.Context) {
				beside.Add(1)
				defer beside.Add(-1)
				<-ctx.Done()
			}}
			go func() { done <- store.RunMaintenance(ctx, options) }()
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
			GinkgoHelper()
			Eventually(func() ([]history.SearchHit, error) {
				page, err := store.Search(ctx, history.SearchQuery{Namespace: "team", Text: word, Limit: 5})
				return page.Hits, err
			}).WithTimeout(45*time.Second).WithPolling(20*time.Millisecond).Should(HaveLen(1), "hits for %s", word)
		}
		w.append(user("first"))
		finds("first")
		Expect(leaders()).To(BeEquivalentTo(1), "maintainers that work at a time")
		Expect(beside.Load()).To(BeEquivalentTo(1), "maintainers that do what is done alongside")
		Expect(testutil.GatherAndCount(registries[0], "clew_history_index_lag_seconds", "clew_history_swept_rows_total")).To(Equal(5), "metrics")

		By("restarting the database server")
		Expect(server.StopNow()).To(Succeed())
		Expect(server.Restart(ctx)).To(Succeed())
		eventually(t, store, w.task, w.number(user("second")))
		finds("second")

		By("ending one of the maintainers")
		stop[0]()
		Expect(<-done).To(MatchError(context.Canceled))
		w.append(user("third"))
		finds("third")
		Expect(beside.Load()).To(BeEquivalentTo(1), "maintainers that do what is done alongside")
		stop[1]()
		<-done
		Expect(beside.Load()).To(BeZero(), "it ends with the maintenance")
	})
})
