package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/filled"
)

var _ = Describe("Appending records", func() {
	var (
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		t := GinkgoTB()
		store = open(t)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("appended records are read back", func() {
		w.append(user("hello"), call("1"), result("1"), usage(10, 20, 30), agent("bye"), checkpoint(1))

		Expect(w.texts()).To(HaveExactElements("U hello", "call 1 Bash", "result 1", "A bye"))
		state := w.state()
		Expect(state.Latest).NotTo(BeNil(), "the latest checkpoint")
		Expect(state.ActiveAt).NotTo(BeZero(), "the agent was heard of")
		Expect(state.WorkedAt).To(Equal(state.ActiveAt), "it has said so itself")
		want := history.TaskState{
			Task: w.task, Attempt: 1, LastSequence: 6,
			Position:        history.Position{Branch: "main", Position: 4, ToolCalls: 1},
			Totals:          history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30},
			Spent:           budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30, ToolCalls: 1, Checkpoints: 1},
			CheckpointCount: 1, Latest: state.Latest, ActiveAt: state.ActiveAt, WorkedAt: state.WorkedAt, AgentAttempt: 1, AgentSince: state.AgentSince,
		}
		Expect(state).To(BeComparableTo(want, cmpopts.EquateEmpty()), "state")
		Expect(state.Latest.Position).To(Equal(want.Position), "the position of the checkpoint")
	})

	It("a checkpoint is stored completely", func(ctx SpecContext) {
		t := GinkgoTB()
		w := begin(t, store, taskNamed("a"), 3)
		var given history.Checkpoint
		filled.In(&given) // includes new fields
		given.Number = 7
		want := given
		// These are set by the store; AfterSequence matters only while the checkpoint is
		// stored.
		want.TaskUID, want.Attempt, want.Position = w.task.UID, 3, history.Position{Branch: "main"}
		want.Totals, want.Digest = history.Totals{}, strings.Repeat("0", 64)
		want.Refused, want.Lost, want.AfterSequence, want.Integrity = "", false, 0, history.Integrity{}
		w.append(history.Record{Checkpoint: &given})
		Expect(store.Checkpoint(ctx, w.task.Key(), 7)).To(BeComparableTo(want, cmpopts.EquateApproxTime(0)))

		By("exporting it and importing it elsewhere")
		elsewhere := open(t)
		task, err := elsewhere.Import(ctx, "team", "bob", parsed(export(t, store, w.task)))
		Expect(err).NotTo(HaveOccurred())
		Expect(elsewhere.Checkpoint(ctx, task.Key(), 7)).To(BeComparableTo(want, cmpopts.EquateApproxTime(0)))
	})

	It("a checkpoint is found by its namespace and number only", func(ctx SpecContext) {
		w.append(checkpoint(7))
		Expect(store.Checkpoint(ctx, w.task.Key(), 7)).To(HaveField("Commit", "c7"))
		Expect(store.Checkpoint(ctx, history.Key{Namespace: "elsewhere", UID: w.task.UID}, 7)).Error().To(MatchError(history.ErrNotFound), "from another namespace")
		Expect(store.Checkpoint(ctx, w.task.Key(), 8)).Error().To(MatchError(history.ErrNotFound), "a checkpoint that is not there")
	})

	It("a checkpoint becomes durable", func(ctx SpecContext) {
		w.append(checkpoint(1), user("x"))
		again := checkpoint(1)
		again.Checkpoint.Durable = true
		other := checkpoint(1)
		other.Checkpoint.Commit = "other"
		w.append(again, other)

		list, err := store.CheckpointsAfter(ctx, w.task.UID, 0, 10)
		Expect(err).NotTo(HaveOccurred())
		Expect(list).To(HaveExactElements(And(
			HaveField("Durable", true),
			HaveField("Commit", "c1"), // of the first time
			HaveField("Position.Position", int64(0)))))
		Expect(w.state().CheckpointCount).To(BeEquivalentTo(1), "the checkpoint is counted once")
	})

	It("checkpoints after a number are read in order", func(ctx SpecContext) {
		for n := range int64(5) {
			w.append(checkpoint(n + 1))
		}
		Expect(store.CheckpointsAfter(ctx, w.task.UID, 2, 2)).To(HaveExactElements(
			HaveField("Number", int64(3)), HaveField("Number", int64(4))))
	})

	It("checkpoints before a number are read backwards", func(ctx SpecContext) {
		for n := range int64(5) {
			w.append(checkpoint(n + 1))
		}
		Expect(store.CheckpointsBefore(ctx, w.task.Key(), 4, 2)).To(HaveExactElements(
			HaveField("Number", int64(3)), HaveField("Number", int64(2))))
		Expect(store.CheckpointsBefore(ctx, w.task.Key(), 0, 1)).To(HaveExactElements(HaveField("Number", int64(5))), "the newest")
		Expect(store.CheckpointsBefore(ctx, w.task.Key(), 1, 10)).To(BeEmpty(), "before the first")
		elsewhere := history.Key{Namespace: "elsewhere", UID: w.task.UID}
		Expect(store.CheckpointsBefore(ctx, elsewhere, 0, 10)).To(BeEmpty(), "as seen from another namespace")
	})

	It("duplicates are left out and gaps are refused", func(ctx SpecContext) {
		first := w.number(user("1"), user("2"), user("3"))
		more := w.number(user("4"), user("5"), user("6"))

		By("sending the same batch twice")
		for range 2 {
			Expect(store.Append(ctx, w.task, 1, first)).To(BeEquivalentTo(3), "the last sequence stored")
		}

		By("sending a batch that overlaps with what is stored")
		overlap := append([]history.Record{first[2]}, more[:1]...)
		Expect(store.Append(ctx, w.task, 1, overlap)).To(BeEquivalentTo(4), "the last sequence stored")

		By("leaving out a record between two batches")
		last, err := store.Append(ctx, w.task, 1, more[2:])
		Expect(err).To(MatchError(history.ErrGap))
		var gap *history.GapError
		Expect(errors.As(err, &gap)).To(BeTrue(), "the gap is described: %v", err)
		Expect(*gap).To(Equal(history.GapError{Last: 4, First: 6}))
		Expect(last).To(BeEquivalentTo(4), "the last sequence stored")

		By("leaving out a record within a batch")
		last, err = store.Append(ctx, w.task, 1, []history.Record{more[1], {Sequence: 7}})
		Expect(err).To(MatchError(history.ErrGap))
		Expect(last).To(BeEquivalentTo(4), "the last sequence stored")

		By("sending nothing")
		Expect(store.Append(ctx, w.task, 1, nil)).To(BeEquivalentTo(4), "the last sequence stored")

		Expect(w.texts()).To(HaveExactElements("U 1", "U 2", "U 3", "U 4"))
	})

	// A transaction with thousands of moves would lock the task and its timeline for as long as it takes,
	// and could be sent again and again.
	It("a batch of many moves and checkpoints is stored in parts, none of which is lost or stored twice", func(ctx SpecContext) {
		w.append(user("do it"), agent("done"), checkpoint(1))
		var batch []history.Record
		for n := range int64(5) {
			batch = append(batch, agent(fmt.Sprint("try ", n)),
				history.Record{Move: &history.MoveOperation{ID: fmt.Sprint("Rewind/", n), Checkpoint: 1, Reason: "rewind"}})
		}
		for n := range int64(250) {
			batch = append(batch, checkpoint(2+n))
		}
		batch = w.number(append(batch, agent("at last"))...)
		Expect(store.Append(ctx, w.task, 1, batch)).To(Equal(w.last))
		Expect(store.Append(ctx, w.task, 1, batch)).To(Equal(w.last), "once more")
		Expect(w.texts()).To(HaveExactElements("U do it", "A done", "A at last"))
		Expect(w.state().CheckpointCount).To(BeEquivalentTo(251))
		Expect(w.state().CompletedOperations).To(HaveLen(5))
	})

	It("records of an unknown kind are counted", func() {
		w.append(history.Record{}, user("x"))
		Expect(w.texts()).To(HaveExactElements("U x"))
	})

	// Many writers send the same records at the same time, in overlapping batches: each
	// record is stored once, in order.
	It("the same records, appended at once, are stored once", func(ctx SpecContext) {
		const records = 120
		all, want := make([]history.Record, 0, records), make([]string, 0, records)
		for i := range records {
			all = append(all, w.number(user(fmt.Sprint(i)))...)
			want = append(want, fmt.Sprint("U ", i))
		}
		var senders sync.WaitGroup
		for sender := range 8 {
			senders.Go(func() {
				defer GinkgoRecover()
				for from := 0; from < records; {
					to := min(from+3+sender, records)
					last, err := store.Append(ctx, w.task, 1, all[max(0, from-sender):to])
					Expect(err).To(Or(BeNil(), MatchError(history.ErrGap)))
					from = int(last)
				}
			})
		}
		senders.Wait()
		Expect(w.texts()).To(BeComparableTo(want))
	})

	// Tasks of one namespace with the same messages in different orders do not block each
	// other.
	It("concurrent tasks share messages", func() {
		var tasks sync.WaitGroup
		for n := range 6 {
			w := begin(GinkgoTB(), store, taskNamed(fmt.Sprint("t", n)), 1)
			tasks.Go(func() {
				defer GinkgoRecover()
				for round := range 10 {
					var records []history.Record
					for i := range 20 {
						if n%2 == 0 {
							i = 19 - i
						}
						records = append(records, user(fmt.Sprint(round, "/", i)))
					}
					w.append(records...)
				}
			})
		}
		tasks.Wait()
	})

	When("a newer attempt has begun", func() {
		BeforeEach(func() {
			w.append(user("1"))
			begin(GinkgoTB(), store, w.task, 2)
		})

		It("the older attempt is fenced", func(ctx SpecContext) {
			Expect(store.Append(ctx, w.task, 1, w.number(user("2")))).Error().To(MatchError(history.ErrFenced))
			Expect(store.Begin(ctx, w.task, 1, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
			Expect(store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "x", KeepPosition: true})).Error().To(MatchError(history.ErrFenced))
		})

		It("the newer attempt may begin again and finds what the older one stored", func(ctx SpecContext) {
			state, err := store.Begin(ctx, w.task, 2, nil, history.BeginOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(state.Attempt).To(BeEquivalentTo(2))
			Expect(state.LastSequence).To(BeEquivalentTo(1))
		})

		It("it is fenced by one that appends without having begun", func(ctx SpecContext) {
			Expect(store.Append(ctx, w.task, 3, []history.Record{{Sequence: 2, Message: user("2").Message}})).To(BeEquivalentTo(2), "the last sequence stored")
			Expect(store.Append(ctx, w.task, 2, nil)).Error().To(MatchError(history.ErrFenced))
		})
	})

	It("others' tasks are not found", func(ctx SpecContext) {
		stranger := w.task
		stranger.Namespace = "elsewhere"
		Expect(store.Begin(ctx, stranger, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrNotFound), "begin")
		Expect(store.Append(ctx, stranger, 9, w.number(user("x")))).Error().To(MatchError(history.ErrNotFound), "append")
		Expect(store.Append(ctx, taskNamed("unknown"), 1, nil)).Error().To(MatchError(history.ErrNotFound), "append to a task that has not begun")
		Expect(store.TaskState(ctx, "unknown")).Error().To(MatchError(history.ErrNotFound), "state")
		Expect(w.state().Attempt).To(BeEquivalentTo(1), "the stranger must not raise the fence")
	})

	It("tool calls are open until they are answered", func(ctx SpecContext) {
		w.append(call("1"), call("2"), result("1"))
		state, err := store.Begin(ctx, w.task, 2, nil, history.BeginOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(state.OpenToolCalls).To(HaveExactElements("2"))

		By("answering the other call in the next attempt")
		w = begin(GinkgoTB(), store, w.task, 2)
		w.append(interrupted("2"))
		state = w.state()
		Expect(state.OpenToolCalls).To(BeEmpty())
		Expect(state.Position.ToolCalls).To(BeEquivalentTo(1), "the answered calls")
	})

	It("any bytes can be stored", func(ctx SpecContext) {
		odd := "a\x00b\xffc"
		large := strings.Repeat("0123456789abcdef", 1<<16)
		w.append(
			history.Record{Message: &conversation.Message{Role: conversation.RoleOutput, Text: odd, Raw: odd}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: odd, Name: odd, Input: odd}}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: odd, Output: large}}},
			history.Record{Event: &history.DaemonEvent{Reason: odd, Message: odd, Details: map[string]string{odd: odd}}},
			history.Record{Checkpoint: &history.Checkpoint{
				Number: 1, Message: odd, Commit: odd, GitBranch: odd, DirtyFiles: []string{odd},
				Skipped: []history.SkippedFile{{Path: odd}}, Changes: []history.FileChange{{Path: odd}},
			}},
		)
		entries, err := store.Conversation(ctx, w.task.UID, 0, 10)
		Expect(err).NotTo(HaveOccurred())
		const want = "a\u2400b\uFFFDc"
		Expect(entries[0].Message.Text).To(Equal(want))
		Expect(store.Text(ctx, "team", entries[2].Message.ToolResult.OutputPieces)).To(Equal(large))
		Expect(w.state().OpenToolCalls).To(BeEmpty(), "the ids of the call and its result must remain the same")
		c, err := store.Checkpoint(ctx, w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		Expect([]string{c.Skipped[0].Path, c.Changes[0].Path, c.DirtyFiles[0]}).To(HaveExactElements(want, want, want), "the checkpoint's paths")
	})

	It("large pages end early", func(ctx SpecContext) {
		var records []history.Record
		for i := range 2000 {
			records = append(records, user(fmt.Sprint(10_000+i)+strings.Repeat("x", 12<<10)))
		}
		w.append(records...)
		var pages []int
		for after := int64(0); ; {
			entries, err := store.Conversation(ctx, w.task.UID, after, 5000)
			Expect(err).NotTo(HaveOccurred())
			if len(entries) == 0 {
				break
			}
			pages = append(pages, len(entries))
			after = entries[len(entries)-1].Position
		}
		Expect(pages).To(HaveExactElements(342, 342, 342, 342, 342, 290), "the messages of each page")
	})

	It("wrong clocks do not produce implausible times", func(ctx SpecContext) {
		records := w.number(user("zero"), user("future"))
		records[0].Time = time.Time{}
		records[1].Time = time.Now().AddDate(100, 0, 0)
		Expect(store.Append(ctx, w.task, 1, records)).Error().NotTo(HaveOccurred())
		entries, err := store.Conversation(ctx, w.task.UID, 0, 10)
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(HaveLen(2))
		Expect(entries).To(HaveEach(HaveField("Time", BeTemporally("~", time.Now(), time.Minute))))
	})
})
