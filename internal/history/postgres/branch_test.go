package postgres_test

import (
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func (w *writer) move(id string, checkpoint int64) history.Position {
	w.t.Helper()
	return w.moveTo(id, history.MoveOperation{Checkpoint: checkpoint})
}

var _ = Describe("Branches of a conversation", func() {
	var (
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		t := GinkgoTB()
		store = open(t)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("a move makes a branch", func() {
		w.append(user("1"), usage(1, 2, 3), checkpoint(1), call("x"), result("x"), usage(10, 20, 30), checkpoint(2), agent("4"))

		moved := w.move("op", 1)
		Expect(moved).To(Equal(history.Position{Branch: "branch-2", Position: 1}))
		w.append(user("other"), checkpoint(3))
		Expect(w.texts()).To(HaveExactElements("U 1", "U other"))
		state := w.state()
		Expect(state.Totals).To(Equal(history.Totals{Messages: 2, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}))

		By("repeating the operation")
		Expect(w.move("op", 1)).To(Equal(moved), "the answer is the same")
		Expect(w.state().Position).To(Equal(state.Position), "nothing moves")

		By("going back to the branch that was left")
		w.move("op2", 2)
		Expect(w.texts()).To(HaveExactElements("U 1", "call x Bash", "result x"))
		Expect(w.state().Totals).To(Equal(history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 11, OutputTokens: 22, CostMicroUSD: 33}))

		By("going from there to the newer one")
		w.move("op3", 3)
		Expect(w.texts()).To(HaveExactElements("U 1", "U other"))
		Expect(w.state().CompletedOperations).To(HaveExactElements("op", "op2", "op3"))
	})

	It("a checkpoint leads to the end of the last turn before it", func(ctx SpecContext) {
		w.append(user("1"), usage(1, 2, 3), agent("2"), call("x"), checkpoint(1), result("x"), usage(10, 20, 30), agent("5"), checkpoint(2))

		at, sums, err := store.CheckpointBoundary(ctx, w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(at).To(Equal(history.Position{Branch: "main", Position: 2}), "a call waited for its result")
		Expect(sums).To(Equal(history.Totals{Messages: 2, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}))
		at, sums, err = store.CheckpointBoundary(ctx, w.task.Key(), 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(at).To(Equal(history.Position{Branch: "main", Position: 5, ToolCalls: 1}))
		Expect(sums).To(Equal(w.state().Totals))
		Expect(store.CheckpointBoundary(ctx, w.task.Key(), 3)).Error().To(MatchError(history.ErrNotFound))
		Expect(store.CheckpointBoundary(ctx, history.Key{Namespace: "another", UID: w.task.UID}, 1)).Error().To(MatchError(history.ErrNotFound))

		Expect(w.move("op", 1).Position).To(BeEquivalentTo(2), "a rewind moves there")
	})

	It("a move may begin anew, without what a fork inherited", func() {
		w.append(user("prompt"), agent("1"), checkpoint(1))
		fork := w.fork("forked", 1)
		fork.append(user("another way"), agent("2"), checkpoint(1))
		Expect(fork.texts()).To(HaveExactElements("U prompt", "A 1", "U another way", "A 2"))

		Expect(fork.moveTo("Rewind/resume:on", history.MoveOperation{Anew: true})).To(HaveField("Position", int64(0)))
		fork.append(checkpoint(2))
		Expect(fork.texts()).To(BeEmpty())
		Expect(fork.state().Totals).To(BeZero())
		fork.append(user("clean"), agent("3"), checkpoint(3))
		Expect(fork.texts()).To(HaveExactElements("U clean", "A 3"))

		By("going back to what was said before")
		fork.move("undo", 1)
		Expect(fork.texts()).To(HaveExactElements("U prompt", "A 1", "U another way", "A 2"))
		Expect(w.texts()).To(HaveExactElements("U prompt", "A 1"))
	})

	// A task that starts over says the prompt again, so it must not be stored already.
	It("a move may go to the beginning", func() {
		w.append(user("prompt"), usage(1, 2, 3), agent("1"), checkpoint(1), call("x"))
		for range 2 {
			Expect(w.move("restore/2", 0)).To(Equal(history.Position{Branch: "branch-2"}))
		}
		state := w.state()
		Expect(state.Totals).To(BeZero())
		Expect(state.OpenToolCalls).To(BeEmpty())
		Expect(w.texts()).To(BeEmpty())
		w.append(user("prompt"), agent("2"), checkpoint(2))
		Expect(w.texts()).To(HaveExactElements("U prompt", "A 2"))

		By("starting over after a second loss")
		w.move("restore/3", 0)
		w.append(user("prompt"))
		Expect(w.texts()).To(HaveExactElements("U prompt"))

		By("going back to what was left first")
		w.move("op", 1)
		Expect(w.texts()).To(HaveExactElements("U prompt", "A 1"))
	})

	DescribeTable("a move may go to the beginning of a fork",
		func(ctx SpecContext, inherits bool, position history.Position, totals history.Totals, texts []string) {
			source := begin(GinkgoTB(), store, taskNamed("source"), 1)
			source.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), user("later"))
			fork := taskNamed("fork")
			from := &history.Source{TaskUID: source.task.UID, Checkpoint: 1, IncludeConversation: inherits}
			Expect(store.Begin(ctx, fork, 1, from, history.BeginOptions{})).Error().NotTo(HaveOccurred())
			w := begin(GinkgoTB(), store, fork, 1)
			w.append(user("prompt"), usage(10, 20, 30), agent("2"))
			Expect(w.move("restore/2", 0)).To(Equal(position))
			Expect(w.state().Totals).To(Equal(totals))
			w.append(user("prompt"))
			Expect(w.texts()).To(Equal(texts))
		},
		Entry("with the source's conversation", true, history.Position{Branch: "branch-2", Position: 3, ToolCalls: 1},
			history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
			[]string{"U 1", "call x Bash", "result x", "U prompt"}),
		Entry("without it", false, history.Position{Branch: "branch-2"}, history.Totals{}, []string{"U prompt"}),
	)

	It("a move may keep the position", func(ctx SpecContext) {
		w.append(checkpoint(1), user("1"))
		Expect(store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "op", Checkpoint: 1, KeepPosition: true})).
			To(Equal(history.Position{Branch: "main", Position: 1}))
		Expect(w.state().CompletedOperations).To(HaveExactElements("op"))
	})

	It("a move to an unknown place is refused", func(ctx SpecContext) {
		for _, number := range []int64{9, -1} {
			Expect(store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "op", Checkpoint: number})).Error().
				To(MatchError(history.ErrNotFound), "checkpoint %d", number)
		}
		Expect(w.state().CompletedOperations).To(BeEmpty(), "a refused operation is not completed")
	})

	It("an operation that moves twice at once moves once", func() {
		w.append(user("1"), checkpoint(1), user("2"))
		var movers sync.WaitGroup
		for range 6 {
			movers.Go(func() {
				defer GinkgoRecover()
				Expect(w.move("op", 1).Branch).To(Equal("branch-2"))
			})
		}
		movers.Wait()
		Expect(w.state().Position.Branch).To(Equal("branch-2"))
	})

	// A checkpoint taken while a tool was running goes back to before the call.
	It("positions snap to turns", func(ctx SpecContext) {
		w.append(user("1"), call("a"), result("a"), call("b"), call("c"), result("c"), checkpoint(1), result("b"))
		c, err := store.Checkpoint(ctx, w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Position).To(Equal(history.Position{Branch: "main", Position: 6, ToolCalls: 2}), "the checkpoint's own position")
		Expect(w.move("op", 1)).To(Equal(history.Position{Branch: "branch-2", Position: 3, ToolCalls: 1}), "where it goes back to")
		state := w.state()
		Expect(state.OpenToolCalls).To(BeEmpty())
		Expect(state.Position.ToolCalls).To(BeEquivalentTo(1), "the answered calls")

		By("going back to a checkpoint at the base of a branch that was itself cut")
		w.append(call("d"), checkpoint(2))
		Expect(w.move("op2", 2)).To(And(HaveField("Position", int64(3)), HaveField("ToolCalls", int64(1))))
	})

	When("a task is forked", func() {
		var source *writer
		BeforeEach(func() {
			source = begin(GinkgoTB(), store, taskNamed("source"), 1)
			source.append(user("1"), usage(1, 1, 1), checkpoint(1), user("2"))
			source.move("op", 1)
			source.append(user("3"), checkpoint(2), user("4"))
		})

		It("the fork inherits its source's conversation", func(ctx SpecContext) {
			before := source.state()
			fork := taskNamed("fork")
			from := &history.Source{TaskUID: source.task.UID, Checkpoint: 2, IncludeConversation: true}
			for range 2 {
				Expect(store.Begin(ctx, fork, 1, from, history.BeginOptions{})).Error().NotTo(HaveOccurred())
			}
			w := begin(GinkgoTB(), store, fork, 1)
			Expect(w.last).To(BeZero(), "the fork has no records of its own yet")
			w.append(user("5"), checkpoint(1))
			Expect(w.texts()).To(HaveExactElements("U 1", "U 3", "U 5"))
			state := w.state()
			Expect(state.Position).To(Equal(history.Position{Branch: "main", Position: 3}))
			Expect(state.Totals).To(Equal(history.Totals{Messages: 3, InputTokens: 1, OutputTokens: 1, CostMicroUSD: 1}))
			Expect(store.Conversation(ctx, fork.UID, 1, 2)).To(HaveExactElements(
				HaveField("Branch", "uid-of-source/branch-2"), HaveField("Branch", "main")), "messages 2 and 3")
			Expect(source.state()).To(BeComparableTo(before), "the source does not change")

			By("moving the fork back to before its own first message")
			w.append(user("6"))
			w.move("op", 1)
			Expect(w.texts()).To(HaveExactElements("U 1", "U 3", "U 5"))
		})

		It("the fork may leave the conversation out", func(ctx SpecContext) {
			state, err := store.Begin(ctx, taskNamed("fork"), 1, &history.Source{TaskUID: source.task.UID, Checkpoint: 1}, history.BeginOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(state.Position.Position).To(BeZero())
		})
	})

	It("a fork of an unknown checkpoint is refused", func(ctx SpecContext) {
		elsewhere := begin(GinkgoTB(), store, history.Task{Namespace: "elsewhere", Name: "source", UID: "other"}, 1)
		elsewhere.append(user("secret"), checkpoint(1))
		for _, source := range []history.Source{
			{TaskUID: "none", Checkpoint: 1, IncludeConversation: true},
			{TaskUID: "other", Checkpoint: 1, IncludeConversation: true},
		} {
			Expect(store.Begin(ctx, taskNamed("fork"), 1, &source, history.BeginOptions{})).Error().
				To(MatchError(history.ErrNotFound), "source %+v", source)
		}
		Expect(store.TaskState(ctx, taskNamed("fork").UID)).Error().To(MatchError(history.ErrNotFound), "a failed begin leaves no record")
	})

	Describe("a snapshot", func() {
		var digests []string
		BeforeEach(func() {
			records := []history.Record{user("1"), call("x"), result("x"), user("4")}
			var sum conversation.Digest
			digests = nil
			for _, r := range records {
				sum = sum.Add(r.Message.Hash("team"))
				digests = append(digests, sum.String())
			}
			w.append(records[0], usage(1, 2, 3), records[1], checkpoint(1), records[2], checkpoint(2), records[3])
		})

		It("is what was written", func(ctx SpecContext) {
			totals := history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}
			tests := []struct {
				checkpoint int64
				want       history.Snapshot
			}{
				{1, history.Snapshot{Position: history.Position{Branch: "main", Position: 1}, Totals: history.Totals{Messages: 1}, Digest: digests[0]}},
				{2, history.Snapshot{Position: history.Position{Branch: "main", Position: 3, ToolCalls: 1}, Totals: totals, Digest: digests[2]}},
				{0, history.Snapshot{
					Position: history.Position{Branch: "main", Position: 4, ToolCalls: 1},
					Totals:   history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}, Digest: digests[3],
				}},
			}
			for _, tt := range tests {
				got, err := store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Checkpoint: tt.checkpoint})
				Expect(err).NotTo(HaveOccurred())
				tt.want.Checkpoint = max(tt.checkpoint, got.Checkpoint)
				Expect(got).To(BeComparableTo(tt.want, cmpopts.IgnoreFields(history.Snapshot{}, "Kind", "Time")), "checkpoint %d", tt.checkpoint)
			}
		})

		It("is one of the new branch after a move", func(ctx SpecContext) {
			w.move("op", 2)
			got, err := store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Checkpoint: 0})
			Expect(err).NotTo(HaveOccurred())
			Expect(got.Digest).To(Equal(digests[2]))
			Expect(got.Position.Branch).To(Equal("branch-2"))
		})

		It("is not found by an unknown checkpoint or task, or from another namespace", func(ctx SpecContext) {
			for _, tt := range []struct {
				task       history.Key
				checkpoint int64
			}{
				{w.task.Key(), 99},
				{history.Key{Namespace: w.task.Namespace, UID: "unknown"}, 99},
				{history.Key{Namespace: "elsewhere", UID: w.task.UID}, 1},
			} {
				Expect(store.Snapshot(ctx, tt.task, history.SnapshotQuery{Checkpoint: tt.checkpoint})).Error().
					To(MatchError(history.ErrNotFound), "checkpoint %d of %+v", tt.checkpoint, tt.task)
			}
		})
	})

	// Storage grows with the messages, not with the branches over them.
	It("branches copy nothing", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		var records []history.Record
		for i := range 500 {
			records = append(records, user(fmt.Sprint(i)))
		}
		w.append(append(records, checkpoint(1))...)
		for i := range 50 {
			w.move(fmt.Sprint("op", i), 1)
			w.append(user("next"), checkpoint(int64(i+2)))
		}
		Expect(count(t, dsn, "entries")).To(Equal(550), "rows in entries")
		Expect(count(t, dsn, "messages")).To(Equal(501), "rows in messages")
		Expect(w.texts()).To(HaveLen(501), "messages on the active branch")
	})
})
