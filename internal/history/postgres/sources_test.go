package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// clockwork is a store in which the test makes time pass.
type clockwork struct {
	t     testing.TB
	store *postgres.Store
	conn  *pgx.Conn
}

func newClockwork(t testing.TB) clockwork {
	GinkgoHelper()
	dsn := pg.Database(t)
	return clockwork{t, openAt(t, dsn), connect(t, dsn)}
}

// minutes lets n minutes pass.
func (c clockwork) minutes(n int) {
	GinkgoHelper()
	for _, statement := range []string{
		"UPDATE awaited_sources SET since = since - make_interval(mins => $1), seen = seen - make_interval(mins => $1)",
		"UPDATE tasks SET updated_at = updated_at - make_interval(mins => $1)",
	} {
		Expect(c.conn.Exec(c.t.Context(), statement, n)).Error().NotTo(HaveOccurred())
	}
}

func (c clockwork) begin(fork history.Task, source *history.Source) (history.TaskState, error) {
	return c.store.Begin(c.t.Context(), fork, 3, source, history.BeginOptions{})
}

// refused checks that a fork waits for its source.
func (c clockwork) refused(fork history.Task, source *history.Source) {
	GinkgoHelper()
	_, err := c.begin(fork, source)
	Expect(err).To(MatchError(history.ErrNotFound), "the fork waits for its source")
}

// from returns the source of a fork that has, by its own clock, waited long for it.
func from(uid string, number int64) *history.Source {
	return &history.Source{TaskUID: uid, Checkpoint: number, IncludeConversation: true, MayBeLost: true, Position: 40}
}

