package postgres_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("What a task has published", func() {
	const ref = "refs/heads/clew/fix"
	task := history.Task{Namespace: "team", Name: "fix", UID: "first-uid"}
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	var store *postgres.Store
	BeforeEach(func() { store = openAt(GinkgoTB(), pg.Database(GinkgoTB())) })

	published := func(n int64, commit string, at time.Time) history.Event {
		e := transition(task, n, "TaskPublished", at)
		e.Checkpoint, e.Publication = n, &history.Publication{Ref: ref, Commit: commit, Onto: "theirs", Number: n}
		return e
	}
	newest := SatisfyAll(HaveField("Commit", "c2"), HaveField("Onto", "theirs"), HaveField("Checkpoint", int64(2)), HaveField("Number", int64(2)), HaveField("Time", BeTemporally("==", noon.Add(time.Minute))))

	It("is the newest that was recorded for the ref, in whatever order and however often", func(ctx SpecContext) {
		first, second := published(1, "c1", noon), published(2, "c2", noon.Add(time.Minute))
		for _, events := range [][]history.Event{{second}, {first}, {first, second}, {first}} {
			Expect(store.RecordEvents(ctx, events)).To(Succeed())
			Expect(store.Publication(ctx, task.Key(), ref)).To(newest)
		}
		Expect(store.Publication(ctx, task.Key(), "refs/heads/other")).Error().To(MatchError(history.ErrNotFound))
		Expect(store.Publication(ctx, history.Key{Namespace: "elsewhere", UID: task.UID}, ref)).Error().To(MatchError(history.ErrNotFound))
	})

	It("is the newest by its number, whatever the clock of the manager said", func(ctx SpecContext) {
		first, second := published(1, "c1", noon.Add(time.Hour)), published(2, "c2", noon.Add(time.Minute))
		for _, events := range [][]history.Event{{first}, {second}, {first}} {
			Expect(store.RecordEvents(ctx, events)).To(Succeed())
		}
		Expect(store.Publication(ctx, task.Key(), ref)).To(newest)
	})

	It("goes over to the task that adopts the history, and is deleted with it", func(ctx SpecContext) {
		next := history.Task{Namespace: "team", Name: "fix", UID: "second-uid"}
		begin(GinkgoTB(), store, task, 1)
		Expect(store.RecordEvents(ctx, []history.Event{published(1, "c1", noon), published(2, "c2", noon.Add(time.Minute))})).To(Succeed())
		Expect(store.Adopt(ctx, next, task.UID)).To(Succeed())
		Expect(store.Publication(ctx, next.Key(), ref)).To(newest)
		Expect(store.Publication(ctx, task.Key(), ref)).Error().To(MatchError(history.ErrNotFound))
		Expect(store.DeleteTask(ctx, next.UID)).Error().NotTo(HaveOccurred())
		Expect(store.Publication(ctx, next.Key(), ref)).Error().To(MatchError(history.ErrNotFound))
	})
})
