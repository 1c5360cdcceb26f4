package postgres_test

import (
	"context"
	"errors"
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
	dsn := pg.Database(t)
	return clockwork{t, openAt(t, dsn), connect(t, dsn)}
}

// minutes lets n minutes pass.
func (c clockwork) minutes(n int) {
	c.t.Helper()
	for _, statement := range []string{
		"UPDATE awaited_sources SET since = since - make_interval(mins => $1), seen = seen - make_interval(mins => $1)",
		"UPDATE tasks SET updated_at = updated_at - make_interval(mins => $1)",
	} {
		if _, err := c.conn.Exec(context.Background(), statement, n); err != nil {
			c.t.Fatal(err)
		}
	}
}

// refused checks that a fork waits for its source.
func (c clockwork) refused(fork history.Task, source *history.Source) {
	c.t.Helper()
	state, err := c.store.Begin(c.t.Context(), fork, 3, source, history.BeginOptions{})
	if !errors.Is(err, history.ErrNotFound) {
		c.t.Fatalf("a fork did not wait for its source: %+v, %v", state, err)
	}
}

// from returns the source of a fork that has, by its own clock, waited long for it.
func from(uid string, number int64) *history.Source {
	return &history.Source{TaskUID: uid, Checkpoint: number, IncludeConversation: true, MayBeLost: true, Position: 40}
}

