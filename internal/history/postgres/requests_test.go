package postgres_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// asks returns the record of a call that waits.
func asks(id string, change ...func(*history.ToolRequest)) history.Record {
	now := time.Now().UTC().Truncate(time.Millisecond)
	q := &history.ToolRequest{ID: id, Tool: "Bash", Input: `{"command":"git push"}`, InputDigest: "d1", Message: "Ask first.",
		Since: now, Deadline: now.Add(time.Hour)}
	for _, f := range change {
		f(q)
	}
	return history.Record{Request: q}
}

func answered(id string) history.Record { return history.Record{RequestEnd: id} }

var _ = Describe("Tool calls that wait for an answer", func() {
	var (
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		store = open(GinkgoTB())
		w = begin(GinkgoTB(), store, taskNamed("a"), 1)
	})
	waiting := func() (ids []string) {
		GinkgoHelper()
		for _, q := range w.state().Requests {
			ids = append(ids, q.ID)
		}
		return ids
	}

	It("are known from their record on, as it tells of them, and count as no message", func() {
		asked := asks("1-a")
		w.append(user("push it"), asked)
		want := *asked.Request
		want.Attempt = 1
		state := w.state()
		Expect(state.Requests).To(HaveExactElements(want))
		Expect(state.Totals.Messages).To(BeEquivalentTo(1))
	})

	It("are no work of the agent's, and neither are notes about them, other output and what a killed one has left", func() {
		w.append(agent("I push"))
		worked := w.state().WorkedAt
		Expect(worked).NotTo(BeZero())
		w.append(asks("1-a"), says(conversation.RoleSystem, "Clew asks a person."), says(conversation.RoleOutput, "still here"), interrupted("x"))
		state := w.state()
		Expect(state.WorkedAt).To(Equal(worked))
		Expect(state.ActiveAt).To(BeTemporally(">", worked))
		w.append(result("y"))
		Expect(w.state().WorkedAt).To(BeTemporally(">", worked))
	})

	It("wait until their end is recorded, whatever else is", func() {
		w.append(asks("1-a"), asks("1-b"))
		w.append(agent("in the meantime"))
		Expect(waiting()).To(HaveExactElements("1-a", "1-b"))
		w.append(answered("1-a"), answered("never-asked"))
		Expect(waiting()).To(HaveExactElements("1-b"))
		w.append(answered("1-b"))
		Expect(waiting()).To(BeEmpty())
	})

	It("are there once when their record is sent again", func(ctx SpecContext) {
		records := w.number(asks("1-a"))
		for range 2 {
			_, err := store.Append(ctx, w.task, 1, records)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(waiting()).To(HaveExactElements("1-a"))
	})

	It("end with their attempt, also if its last records come with those of the next", func(ctx SpecContext) {
		w.append(asks("1-a"))
		left := w.number(asks("1-left-behind"))
		last := w.last
		w = begin(GinkgoTB(), store, taskNamed("a"), 2)
		w.last = last
		Expect(waiting()).To(BeEmpty())
		_, err := store.Append(ctx, w.task, 2, append(left, w.number(asks("2-a"))...))
		Expect(err).NotTo(HaveOccurred())
		Expect(waiting()).To(HaveExactElements("2-a"))
	})

	It("outlast a daemon that begins the same attempt again", func() {
		w.append(asks("1-a"))
		begin(GinkgoTB(), store, w.task, 1)
		Expect(waiting()).To(HaveExactElements("1-a"))
	})

	It("are bounded, however many a hostile daemon sends", func() {
		for i := range 40 {
			w.append(asks(fmt.Sprintf("1-%d", i)))
		}
		Expect(waiting()).To(HaveLen(32))
	})

	It("have a deadline that a rule can have set", func() {
		w.append(asks("1-a", func(q *history.ToolRequest) { q.Deadline = time.Now().AddDate(900000, 0, 0) }),
			asks("1-b", func(q *history.ToolRequest) { q.Deadline, q.Since = time.Time{}, time.Time{} }))
		for _, q := range w.state().Requests {
			Expect(q.Deadline).To(BeTemporally("~", time.Now(), time.Minute), "request %s", q.ID)
		}
	})
})
