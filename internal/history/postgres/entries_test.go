package postgres_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("New entries of timelines", func() {
	var (
		store *postgres.Store
		w     *writer
		told  chan history.NewEntry
	)
	BeforeEach(func(ctx SpecContext) {
		store = openAt(GinkgoTB(), pg.Database(GinkgoTB()))
		w = begin(GinkgoTB(), store, taskNamed("a"), 1)
		told = make(chan history.NewEntry, 100)
		listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- store.ListenEntries(listening, func(n history.NewEntry) { told <- n }) }()
		DeferCleanup(func() {
			cancel()
			Eventually(ended).WithTimeout(20 * time.Second).Should(Receive(MatchError(context.Canceled)))
		})
		Eventually(told).WithTimeout(20*time.Second).Should(Receive(Equal(history.NewEntry{})), "what was before may have been missed")
	})
	next := func() history.NewEntry {
		GinkgoHelper()
		var n history.NewEntry
		Eventually(told).WithTimeout(20 * time.Second).Should(Receive(&n))
		return n
	}
	event := func(id string, at time.Time) history.Event {
		return history.Event{ID: id, Task: w.task, Reason: "TaskStarted", Type: history.EventTypeTask, Time: at, Message: "it runs"}
	}
	read := func(ctx SpecContext, q history.EntriesQuery) (reasons []string) {
		GinkgoHelper()
		q.Namespace.Key = w.task.Namespace
		events, err := store.Entries(ctx, q)
		Expect(err).NotTo(HaveOccurred())
		for _, e := range events {
			reasons = append(reasons, e.Reason+" "+e.Message)
		}
		return reasons
	}

	It("are announced for tasks, too, whose UIDs an older release has imported with spaces", func(ctx SpecContext) {
		e := event("1", time.Now())
		e.Task.UID = "a b c"
		Expect(store.RecordEvents(ctx, []history.Event{e})).To(Succeed())
		Expect(next()).To(Equal(history.NewEntry{Task: e.Task.Key(), Event: "1"}))
	})

	It("are announced once each, whatever their times", func(ctx SpecContext) {
		now := time.Now()
		Expect(store.RecordEvents(ctx, []history.Event{event("1", now)})).To(Succeed())
		Expect(store.RecordEvents(ctx, []history.Event{event("1", now), event("2", now.Add(-time.Hour))})).To(Succeed())
		Expect(next()).To(Equal(history.NewEntry{Task: w.task.Key(), Event: "1"}))
		late := next()
		Expect(late).To(Equal(history.NewEntry{Task: w.task.Key(), Event: "2"}))
		Expect(read(ctx, history.EntriesQuery{Entries: []history.NewEntry{late}})).To(Equal([]string{"TaskStarted it runs"}))
	})

	It("are those of messages and checkpoints, too", func(ctx SpecContext) {
		w.append(user("go"))
		message := next()
		Expect(message.Event).NotTo(BeEmpty())
		changed := checkpoint(1)
		changed.Checkpoint.FilesChanged, changed.Checkpoint.Changes = 1, []history.FileChange{{Path: "plan.md", Action: "Added"}}
		w.append(changed)
		made := next()
		Expect(made).To(Equal(history.NewEntry{Task: w.task.Key(), Checkpoint: 1}))

		both := []history.NewEntry{made, message}
		Expect(read(ctx, history.EntriesQuery{Entries: both})).To(HaveExactElements(
			HavePrefix("UserMessage "), HavePrefix("CheckpointCreated "), Equal("FilesChanged added plan.md")))
		Expect(read(ctx, history.EntriesQuery{Entries: both, Types: []string{history.EventTypeFile}, WithoutFileNames: true})).To(Equal([]string{"FilesChanged 1 file changed"}))
		Expect(read(ctx, history.EntriesQuery{Entries: both, Name: "b"})).To(BeEmpty())
		events, err := store.Entries(ctx, history.EntriesQuery{Namespace: history.Namespace{Key: "other"}, Entries: both})
		Expect(err).NotTo(HaveOccurred())
		Expect(events).To(BeEmpty(), "of another namespace")
		page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: w.task.Namespace, Name: "a", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		same, err := store.Entries(ctx, history.EntriesQuery{Namespace: history.Namespace{Key: w.task.Namespace}, Entries: both})
		Expect(err).NotTo(HaveOccurred())
		Expect(same).To(ConsistOf(page.Events), "they are as in the timeline")
	})

	It("are of a contract once that is known, with those that were there before", func(ctx SpecContext) {
		Expect(store.RecordEvents(ctx, []history.Event{event("1", time.Now())})).To(Succeed())
		first := next()
		ofContract := history.EntriesQuery{Contract: "port", Entries: []history.NewEntry{first}}
		Expect(read(ctx, ofContract)).To(BeEmpty())

		kept := history.KeptSpec{Spec: `{}`, Membership: history.Membership{Contract: "port", Phase: "Plan"}}
		Expect(store.KeepSpec(ctx, w.task.Key(), kept)).To(Succeed())
		known := next()
		Expect(known).To(Equal(history.NewEntry{Task: w.task.Key()}))
		Expect(read(ctx, history.EntriesQuery{Contract: "port", Entries: []history.NewEntry{known}})).To(ContainElement("TaskStarted it runs"))
		Expect(read(ctx, history.EntriesQuery{Contract: "another", Entries: []history.NewEntry{known}})).To(BeEmpty())
		Expect(read(ctx, history.EntriesQuery{Entries: []history.NewEntry{known}})).To(BeEmpty(), "who follows the namespace has had them")
		Expect(read(ctx, ofContract)).To(Equal([]string{"TaskStarted it runs"}))

		kept.Membership.Phase = "Execute"
		Expect(store.KeepSpec(ctx, w.task.Key(), kept)).To(Succeed())
		Expect(store.RecordEvents(ctx, []history.Event{event("2", time.Now())})).To(Succeed())
		Expect(next()).To(HaveField("Event", "2"))
	})

	It("are of a contract as soon as an event tells it, though the task never begins", func(ctx SpecContext) {
		waits := event("1", time.Now())
		waits.Task = taskNamed("waits")
		Expect(store.RecordEvents(ctx, []history.Event{waits})).To(Succeed())
		Expect(next()).To(HaveField("Event", "1"))
		joins := waits
		joins.ID, joins.Contract = "2", "port"
		Expect(store.RecordEvents(ctx, []history.Event{joins})).To(Succeed())
		told := []history.NewEntry{next(), next()}
		Expect(told).To(ConsistOf(history.NewEntry{Task: waits.Task.Key(), Event: "2"}, history.NewEntry{Task: waits.Task.Key()}))
		Expect(read(ctx, history.EntriesQuery{Contract: "port", Entries: told})).To(HaveLen(3), "the one before, and the new one, which comes twice")
	})
})
