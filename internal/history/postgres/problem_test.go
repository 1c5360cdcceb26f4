package postgres_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("Problems that a daemon reports", func() {
	It("a problem lasts until it is cleared or another attempt begins", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		report := func(attempt int64, problem *history.Problem) error {
			return store.Report(t.Context(), w.task, attempt, problem)
		}
		expect := func(want *history.Problem) {
			t.Helper()
			if d := cmp.Diff(want, w.state().Problem); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		}
		expect(nil)
		full := &history.Problem{Reason: "VolumeFull", Message: "make room"}
		for range 2 {
			if err := report(1, full); err != nil {
				t.Fatal(err)
			}
			expect(full)
		}
		w.append(user("what is written meanwhile leaves it alone"))
		begin(t, store, w.task, 1)
		expect(full)
		if err := report(1, nil); err != nil {
			t.Fatal(err)
		}
		expect(nil)

		if err := report(1, full); err != nil {
			t.Fatal(err)
		}
		begin(t, store, w.task, 2)
		expect(nil)
		if err := report(1, full); !errors.Is(err, history.ErrFenced) {
			t.Errorf("a report of an old attempt: %v", err)
		}
		expect(nil)
		if err := store.Report(t.Context(), taskNamed("b"), 1, full); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("a report of a task that has not begun: %v", err)
		}
	})
})
