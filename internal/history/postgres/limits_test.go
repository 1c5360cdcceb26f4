package postgres_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
)

// limited is a store of the same database with other limits.
func limited(t testing.TB, dsn string, limits postgres.Limits) *postgres.Store {
	t.Helper()
	return openPool(t, dsn, postgres.Pool{Connections: 2, Limits: limits})
}

func noise(kibibytes int) history.Record { return agent(strings.Repeat("noise\n", kibibytes<<10/6)) }

var _ = Describe("The limits of a history", func() {
	It("a task has its limit", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10}), taskNamed("a"), 1)
		w.append(user("do it"), noise(30))
		flood := w.number(noise(60), checkpoint(1))
		Expect(w.store.Append(ctx, w.task, 1, flood)).Error().To(MatchError(history.ErrLimitReached))
		state := w.state()
		Expect(state.LastSequence).To(BeEquivalentTo(2), "what was acknowledged is kept, and nothing after it")
		Expect(state.Problem.Reason).To(Equal("HistoryLimitReached"))
		Expect(state.Problem.Message).To(ContainSubstring("historyLimits.taskBytes in the values of Clew's chart, --task-history-bytes of its server and manager): have it raised"))

		By("raising the limit in time: nothing is lost")
		raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20})
		Expect(raised.Append(ctx, w.task, 1, flood)).To(BeEquivalentTo(4), "the last sequence stored")
		Expect(w.state().Problem).To(BeNil())
	})

	It("output is left out if the limit is not raised", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
		w.append(user("do it"), noise(60))
		waiting := w.number(noise(60))
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().To(MatchError(history.ErrLimitReached))
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().NotTo(HaveOccurred())
		for range 20 {
			w.append(noise(60), noise(60))
		}
		w.append(checkpoint(1))
		before := time.Now()
		w.append(noise(60))
		state := w.state()
		Expect(state.CheckpointCount).To(BeEquivalentTo(1))
		Expect(state.Problem.Message).To(ContainSubstring("left out"))
		Expect(state.LeftOutRecords).To(BeEquivalentTo(42))
		Expect(state.ActiveAt).To(BeTemporally("~", before, time.Minute), "an agent whose output is left out works all the same")
		Expect(state.ActiveAt).To(BeTemporally(">=", before.Truncate(time.Microsecond)))
		Expect(w.texts()).To(HaveLen(3), "one message marks where output is left out")
		Expect(w.texts()[2]).To(ContainSubstring("Output is left out of the history from here on: the history of this task has reached its limit"))

		By("raising the limit: the history is complete again from there on")
		raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20, Grace: time.Nanosecond})
		Expect(raised.Append(ctx, w.task, 1, w.number(user("go on"), agent("well")))).Error().NotTo(HaveOccurred())
		texts := w.texts()
		Expect(texts).To(HaveLen(6))
		Expect(texts[3:]).To(HaveExactElements(
			ContainSubstring("complete again from here on. So far the history lacks 42 records, "), "U go on", "A well"))
		Expect(w.state().LeftOutRecords).To(BeEquivalentTo(42))
		Expect(w.state().Problem).To(BeNil())
	})

	It("a namespace has its limit", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		limits := postgres.Limits{NamespaceBytes: 100 << 10}
		begin(t, limited(t, dsn, limits), taskNamed("a"), 1).append(noise(60))
		w := begin(t, limited(t, dsn, limits), taskNamed("b"), 1)
		Expect(w.store.Append(ctx, w.task, 1, w.number(noise(60)))).Error().
			To(MatchError(ContainSubstring("historyLimits.namespaceBytes in the values of Clew's chart, --namespace-history-bytes of its server and manager)")))

		By("appending in another namespace")
		other := begin(t, limited(t, dsn, limits), history.Task{Namespace: "elsewhere", Name: "c", UID: "uid-c"}, 1)
		other.append(noise(60))
	})

	It("what earlier namespaces of a name have left counts beyond one limit only", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		limits := postgres.Limits{NamespaceBytes: 100 << 10}
		named := func(name, uid string) history.Task {
			key, err := limited(t, dsn, limits).NamespaceKey(ctx, name, uid, time.Now())
			Expect(err).NotTo(HaveOccurred())
			return history.Task{Namespace: key, Name: "fix", UID: "fix-" + uid}
		}
		// filled has the history of a namespace that is full.
		filled := func(name, uid string) {
			GinkgoHelper()
			w := begin(t, limited(t, dsn, limits), named(name, uid), 1)
			w.append(noise(90))
			w.store = limited(t, dsn, limits) // the sums are kept for a few seconds
			Expect(w.store.Append(ctx, w.task, 1, w.number(noise(30)))).Error().To(MatchError(history.ErrLimitReached))
		}
		filled("team", "first")
		filled("team", "second")
		w := begin(t, limited(t, dsn, limits), named("team", "third"), 1)
		waiting := w.number(noise(60))
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().
			To(MatchError(ContainSubstring("limit of 102400 bytes, together with what earlier namespaces of this name have left, beyond that limit (historyLimits")))
		begin(t, limited(t, dsn, limits), named("elsewhere", "fourth"), 1).append(noise(60))

		By("seeing what there is, and deleting what an earlier one has left")
		Expect(w.store.KeySizes(ctx)).To(And(HaveLen(4), HaveKeyWithValue("team", BeNumerically("~", 90<<10, 10<<10)), HaveKeyWithValue("team@second", BeNumerically(">", 0))))
		Expect(w.store.DeleteTask(ctx, "fix-first")).Error().NotTo(HaveOccurred())
		w.store = limited(t, dsn, limits)
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().NotTo(HaveOccurred())
	})

	It("an import counts for its namespace", func(ctx SpecContext) {
		t := GinkgoTB()
		source := open(t)
		w := begin(t, source, taskNamed("a"), 1)
		w.append(noise(60))
		lines := export(t, source, w.task)
		dsn := pg.Database(t)
		Expect(limited(t, dsn, postgres.Limits{NamespaceBytes: 50 << 10}).Import(ctx, "team", "bob", parsed(lines))).Error().To(MatchError(history.ErrLimitReached))
		into := limited(t, dsn, postgres.Limits{NamespaceBytes: 100 << 10})
		Expect(into.Import(ctx, "team", "bob", parsed(lines))).Error().NotTo(HaveOccurred())
		again := begin(t, into, taskNamed("b"), 1)
		Expect(into.Append(ctx, again.task, 1, again.number(noise(60)))).Error().To(MatchError(history.ErrLimitReached))
	})

	// An agent, or whoever holds a task's token, may put long texts anywhere in a record:
	// the tables hold no more than the limit and its reserve.
	Describe("no kind of record exceeds the limit", Label("slow"), func() {
		const limit = 1 << 20
		long := func(n int) string { return strings.Repeat("long ", n/5) }
		random := rand.NewChaCha8([32]byte{})
		unlike := func(n int) string { // incompressible
			b := make([]byte, n/2)
			_, _ = random.Read(b) // never fails
			return hex.EncodeToString(b)
		}
		for name, record := range cases.Sorted(map[string]func(int64) history.Record{
			"files that a checkpoint changed": func(n int64) history.Record {
				r := checkpoint(n)
				for range 1000 {
					r.Checkpoint.Changes = append(r.Checkpoint.Changes, history.FileChange{Path: unlike(4000), Action: "Added"})
				}
				return r
			},
			"notes of checkpoints": func(n int64) history.Record {
				r := checkpoint(n)
				r.Checkpoint.Message, r.Checkpoint.GitBranch, r.Checkpoint.Trigger = unlike(1<<20), unlike(1<<20), unlike(1<<20)
				return r
			},
			"details of an event": func(int64) history.Record {
				return history.Record{Event: &history.DaemonEvent{Reason: "Note", Details: map[string]string{"detail": unlike(1 << 20)}}}
			},
			"events that are acted on": func(n int64) history.Record {
				return history.Record{Event: &history.DaemonEvent{Reason: "CheckpointLost", Details: map[string]string{"checkpoint": "1", "message": unlike(1 << 20)}}}
			},
			"ids of calls": func(int64) history.Record { return call(unlike(1 << 20)) },
			"ids of results": func(int64) history.Record {
				return result(unlike(1 << 20))
			},
			"names of tools": func(int64) history.Record {
				return history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "1", Name: unlike(1 << 20)}}}
			},
			"moves": func(n int64) history.Record {
				return history.Record{Move: &history.MoveOperation{ID: unlike(1 << 20), Reason: long(1 << 20)}}
			},
		}) {
			It(name, func(ctx SpecContext) {
				t := GinkgoTB()
				dsn := pg.Database(t)
				w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: limit, Grace: time.Nanosecond}), taskNamed("a"), 1)
				before := tableBytes(t, dsn)
				for n := int64(1); n <= 40; n++ {
					var batch []history.Record
					for k := range int64(10) {
						batch = append(batch, record(10*n+k))
					}
					batch = w.number(batch...)
					last, err := w.store.Append(ctx, w.task, w.attempt, batch)
					if errors.Is(err, history.ErrLimitReached) {
						last, err = w.store.Append(ctx, w.task, w.attempt, batch) // the grace period is over
					}
					if errors.Is(err, history.ErrLimitReached) {
						break // and the reserve is used up
					}
					Expect(err).NotTo(HaveOccurred())
					Expect(last).To(Equal(w.last))
				}
				Expect(tableBytes(t, dsn)-before).To(BeNumerically("<", 3*limit), "dead rows and indexes included")
			})
		}
	})

	It("a checkpoint at the limit loses its lists alone", func(ctx SpecContext) {
		t := GinkgoTB()
		w := begin(t, limited(t, pg.Database(t), postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
		w.append(noise(60))
		Expect(w.store.Append(ctx, w.task, 1, w.number(noise(60)))).Error().To(MatchError(history.ErrLimitReached))
		w.last = 1
		r := checkpoint(1)
		r.Checkpoint.Changes = []history.FileChange{{Path: strings.Repeat("p", 8<<10), Action: "Added"}}
		w.append(noise(60), r, history.Record{Event: &history.DaemonEvent{Reason: "Note", Message: "left out"}})
		c, err := w.store.Checkpoint(ctx, w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Changes).To(BeEmpty())
		Expect(c.Commit).To(Equal("c1"))
		Expect(c.FilesChanged).To(BeEquivalentTo(2))
		page, err := w.store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Name: "a", Limit: 100})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).NotTo(ContainElement(HaveField("Message", "left out")))
		Expect(w.texts()[1]).To(ContainSubstring("Output is left out of the history from here on"))
	})

	// Checkpoints are stored beyond the limit, but not without end.
	It("the reserve beyond the limit ends", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
		w.append(noise(60))
		var err error
		for n := int64(1); n < 100 && w.state().CheckpointCount < 100; n++ {
			batch := w.number(checkpoint(n))
			if _, err = w.store.Append(ctx, w.task, 1, batch); err != nil {
				_, err = w.store.Append(ctx, w.task, 1, batch)
			}
			if err != nil {
				break
			}
		}
		Expect(err).To(MatchError(history.ErrLimitReached))
		state := w.state()
		Expect(state.CheckpointCount).To(BeNumerically(">", 10), "an eighth of the limit is for them")
		Expect(state.Problem.Message).To(ContainSubstring("everything waits"))

		By("raising the limit")
		raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20})
		w.last--
		Expect(raised.Append(ctx, w.task, 1, w.number(checkpoint(100)))).Error().NotTo(HaveOccurred())
		Expect(w.state().Problem).To(BeNil())
	})

	// What a refused import has written would stay in the tables as dead rows.
	It("an import is refused before it is stored", func(ctx SpecContext) {
		t := GinkgoTB()
		source := open(t)
		w := begin(t, source, taskNamed("a"), 1)
		w.append(agent("hello"))
		lines := parsed(export(t, source, w.task))
		long := func(yield func(history.ExportLine, error) bool) {
			for line, err := range lines {
				for n := 0; line.Kind == history.ExportEnd && n < 40; n++ {
					body := fmt.Sprintf(`{"id":"e%d","time":"2026-01-01T00:00:00Z","type":"task","reason":"Note","message":%q}`, n, strings.Repeat("x", 1<<20))
					if !yield(history.ExportLine{Kind: history.ExportEvent, Body: []byte(body)}, nil) {
						return
					}
				}
				if !yield(line, err) {
					return
				}
			}
		}
		read := 0
		counted := func(yield func(history.ExportLine, error) bool) {
			for line, err := range long {
				if read++; !yield(line, err) {
					return
				}
			}
		}
		Expect(limited(t, pg.Database(t), postgres.Limits{NamespaceBytes: 5 << 20}).Import(ctx, "team", "bob", counted)).Error().To(MatchError(history.ErrLimitReached))
		Expect(read).To(BeNumerically("<", 15), "lines of 46 were read")
	})
})
