package postgres_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func (w *writer) resolve(q history.PositionQuery) history.Resolved {
	GinkgoHelper()
	r, err := w.store.ResolvePosition(w.t.Context(), w.task.UID, q)
	Expect(err).NotTo(HaveOccurred(), "resolve %+v", q)
	return r
}

var _ = Describe("Positions in a conversation", func() {
	var (
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		t := GinkgoTB()
		store = open(t)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("a position is resolved", func(ctx SpecContext) {
		w.append(user("1"), checkpoint(1), call("x"), result("x"), usage(1, 2, 3), checkpoint(2), agent("4"))
		between := time.Now()
		// PostgreSQL stores microseconds: the next message must have a later time.
		Eventually(func() time.Duration { return time.Since(between) }).Should(BeNumerically(">", time.Millisecond))
		w.append(call("y"), call("z"), result("z"), result("y"), checkpoint(3), agent("9"))

		type outcome struct {
			position, asked, toolCalls, checkpoint int64
			snapped                                bool
		}
		tests := map[string]struct {
			query history.PositionQuery
			want  outcome
		}{
			"first message":    {history.PositionQuery{Message: 1}, outcome{1, 1, 0, 1, false}},
			"a call":           {history.PositionQuery{Message: 2}, outcome{1, 2, 0, 1, true}},
			"its result":       {history.PositionQuery{Message: 3}, outcome{3, 3, 1, 2, false}},
			"within two calls": {history.PositionQuery{Message: 7}, outcome{4, 7, 1, 2, true}},
			"the head":         {history.PositionQuery{Message: 9}, outcome{9, 9, 3, 3, false}},
			"one back":         {history.PositionQuery{Back: 1}, outcome{8, 8, 3, 3, false}},
			"three back":       {history.PositionQuery{Back: 3}, outcome{4, 6, 1, 2, true}},
			"all back":         {history.PositionQuery{Back: 9}, outcome{0, 0, 0, 0, false}},
			"a time":           {history.PositionQuery{Time: between}, outcome{4, 4, 1, 2, false}},
			"now":              {history.PositionQuery{Time: time.Now().Add(time.Minute)}, outcome{9, 9, 3, 3, false}},
			"before it all":    {history.PositionQuery{Time: between.Add(-time.Hour)}, outcome{0, 0, 0, 0, false}},
		}
		for name, tt := range tests {
			got := w.resolve(tt.query)
			number := int64(0)
			if got.Checkpoint != nil {
				number = got.Checkpoint.Number
			}
			Expect(outcome{got.Position.Position, got.Asked, got.Position.ToolCalls, number, got.Snapped}).To(Equal(tt.want), name)
			Expect(got.Totals.Messages).To(Equal(tt.want.position), "the messages before %s", name)
			Expect(got.Totals.ToolCalls).To(Equal(tt.want.toolCalls), "the tool calls before %s", name)
		}

		By("asking for positions beyond the conversation")
		for _, q := range []history.PositionQuery{{Message: 10}, {Back: 10}} {
			Expect(store.ResolvePosition(ctx, w.task.UID, q)).Error().To(MatchError(history.ErrNotFound), "%+v", q)
		}
		By("asking for nothing, or for two things at once")
		for _, q := range []history.PositionQuery{{}, {Message: -1}, {Message: 1, Back: 1}, {Back: 1, Time: between}} {
			Expect(store.ResolvePosition(ctx, w.task.UID, q)).Error().To(MatchError(history.ErrInvalid), "%+v", q)
		}
		By("asking about an unknown task")
		Expect(store.ResolvePosition(ctx, "unknown", history.PositionQuery{Back: 1})).Error().To(MatchError(history.ErrNotFound))
	})

	// A rewind of files takes checkpoints without a message between them. Times are shown in
	// whole seconds: such a time stands for the whole second.
	It("a time leads to the newest checkpoint taken by then, or to the next one of its message", func() {
		start, at := w.clock()
		after := func(d time.Duration) time.Time { return start.Add(d) }
		at(10*time.Second, user("1"))
		at(20*time.Second, checkpoint(1))
		at(30*time.Second, agent("2"))
		at(31*time.Second+700*time.Millisecond, checkpoint(2))
		at(31*time.Second+800*time.Millisecond, agent("3"))
		at(600*time.Second, checkpoint(3))
		w.moveTo("op", history.MoveOperation{Position: 2})

		type outcome struct{ position, checkpoint int64 }
		for d, want := range map[time.Duration]outcome{
			5 * time.Second:                       {0, 0},
			15 * time.Second:                      {1, 1},
			20 * time.Second:                      {1, 1},
			30 * time.Second:                      {2, 2},
			31*time.Second + 500*time.Millisecond: {2, 2},
			31*time.Second + 700*time.Millisecond: {2, 2},
			31 * time.Second:                      {2, 2},
			601 * time.Second:                     {2, 2},
		} {
			got := w.resolve(history.PositionQuery{Time: after(d)})
			number := int64(0)
			if got.Checkpoint != nil {
				number = got.Checkpoint.Number
			}
			Expect(outcome{got.Position.Position, number}).To(Equal(want), "after %s", d)
		}
		w.append(checkpoint(4))
		Expect(w.resolve(history.PositionQuery{Time: after(time.Minute)})).To(HaveField("Checkpoint.Number", int64(2)))
		Expect(w.resolve(history.PositionQuery{Message: 2})).To(HaveField("Checkpoint.Number", int64(4)))

		By("asking for a second with a message in it")
		w.append(agent("3"))
		now := time.Now()
		Expect(w.resolve(history.PositionQuery{Time: now.Truncate(time.Second)})).To(HaveField("Position.Position", int64(3)))
	})

	// A rewind of the conversation alone leaves the files: a checkpoint that is taken after it has newer
	// ones, at the position of an earlier message.
	It("a time leads to no checkpoint of the next state of its message", func() {
		start, at := w.clock()
		at(0, user("1"))
		at(time.Minute, checkpoint(1))
		at(2*time.Minute, agent("2")) // no checkpoint here
		at(30*time.Minute, agent("3"))
		at(31*time.Minute, checkpoint(2))
		w.moveTo("op", history.MoveOperation{Position: 2}) // the conversation alone, half an hour later
		rewound := checkpoint(3)
		rewound.Checkpoint.Trigger = "Rewound"
		at(52*time.Minute, rewound) // the files of minute 31
		at(53*time.Minute, checkpoint(4))
		for minute, number := range map[int]int64{10: 1, 40: 1, 52: 3, 53: 4} {
			Expect(w.resolve(history.PositionQuery{Time: start.Add(time.Duration(minute) * time.Minute)})).To(HaveField("Checkpoint.Number", number), "minute %d", minute)
		}
		for minute, number := range map[int]int64{10: 0, 31: 2, 40: 2, 52: 0} {
			Expect(w.resolve(history.PositionQuery{Time: start.Add(time.Duration(minute) * time.Minute)})).To(HaveField("Elsewhere", number), "newer at minute %d", minute)
		}
		Expect(w.resolve(history.PositionQuery{Message: 2})).To(HaveField("Elsewhere", BeZero()))

		By("a new run before any message")
		at(54*time.Minute, agent("other"))
		before := checkpoint(5)
		before.Checkpoint.Trigger = "BeforeRun"
		at(56*time.Minute, before)
		Expect(w.resolve(history.PositionQuery{Time: start.Add(55 * time.Minute)})).To(HaveField("Checkpoint.Number", int64(4)))
	})

	// The volume may be lost, and with it the agent's last work: no checkpoint is then taken between.
	It("a time leads to no checkpoint of a branch that begins at its message", func() {
		start, at := w.clock()
		at(0, user("1"))
		at(time.Minute, agent("2"))
		at(2*time.Minute, agent("3"))
		w.moveTo("op", history.MoveOperation{Position: 2})
		at(10*time.Minute, checkpoint(1))
		Expect(w.resolve(history.PositionQuery{Time: start.Add(90 * time.Second)})).To(HaveField("Checkpoint", BeNil()))
	})

	// The next run may change files for a while before its first message.
	It("a time leads to no checkpoint of a later run of the agent", func() {
		t := GinkgoTB()
		store := open(t)
		first := begin(t, store, taskNamed("a"), 1)
		start, at := first.clock()
		at(0, user("1"))
		at(time.Minute, checkpoint(1))
		at(2*time.Minute, agent("2")) // and the node is lost
		_, at = begin(t, store, taskNamed("a"), 2).clock()
		at(20*time.Minute, checkpoint(2))
		Expect(first.resolve(history.PositionQuery{Time: start.Add(3 * time.Minute)})).To(HaveField("Checkpoint.Number", int64(1)))
	})

	// While a tool call waits for its result, checkpoints are taken every everySeconds.
	It("a time within a long tool call leads to the newest checkpoint taken by then", func() {
		start, at := w.clock()
		at(0, user("1"))
		at(time.Minute, checkpoint(1))
		at(2*time.Minute, call("x"))
		at(20*time.Minute, checkpoint(2))
		at(40*time.Minute, result("x"))
		at(41*time.Minute, checkpoint(3))
		for minute, number := range map[int]int64{10: 1, 20: 2, 30: 2, 40: 3} {
			found := w.resolve(history.PositionQuery{Time: start.Add(time.Duration(minute) * time.Minute)})
			Expect(found).To(HaveField("Checkpoint.Number", number), "minute %d", minute)
			Expect(found.CheckpointPosition()).To(Equal(map[int64]int64{1: 1, 2: 1, 3: 3}[number]), "the conversation at minute %d", minute)
		}
		Expect(w.resolve(history.PositionQuery{Message: 2})).To(HaveField("Checkpoint.Number", int64(1)), "the message has the state before the call")
	})

	It("a move goes to a position", func(ctx SpecContext) {
		w.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), agent("4"), user("5"))
		for range 2 {
			Expect(w.moveTo("op", history.MoveOperation{Checkpoint: 1, Position: 4})).
				To(Equal(history.Position{Branch: "branch-2", Position: 4, ToolCalls: 1}))
		}
		w.append(user("other"))
		Expect(w.texts()).To(HaveExactElements("U 1", "call x Bash", "result x", "A 4", "U other"))

		By("moving to an inherited position, on the branch that holds it; it snaps")
		Expect(w.moveTo("op2", history.MoveOperation{Position: 2})).To(And(
			HaveField("Position", int64(1)), HaveField("Branch", "branch-3")))
		w.append(agent("new"))
		Expect(w.texts()).To(HaveExactElements("U 1", "A new"))
		Expect(store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred(), "the digest continues over branches")

		By("moving beyond the head")
		Expect(store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "op3", Position: 99})).Error().To(MatchError(history.ErrNotFound))
		Expect(w.state().CompletedOperations).To(HaveExactElements("op", "op2"))
	})

	// Checkpoints of the branch that was left do not count on the new one; those before
	// the point where it was left do, and those of a fork's source do not.
	It("the newest checkpoint before a position is returned", func(ctx SpecContext) {
		w.append(user("1"), checkpoint(1), agent("2"), checkpoint(2), agent("3"), checkpoint(3))
		w.moveTo("op", history.MoveOperation{Position: 2})
		w.append(agent("other"), agent("4"))
		Expect(w.resolve(history.PositionQuery{Message: 4})).To(HaveField("Checkpoint.Number", int64(2)))
		w.append(checkpoint(4))
		Expect(w.resolve(history.PositionQuery{Message: 4})).To(HaveField("Checkpoint.Number", int64(4)))

		By("forking the task from its last checkpoint")
		fork := taskNamed("fork")
		from := &history.Source{TaskUID: w.task.UID, Checkpoint: 4, IncludeConversation: true}
		Expect(store.Begin(ctx, fork, 1, from, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		f := begin(GinkgoTB(), store, fork, 1)
		f.append(user("5"))
		Expect(f.resolve(history.PositionQuery{Message: 5})).To(And(HaveField("Checkpoint", BeNil()), HaveField("Position.Position", int64(5))))
		Expect(f.resolve(history.PositionQuery{Message: 3})).To(HaveField("Position.Position", int64(3)))
		Expect(f.moveTo("op", history.MoveOperation{Position: 3})).To(HaveField("Position", int64(3)))
		Expect(f.texts()).To(HaveExactElements("U 1", "A 2", "A other"))
	})
})

func (w *writer) moveTo(id string, op history.MoveOperation) history.Position {
	w.t.Helper()
	op.ID, op.Reason = id, "Rewind"
	p, err := w.store.MoveConversation(w.t.Context(), w.task, w.attempt, op)
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred(), "move %s", w.task.Name)
	return p
}

// clock returns a time an hour ago, and a function that appends a record of a time after it.
func (w *writer) clock() (start time.Time, at func(after time.Duration, r history.Record)) {
	start = time.Now().Add(-time.Hour).Truncate(time.Second)
	return start, func(after time.Duration, r history.Record) {
		w.t.Helper()
		records := w.number(r)
		records[0].Time = start.Add(after)
		if c := records[0].Checkpoint; c != nil {
			c.Time = start.Add(after)
		}
		_, err := w.store.Append(w.t.Context(), w.task, w.attempt, records)
		NewWithT(w.t).Expect(err).NotTo(HaveOccurred())
	}
}
