package postgres_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("The last spec of a task", func() {
	task := history.Task{Namespace: "team", Name: "fix", UID: "first-uid"}
	first := history.KeptSpec{Spec: `{"prompt":"a\\u0000b"}`, Variables: []string{"TOKEN"}, Fields: []string{}}
	second := history.KeptSpec{Spec: `{"prompt":"b"}`, Variables: []string{}, Fields: []string{"spec.x"}}
	var store *postgres.Store
	BeforeEach(func() { store = open(GinkgoTB()) })

	It("is kept, replaced, and known in its namespace only", func(ctx SpecContext) {
		Expect(store.KeptSpec(ctx, task.Key())).Error().To(MatchError(history.ErrNotFound))
		for _, kept := range []history.KeptSpec{first, first, second} {
			Expect(store.KeepSpec(ctx, task.Key(), kept)).To(Succeed())
			Expect(store.KeptSpec(ctx, task.Key())).To(Equal(kept))
		}
		foreign := history.Key{Namespace: "others", UID: task.UID}
		Expect(store.KeepSpec(ctx, foreign, first)).To(Succeed())
		Expect(store.KeptSpec(ctx, foreign)).Error().To(MatchError(history.ErrNotFound))
		Expect(store.KeptSpec(ctx, task.Key())).To(Equal(second))
	})

	It("is deleted with the history, and not kept any more", func(ctx SpecContext) {
		w := begin(GinkgoTB(), store, task, 1)
		Expect(store.KeepSpec(ctx, task.Key(), first)).To(Succeed())
		remove(GinkgoTB(), w)
		Expect(store.KeepSpec(ctx, task.Key(), second)).To(Succeed())
		Expect(store.KeptSpec(ctx, task.Key())).Error().To(MatchError(history.ErrNotFound))
	})

	DescribeTable("follows a history that another task continues, whose own spec counts",
		func(ctx SpecContext, has bool) {
			begin(GinkgoTB(), store, task, 1)
			next := history.Task{Namespace: "team", Name: "fix", UID: "second-uid"}
			Expect(store.KeepSpec(ctx, task.Key(), first)).To(Succeed())
			want := first
			if has {
				Expect(store.KeepSpec(ctx, next.Key(), second)).To(Succeed())
				want = second
			}
			Expect(store.Adopt(ctx, next, task.UID)).To(Succeed())
			Expect(store.KeptSpec(ctx, next.Key())).To(Equal(want))
			Expect(store.KeptSpec(ctx, task.Key())).Error().To(MatchError(history.ErrNotFound))
		},
		Entry("before its own is kept", false),
		Entry("after its own is kept", true),
	)
})
