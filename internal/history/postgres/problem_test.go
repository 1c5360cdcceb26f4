package postgres_test

import (
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
		store = open(t)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("a task has none at first", func() {
		Expect(w.state().Problem).To(BeNil())
	})

	It("a report of a task that has not begun is refused", func(ctx SpecContext) {
		Expect(store.Report(ctx, taskNamed("b"), 1, full)).To(MatchError(history.ErrNotFound))
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
