package postgres_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("A history that another task continues", func() {
	first := history.Task{Namespace: "team", Name: "fix", UID: "first-uid"}
	second := history.Task{Namespace: "team", Name: "fix", UID: "second-uid"}
	var store *postgres.Store
	var dsn string
	var w *writer
	BeforeEach(func(ctx SpecContext) {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		w = begin(GinkgoTB(), store, first, 3)
		Expect(store.RecordEvents(ctx, []history.Event{transition(first, 1, "TaskStarted", time.Now())})).To(Succeed())
		w.append(user("do it"), agent("on it"), checkpoint(1), checkpoint(2))
		Expect(store.MoveConversation(ctx, first, 3, history.MoveOperation{ID: "Rewind/r1", Checkpoint: 1})).Error().NotTo(HaveOccurred())
	})

	It("belongs to the new UID, with everything that was recorded", func(ctx SpecContext) {
		Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid"}))
		texts := w.texts()
		for range 2 { // it may be repeated
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid", Done: true}))
		}
		Expect(store.TaskState(ctx, "first-uid")).Error().To(MatchError(history.ErrNotFound))
		next := begin(GinkgoTB(), store, second, 4)
		Expect(next.last).To(BeEquivalentTo(4), "records go on where they ended")
		Expect(next.state()).To(SatisfyAll(HaveField("Latest.Number", int64(2)), HaveField("CompletedOperations", ContainElement("Rewind/r1"))))
		next.append(checkpoint(3))
		Expect(next.texts()).To(Equal(texts))
		Expect(store.Checkpoint(ctx, second.Key(), 1)).To(HaveField("Commit", "c1"))
		Expect(reasonsOf(GinkgoTB(), next)).To(ContainSubstring("TaskStarted"))

		By("numbering the transitions of the new task from 1")
		Expect(store.RecordedTransitions(ctx, "team", "second-uid")).To(BeZero())
		Expect(store.RecordEvents(ctx, []history.Event{transition(second, 1, "TaskResumed", time.Now())})).To(Succeed())
		page, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Tasks).To(HaveExactElements(SatisfyAll(HaveField("UID", "second-uid"), HaveField("State", "Running"))))
	})

	It("is written to by the former task no more, and is found by what starts from that", func(ctx SpecContext) {
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.Append(ctx, first, 3, w.number(user("late")))).Error().To(MatchError(history.ErrFenced))
		Expect(store.Begin(ctx, first, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
		fork := taskNamed("fork")
		Expect(store.Begin(ctx, fork, 1, &history.Source{TaskUID: "first-uid", Checkpoint: 2, IncludeConversation: true}, history.BeginOptions{})).
			To(HaveField("Position.Position", int64(2)))
	})

	It("is adopted by one task after the other, and deleted with the last", func(ctx SpecContext) {
		third := history.Task{Namespace: "team", Name: "fix", UID: "third-uid"}
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.FormerTasks(ctx, "second-uid")).To(Equal([]history.FormerTask{{UID: "first-uid"}}))
		Expect(store.Adopt(ctx, third, "second-uid")).To(Succeed())
		Expect(store.Adoption(ctx, third)).To(Equal(history.Adoption{Former: "second-uid", Done: true}))
		Expect(store.FormerTasks(ctx, "third-uid")).To(Equal([]history.FormerTask{{UID: "first-uid"}, {UID: "second-uid"}}))
		ofThird := func(former string) history.TaskAdoption {
			return history.TaskAdoption{Task: history.Key{Namespace: "team", UID: "third-uid"}, Former: history.FormerTask{UID: former}}
		}
		Expect(store.Adoptions(ctx, "", 1)).To(Equal([]history.TaskAdoption{ofThird("first-uid")}))
		Expect(store.Adoptions(ctx, "first-uid", 9)).To(Equal([]history.TaskAdoption{ofThird("second-uid")}))

		Expect(store.DeleteTask(ctx, "third-uid")).Error().NotTo(HaveOccurred())
		for _, task := range []history.Task{first, second, third} {
			Expect(store.Begin(ctx, task, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced), task.UID)
		}
		Expect(store.Adoption(ctx, history.Task{Namespace: "team", Name: "fix", UID: "fourth-uid"})).To(BeZero())
	})

	It("is not taken by a task that has its own, nor by one of another name or namespace", func(ctx SpecContext) {
		for _, other := range []history.Task{{Namespace: "team", Name: "other", UID: "o"}, {Namespace: "elsewhere", Name: "fix", UID: "o"}} {
			Expect(store.Adoption(ctx, other)).To(BeZero())
			Expect(store.Adopt(ctx, other, "first-uid")).To(MatchError(history.ErrNotFound))
		}
		begin(GinkgoTB(), store, second, 1)
		Expect(store.Adoption(ctx, second)).To(BeZero())
		Expect(store.Adopt(ctx, second, "first-uid")).To(MatchError(history.ErrExists))
		Expect(store.Adopt(ctx, second, "none")).To(MatchError(history.ErrNotFound))
		Expect(w.state()).To(HaveField("UID", "first-uid"))
	})
})