var _ = Describe("The source that a task starts from", func() {
	// The fork records what it lacks, before anything else and only once.
	It("a fork may begin without a source that is lost", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		store, fork := c.store, taskNamed("fork")
		source := from("lost", 7)
		for range 6 {
			c.refused(fork, source)
			c.minutes(1)
		}
		for range 2 {
			state, err := store.Begin(t.Context(), fork, 3, source, history.BeginOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(state).To(And(
				HaveField("LostRecords", int64(40)), HaveField("LastSequence", int64(0)), HaveField("Position.Position", int64(1))))
		}
		w := begin(t, store, fork, 3)
		w.append(user("of the fork"), checkpoint(1), agent("on"))
		texts := w.texts()
		if len(texts) != 3 || !strings.Contains(texts[0], "The first 40 messages of the conversation, which this task inherited from checkpoint 7 of the task with UID lost, were lost") {
			t.Fatalf("conversation %q, want the gap and two messages", texts)
		}
		Expect(w.state()).To(And(
			HaveField("LostRecords", int64(40)), HaveField("LastSequence", int64(3)), HaveField("Latest.Position.Position", int64(2))))
		if got := reasonsOf(t, w); strings.Count(got, "HistoryGap") != 1 {
			t.Errorf("timeline %s", got)
		}
		// Its own first message follows the gap.
		w.move("op", 1)
		if texts = w.texts(); len(texts) != 2 {
			t.Errorf("conversation %q after the move, want the gap and one message", texts)
		}
	})

	// The store was restored to a state before three generations of tasks. The middle one
	// is idle: it notices 5 minutes after its fork, waits for the first one, which is
	// gone, and then sends what its fork begins with.
	It("a fork of a fork waits until its source has begun", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		middle, fork := taskNamed("middle"), taskNamed("fork")
		for range 5 {
			c.refused(fork, from(middle.UID, 1))
			c.minutes(1)
		}
		for range 6 {
			c.refused(middle, from("lost", 7))
			c.refused(fork, from(middle.UID, 1))
			c.minutes(1)
		}
		if _, err := c.store.Begin(t.Context(), middle, 1, from("lost", 7), history.BeginOptions{}); err != nil {
			t.Fatal(err)
		}
		c.refused(fork, from(middle.UID, 1))
		w := begin(t, c.store, middle, 1)
		w.append(user("of the middle"))
		c.minutes(1)
		c.refused(fork, from(middle.UID, 1))
		w.append(checkpoint(1))
		state, err := c.store.Begin(t.Context(), fork, 3, from(middle.UID, 1), history.BeginOptions{})
		if err != nil || state.LostRecords != 0 {
			t.Fatalf("begin with the source sent again: %d lost records, want none; %v", state.LostRecords, err)
		}
		if texts := begin(t, c.store, fork, 3).texts(); len(texts) != 2 || texts[1] != "U of the middle" {
			t.Errorf("conversation %q, want the gap and the source's message", texts)
		}
	})

	// The checkpoint may be lost all the same.
	It("a fork does not wait forever for a source that is active", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		w := begin(t, c.store, taskNamed("source"), 1)
		waited := 0
		for ; waited < 60; waited++ {
			w.append(agent(fmt.Sprint(waited)))
			state, err := c.store.Begin(t.Context(), taskNamed("fork"), 3, from(w.task.UID, 1), history.BeginOptions{})
			if err == nil {
				Expect(state.LostRecords).To(BeEquivalentTo(40))
				break
			}
			c.minutes(1)
		}
		if waited != 30 {
			t.Errorf("it waited for %d minutes", waited)
		}
	})

	// While the store is down, the source cannot send anything either.
	It("a task that was silent waits for its source anew", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		fork, source := taskNamed("fork"), from("lost", 7)
		c.refused(fork, source)
		c.minutes(10)
		for range 5 {
			c.refused(fork, source)
			c.minutes(1)
		}
		c.refused(fork, source)
	})

	// The pod that names the source is not to be trusted.
	It("nobody waits for a task of another namespace", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		elsewhere := history.Task{Namespace: "other", Name: "source", UID: "uid-of-source"}
		fork, source := taskNamed("fork"), from(elsewhere.UID, 1)
		for range 6 {
			c.refused(elsewhere, from("lost", 7))
			c.refused(fork, source)
			c.minutes(1)
		}
		if _, err := c.store.Begin(t.Context(), fork, 3, source, history.BeginOptions{}); err != nil {
			t.Error(err)
		}
	})

	// In time if the source never arrived, at once if it did.
	It("a task that waited for a source is forgotten", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		waiting := func() (n int) {
			Expect(c.conn.QueryRow(t.Context(), "SELECT count(*) FROM awaited_sources").Scan(&n)).To(Succeed())
			return n
		}
		c.refused(taskNamed("gone"), from("lost", 7))
		c.minutes(25 * 60)
		c.refused(taskNamed("fork"), from("uid-of-source", 1))
		Expect(waiting()).To(Equal(2))
		Expect(c.store.Clean(t.Context(), postgres.MaintenanceOptions{})).To(Succeed())
		Expect(waiting()).To(Equal(1))
		begin(t, c.store, taskNamed("source"), 1).append(user("1"), checkpoint(1))
		_, err := c.store.Begin(t.Context(), taskNamed("fork"), 3, from("uid-of-source", 1), history.BeginOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(waiting()).To(BeZero())
	})

	// The name is chosen by a pod.
	It("the name of a lost source is shortened", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		fork, source := taskNamed("fork"), from(strings.Repeat("x", 1<<20), 7)
		for range 6 {
			c.refused(fork, source)
			c.minutes(1)
		}
		if _, err := c.store.Begin(t.Context(), fork, 3, source, history.BeginOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, text := range begin(t, c.store, fork, 3).texts() {
			if len(text) > 1000 {
				t.Errorf("%d bytes of %s", len(text), text[:200])
			}
		}
	})

	// An outage of some minutes is not time in which the source could have arrived; and a
	// task whose pod keeps being restarted does not wait forever.
	It("a silence counts for a minute", func() {
		t := GinkgoTB()
		c := newClockwork(t)
		fork, source := taskNamed("fork"), from("lost", 7)
		for range 6 {
			c.refused(fork, source)
			c.minutes(6)
		}
		if _, err := c.store.Begin(t.Context(), fork, 3, source, history.BeginOptions{}); err != nil {
			t.Error(err)
		}
	})
})
