package postgres_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("Problems that a daemon reports", func() {
	var (
		store *postgres.Store
		w     *writer
		full  = &history.Problem{Reason: "VolumeFull", Message: "make room"}
	)
	BeforeEach(func() {
		t := GinkgoTB()
		store = openPool(t, pg.Database(t), postgres.Pool{Limits: postgres.Limits{ProblemEvery: time.Nanosecond}})
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("a task has none at first", func() {
		Expect(w.state().Problem).To(BeNil())
	})

	It("a report of a task that has not begun is refused", func(ctx SpecContext) {
		Expect(store.Report(ctx, taskNamed("b"), 1, full)).To(MatchError(history.ErrNotFound))
	})

	// Each change is a write of the Task's status.
	It("changes no more often than once in a while, also from one to another and back", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openPool(t, dsn, postgres.Pool{Limits: postgres.Limits{ProblemEvery: time.Minute}})
		w := begin(t, store, taskNamed("b"), 1)
		Expect(store.Report(ctx, w.task, 1, full)).To(Succeed())
		for n := range 3 {
			Expect(store.Report(ctx, w.task, 1, &history.Problem{Reason: "VolumeFull", Message: fmt.Sprint(n)})).To(MatchError(history.ErrTooSoon))
			Expect(store.Report(ctx, w.task, 1, nil)).To(MatchError(history.ErrTooSoon))
		}
		Expect(store.Report(ctx, w.task, 1, full)).To(Succeed(), "which is the case already")
		Expect(w.state().Problem).To(Equal(full))

		By("waiting")
		Expect(connect(t, dsn).Exec(ctx, "UPDATE tasks SET problem_at = now() - interval '2 minutes'")).Error().NotTo(HaveOccurred())
		Expect(store.Report(ctx, w.task, 1, nil)).To(Succeed())
		Expect(w.state().Problem).To(BeNil())
	})

	When("a problem is reported", func() {
		BeforeEach(func(ctx SpecContext) {
			for range 2 {
				Expect(store.Report(ctx, w.task, 1, full)).To(Succeed())
				Expect(w.state().Problem).To(Equal(full))
			}
		})

		It("it lasts while records are appended and the attempt begins again", func() {
			w.append(user("what is written meanwhile leaves it alone"))
			begin(GinkgoTB(), store, w.task, 1)
			Expect(w.state().Problem).To(Equal(full))
		})

		It("it lasts until it is cleared, and may be reported again", func(ctx SpecContext) {
			Expect(store.Report(ctx, w.task, 1, nil)).To(Succeed())
			Expect(w.state().Problem).To(BeNil())
			Expect(store.Report(ctx, w.task, 1, full)).To(Succeed())
			Expect(w.state().Problem).To(Equal(full))
		})

		It("it lasts until another attempt begins, and the older one cannot report it again", func(ctx SpecContext) {
			begin(GinkgoTB(), store, w.task, 2)
			Expect(w.state().Problem).To(BeNil())
			Expect(store.Report(ctx, w.task, 1, full)).To(MatchError(history.ErrFenced))
			Expect(w.state().Problem).To(BeNil())
		})
	})
})
