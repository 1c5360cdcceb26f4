package postgres_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("A rewind's end", func() {
	var (
		store   *postgres.Store
		w       *writer
		rewound history.Rewound
	)
	BeforeEach(func() {
		store = open(GinkgoTB())
		w = begin(GinkgoTB(), store, taskNamed("a"), 1)
		w.append(user("1"), checkpoint(1), agent("2"), checkpoint(2))
		rewound = history.Rewound{Scope: "Code", Paths: []string{"src", "a\x00b"}, From: 2, To: 1}
	})
	ends := func(id string, r *history.Rewound) history.Record {
		return history.Record{Move: &history.MoveOperation{ID: "Rewind/" + id + "/done", Checkpoint: 1, Reason: "rewind complete", KeepPosition: true, Rewound: r}}
	}

	It("is kept with what it has done, once", func(ctx SpecContext) {
		w.append(ends("r", &rewound))
		want := history.Rewind{ID: "r", Completed: true, Rewound: &history.Rewound{Scope: "Code", Paths: []string{"src", "a␀b"}, From: 2, To: 1}}
		Expect(store.Rewind(ctx, w.task.Key(), "r")).To(BeComparableTo(want))

		By("being sent again, otherwise")
		w.append(ends("r", &history.Rewound{Scope: "Both", From: 1}))
		Expect(store.Rewind(ctx, w.task.Key(), "r")).To(BeComparableTo(want))

		By("asking for the newest one")
		w.append(ends("s.2", &rewound), history.Record{Move: &history.MoveOperation{ID: "Resume/x", KeepPosition: true}})
		Expect(store.Rewind(ctx, w.task.Key(), "")).To(And(HaveField("ID", "s.2"), HaveField("Completed", true)))
	})

	It("of an older daemon says nothing more", func(ctx SpecContext) {
		w.append(ends("r", nil))
		Expect(store.Rewind(ctx, w.task.Key(), "r")).To(BeComparableTo(history.Rewind{ID: "r", Completed: true}))
	})

	It("is told from a rewind that failed, or was never heard of", func(ctx SpecContext) {
		w.append(history.Record{Move: &history.MoveOperation{ID: "Rewind/r", Checkpoint: 1}},
			history.Record{Move: &history.MoveOperation{ID: "Rewind/r/undone", Checkpoint: 2}})
		Expect(store.Rewind(ctx, w.task.Key(), "r")).To(BeComparableTo(history.Rewind{ID: "r", Failed: true}))
		Expect(store.Rewind(ctx, w.task.Key(), "%")).To(BeComparableTo(history.Rewind{ID: "%"}))
		Expect(store.Rewind(ctx, w.task.Key(), "")).Error().To(MatchError(history.ErrNotFound))
	})

	It("is not shown to another namespace", func(ctx SpecContext) {
		w.append(ends("r", &rewound))
		other := history.Key{Namespace: "other", UID: w.task.UID}
		Expect(store.Rewind(ctx, other, "r")).To(BeComparableTo(history.Rewind{ID: "r"}))
		Expect(store.Rewind(ctx, other, "")).Error().To(MatchError(history.ErrNotFound))
	})

	It("comes along with an export", func(ctx SpecContext) {
		w.append(ends("r", &rewound))
		lines := export(GinkgoTB(), store, w.task)
		remove(GinkgoTB(), w)
		Expect(importing(ctx, store, lines)).Error().NotTo(HaveOccurred())
		Expect(store.Rewind(ctx, w.task.Key(), "r")).To(HaveField("Rewound", HaveValue(HaveField("Paths", []string{"src", "a␀b"}))))
		Expect(export(GinkgoTB(), store, w.task)).To(ContainElement(ContainSubstring(`"rewound":{"scope":"Code","paths":["src","a␀b"],"from":2,"to":1}`)))
	})
})
