package postgres_test

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("The last spec of a task", func() {
	task := history.Task{Namespace: "team", Name: "fix", UID: "first-uid"}
	first := history.KeptSpec{Spec: `{"prompt":"a\\u0000b"}`, Variables: []string{"TOKEN"}, Fields: []string{}}
	second := history.KeptSpec{Spec: `{"prompt":"b"}`, Variables: []string{}, Fields: []string{"spec.x"},
		Membership: history.Membership{Contract: "port", Role: "Worker", Phase: "Plan", ParentUID: "lead-uid"}}
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

	It("counts for its namespace, beyond whose limit nothing of it is kept", func(ctx SpecContext) {
		large := history.KeptSpec{Spec: `"` + strings.Repeat("spec ", 10<<10) + `"`, Variables: []string{}, Fields: []string{}}
		dsn := pg.Database(GinkgoTB())
		limits := postgres.Limits{NamespaceBytes: 100 << 10}
		next := history.Task{Namespace: "team", Name: "next", UID: "next-uid"}
		Expect(limited(GinkgoTB(), dsn, limits).KeepSpec(ctx, task.Key(), large)).To(Succeed())
		full := limited(GinkgoTB(), dsn, limits)
		large.OperatingMode = "Suspended"
		Expect(full.KeepSpec(ctx, next.Key(), large)).To(Succeed())
		Expect(full.KeepSpec(ctx, task.Key(), large)).To(Succeed())
		Expect(full.KeptSpec(ctx, task.Key())).To(Equal(large), "what is there already needs no more room")
		Expect(full.KeptSpec(ctx, next.Key())).To(SatisfyAll(HaveField("Spec", ""), HaveField("OperatingMode", "Suspended")))
		Expect(full.KeepSpec(ctx, history.Key{Namespace: "others", UID: "other-uid"}, large)).To(Succeed())
		Expect(full.KeptSpec(ctx, history.Key{Namespace: "others", UID: "other-uid"})).To(Equal(large))

		By("storing records, for which it leaves less room")
		w := begin(GinkgoTB(), limited(GinkgoTB(), dsn, limits), next, 1)
		Expect(w.store.Append(ctx, w.task, 1, w.number(noise(60)))).Error().To(MatchError(history.ErrLimitReached))
	})

	It("is deleted an hour later if its task never began, and is gone", func(ctx SpecContext) {
		there, began := history.Task{Namespace: "team", Name: "there", UID: "uid-there"}, history.Task{Namespace: "team", Name: "began", UID: "uid-began"}
		dsn := pg.Database(GinkgoTB())
		store := limited(GinkgoTB(), dsn, postgres.Limits{})
		begin(GinkgoTB(), store, began, 1)
		for _, task := range []history.Task{task, there, began} {
			Expect(store.KeepSpec(ctx, task.Key(), first)).To(Succeed())
		}
		exists := func(_ context.Context, uid string) (bool, error) { return uid == there.UID, nil }
		maintain := func() { clean(GinkgoTB(), store, postgres.MaintenanceOptions{HasUID: exists}) }
		maintain()
		Expect(store.KeptSpec(ctx, task.Key())).To(Equal(first))
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, "UPDATE task_specs SET kept_at = kept_at - interval '61 minutes'")).Error().NotTo(HaveOccurred())
		maintain()
		Expect(store.KeptSpec(ctx, task.Key())).Error().To(MatchError(history.ErrNotFound))
		for _, task := range []history.Task{there, began} {
			Expect(store.KeptSpec(ctx, task.Key())).To(Equal(first), task.Name)
		}
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
