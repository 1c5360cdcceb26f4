package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/toolcall"
)

var _ = Describe("The calls of a supervisor's tools", func() {
	var (
		dsn   string
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		w = begin(GinkgoTB(), store, taskNamed("lead"), 1)
	})
	create := func(name string) history.NewToolCall {
		return history.NewToolCall{Tool: "task_create", Arguments: fmt.Appendf(nil, `{"name":%q}`, name)}
	}
	try := func(ctx context.Context, call history.NewToolCall) (history.ToolCall, error) {
		return store.CallTool(ctx, w.task, w.attempt, call)
	}
	made := func(ctx context.Context, call history.NewToolCall) history.ToolCall {
		GinkgoHelper()
		found, err := try(ctx, call)
		Expect(err).NotTo(HaveOccurred())
		return found
	}
	answer := func(ctx context.Context, id, text string) {
		GinkgoHelper()
		Expect(store.AnswerToolCall(ctx, id, toolcall.Answer{Text: text, Data: []byte(`{"n":1}`)})).To(Succeed())
	}
	pending := func(ctx context.Context) (ids []string) {
		GinkgoHelper()
		for after := int64(0); ; {
			calls, next, err := store.PendingToolCalls(ctx, after, 3)
			Expect(err).NotTo(HaveOccurred())
			if len(calls) == 0 {
				return ids
			}
			for _, c := range calls {
				ids = append(ids, c.ID)
			}
			after = next
		}
	}
	// delivered is the record by which a daemon says that an answer has reached the agent.
	delivered := func(id string) history.Record {
		return history.Record{Event: &history.DaemonEvent{Reason: "ToolCalled", Message: "it was answered", Details: map[string]string{history.ToolCallDelivered: id}}}
	}

	It("are stored, carried out in their order, and answered once", func(ctx SpecContext) {
		first := made(ctx, create("a"))
		Expect(first).To(And(HaveField("Task", w.task), HaveField("Attempt", int64(1)), HaveField("Tool", "task_create"),
			HaveField("Arguments", []byte(`{"name":"a"}`)), HaveField("Made", BeTemporally("~", time.Now(), time.Minute)), HaveField("Answer", BeNil())))
		all := []string{first.ID}
		for n := range 4 {
			all = append(all, made(ctx, create(fmt.Sprint(n))).ID)
		}
		Expect(pending(ctx)).To(Equal(all))

		answer(ctx, first.ID, "it is made")
		answer(ctx, first.ID, "another answer")
		Expect(pending(ctx)).To(Equal(all[1:]))
		found, err := store.ToolCall(ctx, w.task.UID, first.ID)
		Expect(err).NotTo(HaveOccurred())
		Expect(found.Answer).To(Equal(&toolcall.Answer{Text: "it is made", Data: []byte(`{"n":1}`)}))
		Expect(found.Answered).To(BeTemporally("~", time.Now(), time.Minute))
		Expect(found.Arguments).To(BeEmpty(), "nobody needs them any more")
	})

	It("have an answer of bounded length, and one without data", func(ctx SpecContext) {
		call := made(ctx, create("a"))
		long := toolcall.Answer{Data: []byte(`"` + strings.Repeat("x", toolcall.MaxData) + `"`)}
		Expect(store.AnswerToolCall(ctx, call.ID, long)).To(MatchError(history.ErrInvalid))
		refused := toolcall.Answer{Refused: true, Text: "no\x00 room" + strings.Repeat("é", toolcall.MaxText)}
		Expect(store.AnswerToolCall(ctx, call.ID, refused)).To(Succeed())
		found := made(ctx, create("a"))
		Expect(found.Answer).To(And(HaveField("Refused", true), HaveField("Data", BeEmpty())))
		Expect(found.Answer.Text).To(And(HavePrefix("no"), HaveSuffix("é")))
		Expect(len(found.Answer.Text)).To(BeNumerically("<=", toolcall.MaxText))
	})

	Describe("that are repeated", func() {
		It("are the same call until the answer has reached the agent", func(ctx SpecContext) {
			call := made(ctx, create("a"))
			Expect(made(ctx, create("a")).ID).To(Equal(call.ID), "it is not answered")
			answer(ctx, call.ID, "it is made")
			again := made(ctx, create("a"))
			Expect(again).To(And(HaveField("ID", call.ID), HaveField("Answer.Text", "it is made")), "as after the agent was killed")
			Expect(made(ctx, create("b")).ID).NotTo(Equal(call.ID), "other arguments")
			stop := history.NewToolCall{Tool: "task_stop", Arguments: create("a").Arguments}
			Expect(made(ctx, stop).ID).NotTo(Equal(call.ID), "another tool")

			By("recording that the answer has reached the agent")
			w.append(delivered(call.ID))
			next := made(ctx, create("a"))
			Expect(next).To(And(HaveField("ID", Not(Equal(call.ID))), HaveField("Answer", BeNil())))

			By("saying so with the call, before it is recorded")
			answer(ctx, next.ID, "it exists")
			third := create("a")
			third.Delivered = []string{"unknown", next.ID}
			Expect(made(ctx, third).ID).NotTo(Equal(next.ID))
		})

		It("with the agent's own id are the same call for good", func(ctx SpecContext) {
			call := create("a")
			call.Key = "mine"
			first := made(ctx, call)
			answer(ctx, first.ID, "it is made")
			w.append(delivered(first.ID))
			Expect(made(ctx, call)).To(And(HaveField("ID", first.ID), HaveField("Answer.Text", "it is made")))

			By("giving another call the same id")
			other := create("b")
			other.Key = "mine"
			Expect(try(ctx, other)).Error().To(MatchError(history.ErrExists))

			By("giving the same call another id")
			call.Key = "other"
			Expect(made(ctx, call).ID).NotTo(Equal(first.ID))
		})

		It("are other calls once the conversation in which they were made is taken back", func(ctx SpecContext) {
			w.append(user("go"), agent("I stop a"), checkpoint(1), agent("I have stopped a"))
			keyed := create("keyed")
			keyed.Key = "mine"
			answered, waiting, mine := made(ctx, create("a")), made(ctx, create("b")), made(ctx, keyed)
			answer(ctx, answered.ID, "it is made")

			By("moving only the files")
			w.moveTo("files", history.MoveOperation{Checkpoint: 1, KeepPosition: true})
			Expect(made(ctx, create("a")).ID).To(Equal(answered.ID))

			By("moving the conversation")
			w = begin(GinkgoTB(), store, w.task, 2)
			w.moveTo("all", history.MoveOperation{Checkpoint: 1})
			Expect(pending(ctx)).To(BeEmpty(), "what was called before takes effect no more")
			Expect(store.ToolCall(ctx, w.task.UID, waiting.ID)).Error().To(MatchError(history.ErrNotFound))
			Expect(store.NoteToolCall(ctx, waiting.ID, "it")).To(MatchError(history.ErrNotFound))
			page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 100})
			Expect(err).NotTo(HaveOccurred())
			Expect(page.Events).To(ContainElement(HaveField("Message", HaveSuffix("; the 2 calls of tools that had no answer are withdrawn: task_create, task_create"))))

			Expect(made(ctx, create("a"))).To(And(HaveField("ID", Not(Equal(answered.ID))), HaveField("Answer", BeNil())))
			Expect(made(ctx, create("b")).ID).NotTo(Equal(waiting.ID))
			Expect(made(ctx, keyed).ID).To(Equal(mine.ID), "an id is good for ever")
		})

		It("stay when the move is sent again after which they were made", func(ctx SpecContext) {
			w.append(user("go"), agent("I stop a"), checkpoint(1))
			before := made(ctx, create("before"))
			w = begin(GinkgoTB(), store, w.task, 2)
			answered, waiting := made(ctx, create("a")), made(ctx, create("b"))
			answer(ctx, answered.ID, "it is made")

			w.append(history.Record{Attempt: 2, Move: &history.MoveOperation{ID: "all", Reason: "Rewind", Checkpoint: 1}})
			Expect(pending(ctx)).To(ConsistOf(waiting.ID))
			Expect(store.ToolCall(ctx, w.task.UID, before.ID)).Error().To(MatchError(history.ErrNotFound))
			Expect(made(ctx, create("a"))).To(And(HaveField("ID", answered.ID), HaveField("Answer", Not(BeNil()))))
		})

		It("have the same id again after they were lost, with the agent's id or that of the wish, but not without", func(ctx SpecContext) {
			keyed, wished := create("a"), create("c")
			keyed.Key, wished.WishID = "mine", "mine"
			before := []string{made(ctx, keyed).ID, made(ctx, wished).ID, made(ctx, create("b")).ID}
			Expect(connect(GinkgoTB(), dsn).Exec(ctx, "TRUNCATE tool_calls RESTART IDENTITY")).Error().NotTo(HaveOccurred(), "as with an older copy")
			after := []string{made(ctx, keyed).ID, made(ctx, wished).ID, made(ctx, create("b")).ID}
			Expect(after[:2]).To(Equal(before[:2]))
			Expect(after[0]).NotTo(Equal(after[1]))
			Expect(after[2]).NotTo(Equal(before[2]))
		})

		It("are found by what they wish whatever the id of the wish, as after the volume was lost", func(ctx SpecContext) {
			wished := create("a")
			wished.WishID = "one"
			call := made(ctx, wished)
			wished.WishID = "two"
			Expect(made(ctx, wished).ID).To(Equal(call.ID))

			By("wishing the same once the answer has reached the agent, with an id that was not forgotten")
			answer(ctx, call.ID, "it is made")
			w.append(delivered(call.ID))
			wished.WishID = "one"
			Expect(made(ctx, wished)).To(And(HaveField("ID", Not(Equal(call.ID))), HaveField("Answer", BeNil())))
		})

		It("are not carried out again when an older copy lacks an answer that was delivered", func(ctx SpecContext) {
			keyed := create("a")
			keyed.Key = "mine"
			call := made(ctx, keyed)
			w.append(delivered(call.ID))
			Expect(pending(ctx)).To(BeEmpty())
			Expect(made(ctx, keyed)).To(And(HaveField("ID", call.ID), HaveField("Answer.Text", ContainSubstring("carried out before"))))
			Expect(made(ctx, create("a")).ID).NotTo(Equal(call.ID))
		})
	})

	It("keep what is noted of them until they are answered", func(ctx SpecContext) {
		call := made(ctx, create("a"))
		Expect(store.NoteToolCall(ctx, call.ID, "uid at generation 7")).To(Succeed())
		Expect(store.ToolCall(ctx, w.task.UID, call.ID)).To(HaveField("Noted", "uid at generation 7"))
		Expect(store.NoteToolCall(ctx, "unknown", "it")).To(MatchError(history.ErrNotFound))
		answer(ctx, call.ID, "it is made")
		Expect(store.NoteToolCall(ctx, call.ID, "it")).To(MatchError(history.ErrNotFound))
	})

	It("are one entry of the timeline each, as the manager tells it, whoever tells of them first", func(ctx SpecContext) {
		tells := func(id, message, delivered string) history.Record {
			details := map[string]string{history.ToolCallAbout: id}
			if delivered != "" {
				details[history.ToolCallDelivered] = delivered
			}
			return history.Record{Event: &history.DaemonEvent{Reason: "ToolCalled", Message: message, Details: details}}
		}
		answered := func(id string) {
			GinkgoHelper()
			Expect(store.RecordEvents(ctx, []history.Event{{ID: history.ToolCallEventID(w.task.UID, id), Task: w.task, Time: time.Now(),
				Type: history.EventTypeTask, Reason: "ToolCalled", Actor: "task lead", Message: "the manager tells of " + id}})).To(Succeed())
		}
		answered("one")
		w.append(tells("one", "not delivered", ""), tells("one", "delivered", "one"))
		w.append(tells("two", "the agent called task_list, and nothing else", ""), tells("two", "delivered", "two"))
		answered("two")
		answered("two")
		w.append(tells("two", "the agent called task_list once more", ""))
		w.append(tells("three", "what the manager told of three was lost", ""))
		w.append(history.Record{Event: &history.DaemonEvent{Reason: "ToolCalled", Message: "of no call"}}, history.Record{Event: &history.DaemonEvent{Reason: "ToolCalled", Message: "of no call"}})
		w.append(history.Record{Event: &history.DaemonEvent{Reason: "RiskyToolCalled", Message: "another event", Details: map[string]string{history.ToolCallAbout: "one"}}})
		page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 100})
		Expect(err).NotTo(HaveOccurred())
		var messages []string
		for _, e := range page.Events {
			messages = append(messages, e.Message)
		}
		Expect(messages).To(ConsistOf("the manager tells of one", "the manager tells of two", "what the manager told of three was lost", "of no call", "of no call", "another event"))
	})

	It("are refused to attempts that are over, and to tasks that have not begun", func(ctx SpecContext) {
		begin(GinkgoTB(), store, w.task, 2)
		Expect(try(ctx, create("a"))).Error().To(MatchError(history.ErrFenced))
		for _, unknown := range []history.Task{taskNamed("other"), {Namespace: "elsewhere", Name: "lead", UID: w.task.UID}} {
			Expect(store.CallTool(ctx, unknown, 2, create("a"))).Error().To(MatchError(history.ErrNotFound))
		}
		Expect(pending(ctx)).To(BeEmpty())
	})

	It("are those of one task", func(ctx SpecContext) {
		call := made(ctx, create("a"))
		other := begin(GinkgoTB(), store, taskNamed("other"), 1)
		Expect(store.ToolCall(ctx, other.task.UID, call.ID)).Error().To(MatchError(history.ErrNotFound))
		foreign := create("a")
		foreign.Delivered = []string{call.ID}
		Expect(store.CallTool(ctx, other.task, 1, foreign)).To(HaveField("ID", Not(Equal(call.ID))))
		other.append(delivered(call.ID))
		Expect(made(ctx, create("a")).ID).To(Equal(call.ID), "nobody else delivers its answers")
	})

	It("are bounded", func(ctx SpecContext) {
		var newest history.ToolCall
		for n := range 20 {
			newest = made(ctx, create(fmt.Sprint(n)))
		}
		Expect(try(ctx, create("one more"))).Error().To(MatchError(history.ErrUnanswered))
		Expect(made(ctx, create("7")).Answer).To(BeNil(), "one that waits may be repeated")
		long := create("long")
		long.Arguments = []byte(strings.Repeat("x", toolcall.MaxArguments+1))
		Expect(try(ctx, long)).Error().To(MatchError(history.ErrInvalid))

		By("keeping those that were not delivered longest")
		conn := connect(GinkgoTB(), dsn)
		Expect(conn.Exec(ctx, `INSERT INTO tool_calls (attempt, task_id, id, tool, call_key, digest, arguments, answered, delivered)
			SELECT 1, task_id, 'old-' || n, '', '', '', '', now(), now() FROM tool_calls, generate_series(1, 1100) n WHERE id = $1`, newest.ID)).Error().NotTo(HaveOccurred())
		answer(ctx, newest.ID, "it is made")
		Expect(made(ctx, create("one more")).Answer).To(BeNil())
		Expect(count(GinkgoTB(), dsn, "tool_calls WHERE delivered IS NOT NULL")).To(Equal(999))
		Expect(count(GinkgoTB(), dsn, "tool_calls WHERE delivered IS NULL")).To(Equal(21))
		Expect(count(GinkgoTB(), dsn, "tool_calls WHERE id = 'old-101'")).To(BeZero())
	})

	It("end although the limit of what is stored is reached", func(ctx SpecContext) {
		full := limited(GinkgoTB(), dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond})
		call := made(ctx, create("a"))
		answer(ctx, call.ID, "it is made")
		records := w.number(user(long(80<<10, "much")), delivered(call.ID))
		Eventually(func() error {
			_, err := full.Append(ctx, w.task, 1, records)
			return err
		}).Should(Succeed(), "once the grace period is over")
		Expect(made(ctx, create("a")).ID).NotTo(Equal(call.ID))
	})

	It("are announced each time when they are made, and once when they are answered or taken back", func(ctx SpecContext) {
		listening, cancel := context.WithCancel(ctx)
		notified, ended := make(chan history.ToolCallNotification, 10), make(chan error, 1)
		go func() {
			ended <- store.ListenToolCalls(listening, func(n history.ToolCallNotification) { notified <- n })
		}()
		expect := func(want history.ToolCallNotification) {
			GinkgoHelper()
			Eventually(notified).WithTimeout(20 * time.Second).Should(Receive(Equal(want)))
		}
		expect(history.ToolCallNotification{})
		call := made(ctx, create("a"))
		expect(history.ToolCallNotification{Task: w.task, ID: call.ID})
		made(ctx, create("a"))
		expect(history.ToolCallNotification{Task: w.task, ID: call.ID}) // whoever has missed it learns of it
		answer(ctx, call.ID, "it is made")
		expect(history.ToolCallNotification{Task: w.task, ID: call.ID, Answered: true})
		answer(ctx, call.ID, "another answer")
		made(ctx, create("a"))
		next := made(ctx, create("b"))
		expect(history.ToolCallNotification{Task: w.task, ID: next.ID})
		w = begin(GinkgoTB(), store, w.task, 2)
		w.moveTo("back", history.MoveOperation{})
		expect(history.ToolCallNotification{Task: w.task, ID: next.ID, Answered: true})
		cancel()
		Eventually(ended).WithTimeout(20 * time.Second).Should(Receive(MatchError(context.Canceled)))
	})

	It("are deleted with the history, and are unknown from then on", func(ctx SpecContext) {
		call := made(ctx, create("a"))
		remove(GinkgoTB(), w)
		Expect(count(GinkgoTB(), dsn, "tool_calls")).To(BeZero())
		Expect(store.AnswerToolCall(ctx, call.ID, toolcall.Answer{})).To(MatchError(history.ErrNotFound))
		Expect(try(ctx, create("a"))).Error().To(MatchError(history.ErrFenced))
	})

	It("are not those of a task that continues the history", func(ctx SpecContext) {
		made(ctx, create("a"))
		next := history.Task{Namespace: w.task.Namespace, Name: w.task.Name, UID: "next-uid"}
		Expect(store.Adopt(ctx, next, w.task.UID)).To(Succeed())
		Expect(pending(ctx)).To(BeEmpty())
	})
})
