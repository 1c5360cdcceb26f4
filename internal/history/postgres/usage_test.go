package postgres_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/toolcall"
)

var _ = Describe("What is stored beside records", func() {
	// Each is of about a kibibyte.
	refusals := func(task history.Task, from, through int64) (events []history.Event) {
		for n := from; n <= through; n++ {
			e := event(task, n, time.Now())
			e.Transition, e.Reason, e.Message = n, "OperationRefused", strings.Repeat("x", 512)
			events = append(events, e)
		}
		return events
	}
	completed := func(task history.Task, n int64) history.Event {
		e := transition(task, n, "TaskCompleted", time.Now())
		e.Transition = n
		return e
	}
	leftOut := HaveField("Reason", "EntriesLeftOut")
	var (
		dsn    string
		stores map[postgres.Limits]*postgres.Store
	)
	BeforeEach(func() { dsn, stores = pg.Database(GinkgoTB()), map[postgres.Limits]*postgres.Store{} })
	// with returns a store with limits, which counts anew what namespaces have.
	with := func(limits postgres.Limits) *postgres.Store {
		GinkgoHelper()
		if stores[limits] == nil {
			stores[limits] = limited(GinkgoTB(), dsn, limits)
		}
		postgres.ForgetSums(stores[limits])
		return stores[limits]
	}
	timeline := func(ctx SpecContext, task history.Task) []history.Event {
		GinkgoHelper()
		page, err := with(postgres.Limits{}).Timeline(ctx, history.TimelineQuery{Namespace: task.Namespace, UID: task.UID, Limit: 1000})
		Expect(err).NotTo(HaveOccurred())
		return page.Events
	}

	It("counts for the namespace, once", func(ctx SpecContext) {
		never := taskNamed("never-begun")
		store := with(postgres.Limits{})
		sent := refusals(never, 1, 50)
		for range 3 {
			Expect(store.RecordEvents(ctx, sent)).To(Succeed())
		}
		Expect(store.KeySizes(ctx)).To(HaveKeyWithValue("team", BeNumerically("~", 54<<10, 5<<10)))

		By("appending, which has as much less room")
		w := begin(GinkgoTB(), with(postgres.Limits{NamespaceBytes: 100 << 10}), taskNamed("a"), 1)
		Expect(w.store.Append(ctx, w.task, 1, w.number(noise(60)))).Error().To(MatchError(history.ErrLimitReached))
	})

	It("at the limit of a namespace, entries that say little are counted in one", func(ctx SpecContext) {
		limits := postgres.Limits{NamespaceBytes: 100 << 10}
		task := taskNamed("never-begun")
		Expect(with(limits).RecordEvents(ctx, refusals(task, 1, 80))).To(Succeed())
		for from := int64(81); from <= 480; from += 100 {
			sent := refusals(task, from, from+99)
			Expect(with(limits).RecordEvents(ctx, sent)).To(Succeed())
			Expect(with(limits).RecordEvents(ctx, sent)).To(Succeed(), "which counts once")
		}
		Expect(with(limits).RecordEvents(ctx, []history.Event{completed(task, 481)})).To(Succeed())
		events := timeline(ctx, task)
		Expect(events).To(HaveLen(80 + 2))
		Expect(events).To(ContainElement(And(leftOut, HaveField("Message", And(
			HavePrefix("from here on, 400 entries were left out of the timeline"), ContainSubstring("historyLimits.namespaceBytes"))))))
		Expect(events).To(ContainElement(HaveField("Reason", "TaskCompleted")), "there is a reserve for how a task stands")
		Expect(with(limits).RecordedTransitions(ctx, task.Namespace, task.UID)).To(BeEquivalentTo(481), "nothing waits in the Task's status")

		By("recording elsewhere")
		other := history.Task{Namespace: "elsewhere", Name: "a", UID: "uid-of-another"}
		Expect(with(limits).RecordEvents(ctx, refusals(other, 1, 50))).To(Succeed())
		Expect(timeline(ctx, other)).To(HaveLen(50))

		By("raising the limit")
		raised := postgres.Limits{NamespaceBytes: 1 << 20}
		Expect(with(raised).RecordEvents(ctx, refusals(task, 482, 490))).To(Succeed())
		Expect(timeline(ctx, task)).To(HaveLen(80 + 2 + 9))
		Expect(with(limits).RecordEvents(ctx, refusals(task, 491, 500))).To(Succeed())
		Expect(timeline(ctx, task)).To(ContainElements(
			And(leftOut, HaveField("Message", ContainSubstring("400 entries"))), And(leftOut, HaveField("Message", ContainSubstring("10 entries")))))
	})

	It("the reserve ends, and new tasks leave nothing then", func(ctx SpecContext) {
		limits := postgres.Limits{NamespaceBytes: 64 << 10}
		task := taskNamed("busy")
		for n := int64(1); n <= 40; n++ {
			e := completed(task, n)
			e.Message = strings.Repeat("x", 4096)
			Expect(with(limits).RecordEvents(ctx, []history.Event{e})).To(Succeed())
		}
		Expect(len(timeline(ctx, task))).To(And(BeNumerically(">", 12), BeNumerically("<", 18)), "and one that counts the others")
		for n := range 5 {
			made := taskNamed(fmt.Sprint("made-", n))
			Expect(with(limits).RecordEvents(ctx, []history.Event{completed(made, 1)})).To(Succeed())
			Expect(with(limits).RecordedTransitions(ctx, made.Namespace, made.UID)).To(BeEquivalentTo(1))
		}
		Expect(count(GinkgoTB(), dsn, "events WHERE task_name LIKE 'made-%'")).To(BeZero())
		Expect(count(GinkgoTB(), dsn, "task_summaries")).To(Equal(1))
	})

	It("a task's timeline has its part of the task's limit", func(ctx SpecContext) {
		limits := postgres.Limits{TaskBytes: 400 << 10}
		task := taskNamed("loud")
		Expect(with(limits).RecordEvents(ctx, refusals(task, 1, 40))).To(Succeed())
		Expect(with(limits).RecordEvents(ctx, refusals(task, 41, 100))).To(Succeed())
		Expect(timeline(ctx, task)).To(And(HaveLen(41), ContainElement(leftOut)))
		w := begin(GinkgoTB(), with(limits), task, 1)
		w.append(noise(60))
	})

	It("nobody exports a history unseen, and everybody may delete one", func(ctx SpecContext) {
		limits := postgres.Limits{NamespaceBytes: 64 << 10}
		task := taskNamed("a")
		audit := func(n int64, reason string) []history.Event {
			e := event(task, n, time.Now())
			e.ID, e.Type, e.Reason, e.Actor = fmt.Sprint("audit-", n), history.EventTypeAccess, reason, "alice"
			return []history.Event{e}
		}
		Expect(with(limits).RecordEvents(ctx, refusals(task, 1, 60))).To(Succeed())
		Expect(with(limits).RecordEvents(ctx, audit(1, "HistoryExported"))).To(Succeed(), "in the reserve")
		Expect(with(postgres.Limits{}).RecordEvents(ctx, refusals(task, 61, 80))).To(Succeed())
		Expect(with(limits).RecordEvents(ctx, audit(2, "HistoryExported"))).To(MatchError(history.ErrLimitReached))
		Expect(with(limits).RecordEvents(ctx, audit(3, "HistoryDeleted"))).To(Succeed())
		Expect(timeline(ctx, task)).To(ContainElement(HaveField("Reason", "HistoryDeleted")))
	})

	It("goes with the history", func(ctx SpecContext) {
		store := with(postgres.Limits{})
		w := begin(GinkgoTB(), store, taskNamed("a"), 1)
		Expect(store.RecordEvents(ctx, refusals(w.task, 1, 50))).To(Succeed())
		Expect(store.DeleteTask(ctx, w.task.UID)).Error().NotTo(HaveOccurred())
		Expect(count(GinkgoTB(), dsn, "task_usage")).To(BeZero())
	})

	It("is forgotten with the events that are removed for their age", func(ctx SpecContext) {
		store := with(postgres.Limits{})
		Expect(store.RecordEvents(ctx, refusals(taskNamed("old"), 1, 5))).To(Succeed())
		begin(GinkgoTB(), store, taskNamed("begun"), 1)
		Expect(store.RecordEvents(ctx, refusals(taskNamed("begun"), 1, 5))).To(Succeed())
		conn := connect(GinkgoTB(), dsn)
		Expect(conn.Exec(ctx, "UPDATE task_usage SET noted_at = now() - interval '500 days'")).Error().NotTo(HaveOccurred())
		Expect(conn.Exec(ctx, "DELETE FROM events")).Error().NotTo(HaveOccurred())
		Expect(store.RecordEvents(ctx, refusals(taskNamed("young"), 1, 5))).To(Succeed())
		Expect(store.Clean(ctx, postgres.MaintenanceOptions{EventRetention: 365 * 24 * time.Hour})).To(Succeed())
		Expect(count(GinkgoTB(), dsn, "task_usage WHERE task_uid = 'uid-of-old'")).To(BeZero())
		Expect(count(GinkgoTB(), dsn, "task_usage WHERE task_uid = 'uid-of-young'")).To(Equal(1))
		Expect(count(GinkgoTB(), dsn, "task_summaries WHERE uid = 'uid-of-old'")).To(BeZero(), "of a task that never began")
		Expect(count(GinkgoTB(), dsn, "recorded_transitions WHERE task_uid = 'uid-of-old'")).To(BeZero())
		Expect(count(GinkgoTB(), dsn, "task_summaries")).To(Equal(2))
	})

	It("the calls of a supervisor's tools count, with their answers, and are refused at a limit", func(ctx SpecContext) {
		limits := postgres.Limits{NamespaceBytes: 200 << 10}
		w := begin(GinkgoTB(), with(limits), taskNamed("lead"), 1)
		call := func(n int) (history.ToolCall, error) {
			return with(limits).CallTool(ctx, w.task, 1, history.NewToolCall{Tool: "task_create", Arguments: fmt.Appendf(nil, `{"n":%d,"prompt":%q}`, n, strings.Repeat("p", 20<<10))})
		}
		sizes := func() int64 {
			GinkgoHelper()
			all, err := with(limits).KeySizes(ctx)
			Expect(err).NotTo(HaveOccurred())
			return all["team"]
		}
		before := sizes()
		first, err := call(0)
		Expect(err).NotTo(HaveOccurred())
		Expect(sizes() - before).To(BeNumerically("~", 21<<10, 1<<10))
		Expect(w.store.AnswerToolCall(ctx, first.ID, toolcall.Answer{Text: "made", Data: []byte(strings.Repeat("d", 50<<10))})).To(Succeed())
		Expect(sizes()-before).To(BeNumerically("~", 51<<10, 1<<10), "arguments go with the answer")
		for n := 1; err == nil && n < 20; n++ {
			_, err = call(n)
		}
		Expect(err).To(And(MatchError(history.ErrLimitReached), MatchError(ContainSubstring("historyLimits.namespaceBytes"))))
		Expect(sizes()).To(BeNumerically("<", 200<<10))
		Expect(call(0)).To(HaveField("ID", Equal(first.ID)), "an answer that was not delivered is given again")
	})

	It("a task's calls count for its limit together with its records and its timeline", func(ctx SpecContext) {
		limits := postgres.Limits{TaskBytes: 100 << 10}
		w := begin(GinkgoTB(), with(limits), taskNamed("lead"), 1)
		w.append(noise(60))
		call := func(n int) error {
			_, err := with(limits).CallTool(ctx, w.task, 1, history.NewToolCall{Tool: "task_create", Arguments: fmt.Appendf(nil, `{"n":%d,"prompt":%q}`, n, strings.Repeat("p", 20<<10))})
			return err
		}
		Expect(call(1)).To(Succeed())
		Expect(call(2)).To(MatchError(ContainSubstring("historyLimits.taskBytes")))
	})
})
