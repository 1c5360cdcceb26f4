package postgres_test

import (
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/toolcall"
)

var _ = Describe("What the calls of a supervisor's tools did", func() {
	var (
		dsn   string
		store *postgres.Store
		lead  *writer
	)
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		lead = begin(GinkgoTB(), store, taskNamed("lead"), 1)
		lead.append(user("go"))
	})
	// answered is a call that the manager has carried out.
	answered := func(ctx SpecContext, tool string, done toolcall.Done) string {
		GinkgoHelper()
		data, err := json.Marshal(done)
		Expect(err).NotTo(HaveOccurred())
		call, err := store.CallTool(ctx, lead.task, lead.attempt, history.NewToolCall{Tool: tool, Arguments: data})
		Expect(err).NotTo(HaveOccurred())
		Expect(store.AnswerToolCall(ctx, call.ID, toolcall.Answer{Text: "done", Data: data})).To(Succeed())
		return call.ID
	}
	// shown is the result of an agent's call that shows the answer to a call, and the record behind it.
	shown := func(callID, id string) []history.Record {
		m := conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: callID, Output: "It is made.\n" + toolcall.Marker(id)}}
		return []history.Record{{Message: &m}, reached(id)}
	}
	// effects are those of the conversation, or of another branch of it, by position.
	effects := func(ctx SpecContext, branch string) map[int64][]history.CallEffect {
		GinkgoHelper()
		page, err := store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "lead", Branch: branch, Limit: 500, WithEffects: true})
		Expect(err).NotTo(HaveOccurred())
		found := map[int64][]history.CallEffect{}
		for _, e := range page.Entries {
			if len(e.Effects) > 0 {
				found[e.Position] = e.Effects
			}
		}
		return found
	}
	parser := toolcall.Done{Task: "parser", Object: "lead-parser", UID: "uid-of-parser", Phase: "Plan"}
	made := history.CallEffect{Tool: "task_create", Task: "lead-parser", UID: "uid-of-parser", Phase: "Plan"}
	again := made
	again.Repeated = true

	It("is at the message with the call, whatever was called beside it", func(ctx SpecContext) {
		first, second := answered(ctx, "task_create", parser), answered(ctx, "task_stop", toolcall.Done{Object: "lead-docs", UID: "uid-of-docs"})
		lead.append(agent("I begin"), call("a"), call("b"))
		lead.append(append(shown("b", second), shown("a", first)...)...)
		Expect(effects(ctx, "")).To(Equal(map[int64][]history.CallEffect{
			3: {made}, 4: {{Tool: "task_stop", Task: "lead-docs", UID: "uid-of-docs"}},
		}))
		Expect(lead.entries()[2].Effects).To(BeEmpty(), "nobody has asked for them")

		By("reading a page that begins behind one of them")
		page, err := store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "lead", After: 3, Limit: 1, WithEffects: true})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Entries).To(HaveExactElements(HaveField("Effects", HaveLen(1))))
	})

	It("is at the call that has started a program, which has the answer before the call has a result", func(ctx SpecContext) {
		id := answered(ctx, "task_create", parser)
		lead.append(call("shell"))
		lead.append(reached(id), result("shell"))
		Expect(effects(ctx, "")).To(Equal(map[int64][]history.CallEffect{2: {made}}))
	})

	It("is at the last message of an agent that reports no calls", func(ctx SpecContext) {
		id := answered(ctx, "phase_set", toolcall.Done{Contract: "port", Phase: "Execute"})
		lead.append(agent("on we go"), reached(id))
		Expect(effects(ctx, "")).To(Equal(map[int64][]history.CallEffect{2: {{Tool: "phase_set", Phase: "Execute"}}}))
	})

	It("is at a call whose answer the agent has never seen, and made nothing at the same call again", func(ctx SpecContext) {
		id := answered(ctx, "task_create", parser)
		unseen := reached(id)
		delete(unseen.Event.Details, history.ToolCallDelivered)
		lead.append(call("a"), unseen, interrupted("a"), call("b"))
		lead.append(shown("b", id)...)
		Expect(effects(ctx, "")).To(Equal(map[int64][]history.CallEffect{2: {made}, 4: {again}}))
		Expect(store.MadeBy(ctx, history.Key{Namespace: "team", UID: "uid-of-parser"})).To(HaveField("Position", int64(2)))
	})

	It("is made once, however often the agent asks for the same task, on whatever branch", func(ctx SpecContext) {
		lead.append(checkpoint(1))
		first := answered(ctx, "task_create", parser)
		lead.append(call("a"))
		lead.append(shown("a", first)...)
		lead.moveTo("back", history.MoveOperation{Checkpoint: 1})
		second := answered(ctx, "task_create", parser)
		lead.append(call("b"))
		lead.append(shown("b", second)...)
		Expect(effects(ctx, "")).To(Equal(map[int64][]history.CallEffect{2: {again}}))
		taken := made
		taken.TakenBack = true
		Expect(effects(ctx, "main")).To(Equal(map[int64][]history.CallEffect{2: {taken}}))
	})

	It("is nothing if the call was refused, is of another task, or is unknown", func(ctx SpecContext) {
		refused, err := store.CallTool(ctx, lead.task, 1, history.NewToolCall{Tool: "task_stop", Arguments: []byte(`{}`)})
		Expect(err).NotTo(HaveOccurred())
		Expect(store.AnswerToolCall(ctx, refused.ID, toolcall.Answer{Refused: true, Text: "no", Data: []byte(`{"object":"x"}`)})).To(Succeed())
		foreign := answered(ctx, "task_create", parser)
		lead.append(reached(answered(ctx, "publish", toolcall.Done{Object: "lead", UID: lead.task.UID, Checkpoint: 3}))) // it is not there yet
		lead.append(call("a"), reached(refused.ID), reached("unknown"), result("a"))
		other := begin(GinkgoTB(), store, taskNamed("other"), 1)
		other.append(call("a"))
		other.append(shown("a", foreign)...)
		Expect(effects(ctx, "")).To(BeEmpty())
		Expect(count(GinkgoTB(), dsn, "call_effects")).To(BeZero())
	})

	It("names every task that a fork has made, and what has become of each", func(ctx SpecContext) {
		one := begin(GinkgoTB(), store, history.Task{Namespace: "team", Name: "lead-one", UID: "uid-of-one"}, 1)
		Expect(store.RecordEvents(ctx, []history.Event{{ID: "e", Task: one.task, Reason: "TaskCompleted", State: "Completed", Time: time.Now()}})).To(Succeed())
		id := answered(ctx, "task_fork", toolcall.Done{Object: "lead-ways", UID: "uid-of-fork", Checkpoint: 7, Made: []toolcall.Made{{Object: "lead-one", UID: "uid-of-one"}, {Object: "lead-two", UID: "uid-of-two"}}})
		lead.append(call("a"))
		lead.append(shown("a", id)...)
		Expect(effects(ctx, "")[2]).To(HaveExactElements(
			And(HaveField("Task", "lead-one"), HaveField("State", "Completed"), HaveField("Checkpoint", int64(7))),
			And(HaveField("Task", "lead-two"), HaveField("State", ""))))
		Expect(store.MadeBy(ctx, one.task.Key())).To(Equal(&history.MadeBy{Task: lead.task, Tool: "task_fork", Branch: "main", Position: 2}))
	})

	When("a rewind takes back the message", func() {
		var key history.Key
		BeforeEach(func(ctx SpecContext) {
			key = history.Key{Namespace: "team", UID: "uid-of-parser"}
			before := answered(ctx, "task_stop", toolcall.Done{Object: "lead-docs", UID: "uid-of-docs"})
			lead.append(call("a"))
			lead.append(append(shown("a", before), checkpoint(1))...)
			id := answered(ctx, "task_create", parser)
			lead.append(call("b"))
			lead.append(shown("b", id)...)
			lead.moveTo("back", history.MoveOperation{Checkpoint: 1})
			lead.append(agent("anew"))
		})

		It("is not in the conversation as it stands", func(ctx SpecContext) {
			Expect(effects(ctx, "")).To(HaveLen(1), "only what was before")
			Expect(effects(ctx, "")[2]).To(HaveExactElements(HaveField("TakenBack", false)))
		})

		It("is on the branch that was left, which says so", func(ctx SpecContext) {
			left := effects(ctx, "main")
			Expect(left[2]).To(HaveExactElements(HaveField("TakenBack", false)))
			Expect(left[4]).To(HaveExactElements(And(HaveField("Task", "lead-parser"), HaveField("TakenBack", true))))
			Expect(store.MadeBy(ctx, key)).To(And(HaveField("Position", int64(4)), HaveField("Branch", "main"), HaveField("TakenBack", true)))
		})
	})

	It("is known of a task that continues the history of the one that was made", func(ctx SpecContext) {
		child := begin(GinkgoTB(), store, history.Task{Namespace: "team", Name: "lead-parser", UID: "uid-of-parser"}, 1)
		id := answered(ctx, "task_create", parser)
		lead.append(call("a"))
		lead.append(shown("a", id)...)
		next := history.Task{Namespace: "team", Name: "lead-parser", UID: "next-uid"}
		Expect(store.Adopt(ctx, next, child.task.UID)).To(Succeed())
		Expect(store.MadeBy(ctx, next.Key())).To(HaveField("Task", lead.task))
		Expect(store.MadeBy(ctx, history.Key{Namespace: "other", UID: "next-uid"})).To(BeNil(), "of another namespace")
	})

	It("is inherited by a fork of the supervisor, and deleted with its history", func(ctx SpecContext) {
		id := answered(ctx, "task_create", parser)
		lead.append(call("a"))
		lead.append(append(shown("a", id), checkpoint(1))...)
		lead.fork("again", 1)
		page, err := store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "again", Limit: 500, WithEffects: true})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Entries[1].Effects).To(HaveExactElements(made))
		remove(GinkgoTB(), lead)
		Expect(count(GinkgoTB(), dsn, "call_effects")).To(BeZero())
	})
})

// reached is the record by which a daemon says that the answer to a call has reached the agent.
func reached(id string) history.Record {
	return history.Record{Event: &history.DaemonEvent{Reason: "ToolCalled", Message: "it was answered",
		Details: map[string]string{history.ToolCallAbout: id, history.ToolCallDelivered: id}}}
}
