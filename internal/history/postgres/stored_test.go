package postgres_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("What is known of a task's attempts", func() {
	var w *writer
	BeforeEach(func() { w = begin(GinkgoTB(), open(GinkgoTB()), taskNamed("a"), 1) })
	stored := history.Record{Stored: true}

	It("has the newest attempt whose pod has stored everything", func() {
		w.append(durable(1))
		Expect(w.state().StoredAttempt).To(BeZero())
		w.append(durable(2), stored)
		Expect(w.state()).To(And(HaveField("StoredAttempt", int64(1)), HaveField("Attempt", int64(1))))

		By("not taking it for that of an attempt that has begun since")
		w = begin(GinkgoTB(), w.store, w.task, 2)
		Expect(w.state()).To(And(HaveField("StoredAttempt", int64(1)), HaveField("Attempt", int64(2))))
		late := w.number(stored)
		late[0].Attempt = 1 // an earlier pod had not sent it
		Expect(w.store.Append(GinkgoTB().Context(), w.task, 2, late)).To(Equal(w.last))
		Expect(w.state().StoredAttempt).To(Equal(int64(1)))
		w.append(stored)
		Expect(w.state().StoredAttempt).To(Equal(int64(2)))
	})

	It("has when the agent of the newest one was first heard of, and not when its prompt was", func() {
		w.append(user("do it"), result("interrupted before"))
		Expect(w.state().AgentAttempt).To(BeZero())
		before := time.Now().Truncate(time.Microsecond)
		w.append(agent("I begin"))
		first := w.state()
		Expect(first).To(And(HaveField("AgentAttempt", int64(1)), HaveField("AgentSince", BeTemporally(">=", before))))
		w.append(agent("I go on"), usage(1, 1, 1))
		Expect(w.state().AgentSince).To(BeTemporally("==", first.AgentSince))

		w = begin(GinkgoTB(), w.store, w.task, 2)
		w.append(user("and now?"))
		Expect(w.state().AgentAttempt).To(Equal(int64(1)))
		w.append(usage(1, 1, 1))
		Expect(w.state()).To(And(HaveField("AgentAttempt", int64(2)), HaveField("AgentSince", BeTemporally(">", first.AgentSince))))
	})

	It("has how long the agent has run, by the transition that says most", func(ctx SpecContext) {
		transition := func(number, seconds int64) history.Event {
			return history.Event{ID: history.EventID(w.task.UID, number), Transition: number, Task: w.task, Time: time.Now(),
				Type: history.EventTypeTask, Reason: "TaskSuspended", ActiveSeconds: seconds}
		}
		Expect(w.state().ActiveSeconds).To(BeZero())
		Expect(w.store.RecordEvents(ctx, []history.Event{transition(1, 0), transition(2, 600)})).To(Succeed())
		Expect(w.state().ActiveSeconds).To(Equal(int64(600)))
		Expect(w.store.RecordEvents(ctx, []history.Event{transition(3, 1200)})).To(Succeed())
		Expect(w.store.RecordEvents(ctx, []history.Event{transition(4, 300)})).To(Succeed(), "of a status that was restored from an older copy")
		Expect(w.state().ActiveSeconds).To(Equal(int64(1200)))
	})

	It("keeps that everything is stored although a limit is reached", func(ctx SpecContext) {
		store := limited(GinkgoTB(), pg.Database(GinkgoTB()), postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond})
		full := begin(GinkgoTB(), store, taskNamed("full"), 1)
		full.append(user("do it"), noise(60))
		waiting := full.number(noise(60), stored)
		Expect(store.Append(ctx, full.task, 1, waiting)).Error().To(MatchError(history.ErrLimitReached))
		Expect(store.Append(ctx, full.task, 1, waiting)).To(Equal(full.last))
		Expect(full.state()).To(And(HaveField("LeftOutRecords", BeNumerically(">", 0)), HaveField("StoredAttempt", int64(1))))
	})
})