var _ = Describe("A fork", func() {
	var c clockwork
	fork := taskNamed("fork")
	BeforeEach(func() { c = newClockwork(GinkgoTB()) })

	When("its source is lost", func() {
		It("begins after a wait, and records once what it lacks", func() {
			source := from("lost", 7)
			for range 6 {
				c.refused(fork, source)
				c.minutes(1)
			}
			for range 2 {
				Expect(c.begin(fork, source)).To(And(
					HaveField("LostRecords", int64(40)), HaveField("LastSequence", int64(0)), HaveField("Position.Position", int64(1))))
			}
			gap := ContainSubstring("The first 40 messages of the conversation, which this task inherited from checkpoint 7 of the task with UID lost, were lost")
			w := begin(GinkgoTB(), c.store, fork, 3)
			w.append(user("of the fork"), checkpoint(1), agent("on"))
			Expect(w.texts()).To(HaveExactElements(gap, Equal("U of the fork"), Equal("A on")), "the gap comes before anything else")
			Expect(w.state()).To(And(
				HaveField("LostRecords", int64(40)), HaveField("LastSequence", int64(3)), HaveField("Latest.Position.Position", int64(2))))
			Expect(strings.Count(reasonsOf(GinkgoTB(), w), "HistoryGap")).To(Equal(1), "events of the gap")

			By("going back to the fork's first message, which follows the gap")
			w.move("op", 1)
			Expect(w.texts()).To(HaveExactElements(gap, Equal("U of the fork")))
		})

		// The name is chosen by a pod.
		It("shortens the name of its source in what it records", func() {
			source := from(strings.Repeat("x", 1<<20), 7)
			for range 6 {
				c.refused(fork, source)
				c.minutes(1)
			}
			Expect(c.begin(fork, source)).Error().NotTo(HaveOccurred())
			Expect(begin(GinkgoTB(), c.store, fork, 3).texts()).To(HaveEach(WithTransform(func(text string) int { return len(text) }, BeNumerically("<=", 1000))))
		})
	})

	// The store was restored to a state before three generations of tasks. The middle one
	// is idle: it notices 5 minutes after its fork, waits for the first one, which is
	// gone, and then sends what its fork begins with.
	When("its source is a fork that itself waits", func() {
		It("waits until its checkpoint was sent again", func() {
			middle := taskNamed("middle")
			for range 5 {
				c.refused(fork, from(middle.UID, 1))
				c.minutes(1)
			}
			for range 6 {
				c.refused(middle, from("lost", 7))
				c.refused(fork, from(middle.UID, 1))
				c.minutes(1)
			}
			Expect(c.store.Begin(GinkgoTB().Context(), middle, 1, from("lost", 7), history.BeginOptions{})).Error().NotTo(HaveOccurred())
			c.refused(fork, from(middle.UID, 1))
			w := begin(GinkgoTB(), c.store, middle, 1)
			w.append(user("of the middle"))
			c.minutes(1)
			c.refused(fork, from(middle.UID, 1))
			w.append(checkpoint(1))
			Expect(c.begin(fork, from(middle.UID, 1))).To(HaveField("LostRecords", BeZero()))
			Expect(begin(GinkgoTB(), c.store, fork, 3).texts()).To(HaveExactElements(ContainSubstring("were lost"), Equal("U of the middle")))
		})
	})

	When("its source is active", func() {
		// The checkpoint may be lost all the same.
		It("waits half an hour, and not forever", func() {
			w := begin(GinkgoTB(), c.store, taskNamed("source"), 1)
			for minute := range 30 {
				w.append(agent(fmt.Sprint(minute)))
				c.refused(fork, from(w.task.UID, 1))
				c.minutes(1)
			}
			w.append(agent("30"))
			Expect(c.begin(fork, from(w.task.UID, 1))).To(HaveField("LostRecords", int64(40)))
		})
	})

	When("it is silent", func() {
		// While the store is down, the source cannot send anything either.
		It("waits for its source anew after a long silence", func() {
			source := from("lost", 7)
			c.refused(fork, source)
			c.minutes(10)
			for range 5 {
				c.refused(fork, source)
				c.minutes(1)
			}
			c.refused(fork, source)
		})

		// An outage of some minutes is not time in which the source could have arrived;
		// and a task whose pod keeps being restarted does not wait forever.
		It("counts each short silence as a minute of its wait", func() {
			source := from("lost", 7)
			for range 6 {
				c.refused(fork, source)
				c.minutes(6)
			}
			Expect(c.begin(fork, source)).Error().NotTo(HaveOccurred())
		})
	})

	When("its source is a task of another namespace", func() {
		// The pod that names the source is not to be trusted.
		It("does not wait until that task has begun", func() {
			elsewhere := history.Task{Namespace: "other", Name: "source", UID: "uid-of-source"}
			source := from(elsewhere.UID, 1)
			for range 6 {
				c.refused(elsewhere, from("lost", 7))
				c.refused(fork, source)
				c.minutes(1)
			}
			Expect(c.begin(fork, source)).Error().NotTo(HaveOccurred())
		})
	})

	When("it waits", func() {
		source := from("uid-of-source", 1)
		waiting := func() (n int) {
			GinkgoHelper()
			Expect(c.conn.QueryRow(GinkgoTB().Context(), "SELECT count(*) FROM awaited_sources").Scan(&n)).To(Succeed())
			return n
		}
		BeforeEach(func() {
			c.refused(taskNamed("gone"), from("lost", 7))
			c.minutes(25 * 60)
			c.refused(fork, source)
			Expect(waiting()).To(Equal(2))
		})

		It("is forgotten in time if its source never arrives, and at once if it does", func(ctx SpecContext) {
			Expect(c.store.Clean(ctx, postgres.MaintenanceOptions{})).To(Succeed())
			Expect(waiting()).To(Equal(1), "the one that has waited for more than a day is forgotten")
			begin(GinkgoTB(), c.store, taskNamed("source"), 1).append(user("1"), checkpoint(1))
			Expect(c.begin(fork, source)).Error().NotTo(HaveOccurred())
			Expect(waiting()).To(BeZero())
		})
	})
})
