package controller_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/toolcall"
)

// calls has the agent of a supervisor call a tool, and returns the call's id.
func (w *world) calls(supervisor, tool, format string, args ...any) string {
	w.Helper()
	canonical, err := toolcall.Canonical(fmt.Appendf(nil, format, args...))
	w.Expect(err).NotTo(HaveOccurred())
	return w.store.Call(w.id(supervisor), tool, string(canonical))
}

// answer waits for the answer to a call.
func (w *world) answer(supervisor, id string) toolcall.Answer {
	w.Helper()
	var found history.ToolCall
	w.Eventually(func() (*toolcall.Answer, error) {
		var err error
		found, err = w.store.ToolCall(w.ctx, w.id(supervisor).UID, id)
		return found.Answer, err
	}).ShouldNot(BeNil(), "call %s has an answer", id)
	return *found.Answer
}

// answered has a tool called, and fails unless it was carried out and the answer matches.
func (w *world) answered(supervisor, tool, arguments string, text types.GomegaMatcher) {
	w.Helper()
	w.Expect(w.answer(supervisor, w.calls(supervisor, tool, "%s", arguments))).To(And(HaveField("Refused", BeFalse()), HaveField("Text", text)))
}

// beginsPhase has the checkpoint taken with which a phase of the supervisor's contract is to begin.
func (w *world) beginsPhase(supervisor, phase string, change ...func(*history.Checkpoint)) {
	w.Helper()
	var start v1alpha1.Checkpoint
	w.Eventually(func() (string, error) {
		list := &v1alpha1.CheckpointList{}
		err := w.client.List(w.ctx, list, client.InNamespace(w.namespace))
		for _, c := range list.Items {
			if resources.IsPhaseStart(&c) && c.Spec.TaskRef.Name == supervisor && c.Status.Number == 0 {
				start = c
			}
		}
		return start.Spec.Message, err
	}).Should(Equal("before the phase " + phase))
	taken := history.Checkpoint{
		Attempt: 1, Trigger: string(v1alpha1.TriggerManual), Time: time.Now(), Durable: true, RequestedByName: start.Name, RequestedByUID: string(start.UID),
	}
	for _, c := range change {
		c(&taken)
	}
	w.store.AddCheckpoint(w.id(supervisor), taken)
}

// refused has a tool called, and fails unless it was refused with those words.
func (w *world) refused(supervisor, tool, arguments, words string) {
	w.Helper()
	w.Expect(w.answer(supervisor, w.calls(supervisor, tool, "%s", arguments))).To(And(HaveField("Refused", BeTrue()), HaveField("Text", ContainSubstring(words))))
}

// children returns the names of the tasks that name a parent.
func (w *world) children(parent string) (names []string) {
	w.Helper()
	for _, t := range w.tasks() {
		if ref := t.Spec.ParentRef; ref != nil && ref.Name == parent {
			names = append(names, t.Name)
		}
	}
	return names
}

// atOnce limits the children of a supervisor that run at once.
func atOnce(n int32) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{AtOnce: &n} }
}

// body returns the body of a request, which stays as it is.
func (w *world) body(r *http.Request) string {
	w.Helper()
	body, err := r.GetBody()
	w.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(body)
	w.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

var _ = Describe("A supervisor's agent", func() {
	It("makes children, each once, and whoever looks sees whose agent has asked", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		id := w.calls("lead", "task_create", `{"name":"parser","prompt":"Write a parser."}`)
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeFalse()), HaveField("Text", ContainSubstring("The task parser was made (Task lead-parser)")),
			HaveField("Data", MatchJSON(fmt.Sprintf(`{"task":"parser","object":"lead-parser","uid":%q,"contract":"port","phase":"Research"}`, w.id("lead-parser").UID)))))
		child := w.task("lead-parser")
		w.Expect(*child.Spec.Prompt).To(Equal("Write a parser."))
		w.Expect(child.Spec.Template).To(Equal(w.task("lead").Spec.Template))
		w.Expect(child.Spec.Contract).To(HaveValue(Equal(v1alpha1.Contract{Name: "port", Phase: v1alpha1.PhaseResearch})))
		w.Expect(child.Spec.RequestedBy).To(HaveValue(Equal(v1alpha1.TaskRequesters{Created: "task:lead", OperatingMode: "task:lead", Contract: "task:lead"})))
		w.start(w.pod("lead-parser", 1))
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.Expect(w.task("lead-parser").Status.Parent.UID).To(Equal(string(w.task("lead").UID)))

		By("telling it in the supervisor's timeline")
		w.Expect(w.store.Events(w.id("lead").UID)).To(ContainElement(And(HaveField("ID", history.ToolCallEventID(w.id("lead").UID, id)), HaveField("Reason", v1alpha1.EventToolCalled),
			HaveField("Actor", "task lead"), HaveField("Message", ContainSubstring("task_create: the task parser was made")))))

		By("asking for the same once more, and for something else under that name")
		w.answered("lead", "task_create", `{"name":"parser","prompt":"Write a parser."}`, ContainSubstring("The task parser was made"))
		w.refused("lead", "task_create", `{"name":"parser","prompt":"Write a lexer."}`, "choose another name")
		w.Expect(w.children("lead")).To(ConsistOf("lead-parser"))

		By("giving a name by which it means another child")
		w.apply("docs", childOf("lead"))
		w.refused("lead", "task_create", `{"name":"docs","prompt":"p"}`, "The name docs means another child of the task lead already")
	})

	It("makes one child for a call whose answer was lost, and whose manager was killed", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/tasks") {
				w.store.SetDown(true)
				return errAfterwards
			}
			return nil
		})
		id := w.calls("lead", "task_create", `{"name":"parser","prompt":"Write a parser."}`)
		w.Eventually(w.current).WithArguments("lead-parser").ShouldNot(BeNil())
		w.requests.setSpoil(nil)
		w.stop()
		w.store.SetDown(false)
		w.startManager()
		w.Expect(w.answer("lead", id).Text).To(ContainSubstring("The task parser was made"))
		w.Expect(w.children("lead")).To(ConsistOf("lead-parser"))
	})

	It("has no more children than it may have, however many it asks for at once", func() {
		w := newWorld()
		w.running("lead", leads("port"), maximum(3))
		w.apply("applied", childOf("lead"))
		w.pod("applied", 1)
		ids := make([]string, 6)
		for i := range ids {
			ids[i] = w.calls("lead", "task_create", `{"name":"part-%d","prompt":"A part."}`, i)
		}
		refused := 0
		for _, id := range ids {
			if a := w.answer("lead", id); a.Refused {
				refused++
				w.Expect(a.Text).To(ContainSubstring("has 3 children, and children.maximum allows 3"))
			}
		}
		w.Expect(refused).To(Equal(4))
		w.Expect(w.children("lead")).To(HaveLen(3))
	})

	It("runs only so many of its children at once, in the order of their age", func() {
		w := newWorld()
		w.running("lead", leads("port"), atOnce(1))
		w.answered("lead", "task_create", `{"name":"one","prompt":"p"}`, ContainSubstring("was made"))
		w.pod("lead-one", 1)
		w.apply("two", childOf("lead"))
		w.apply("none-of-them")
		w.pod("none-of-them", 1)
		w.until("two", v1alpha1.ReasonQueued)
		w.Expect(w.task("two")).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("at most 1 child of lead runs at once")))
		w.finish("lead-one", 1)
		w.pod("two", 1)

		By("raising the limit")
		w.apply("three", childOf("lead"))
		w.until("three", v1alpha1.ReasonQueued)
		w.change("lead", atOnce(2))
		w.pod("three", 1)
	})

	It("stops a child, and goes on with it, once for each call", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		p := w.pod("lead-parser", 1)
		w.start(p)
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.refused("lead", "task_resume", `{"task":"parser","prompt":"Go on."}`, "has not stopped (Running)")
		w.answered("lead", "task_stop", `{"task":"parser"}`, ContainSubstring("The task parser"))
		w.untilStopped(p)
		w.record("lead-parser", v1alpha1.TriggerSuspend, 1)
		w.until("lead-parser", v1alpha1.ReasonSuspended)

		id := w.calls("lead", "task_resume", `{"task":"lead-parser","prompt":"Go on."}`)
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeFalse()), HaveField("Text", ContainSubstring("The task parser goes on"))))
		p = w.pod("lead-parser", 2)
		w.Expect(w.operation(p)).To(HaveValue(And(HaveField("ID", "tool-"+id), HaveField("Prompt", "Go on."))))
		w.Eventually(func() map[string]string { return w.actors("lead-parser") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventTaskSuspended, "task lead"), HaveKeyWithValue(v1alpha1.EventTaskResumed, "task lead")))
	})

	It("goes on with no child once the conversation in which it asked for that is taken back", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		p := w.pod("lead-parser", 1)
		w.start(p)
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.answered("lead", "task_stop", `{"task":"parser"}`, ContainSubstring("is being stopped"))
		id := w.calls("lead", "task_resume", `{"task":"parser","prompt":"Go on."}`)
		w.answered("lead", "task_stop", `{"task":"parser"}`, ContainSubstring("is being stopped")) // the resume, before it, waits by now
		w.store.TakeBackCalls(w.id("lead"))
		w.untilStopped(p)
		w.record("lead-parser", v1alpha1.TriggerSuspend, 1)
		w.until("lead-parser", v1alpha1.ReasonSuspended)
		w.Consistently(w.current).WithArguments("lead-parser").WithTimeout(time.Second).Should(HaveField("Spec.OperatingMode", v1alpha1.OperatingModeSuspended))
		w.Expect(w.store.Events(w.id("lead").UID)).NotTo(ContainElement(HaveField("ID", history.ToolCallEventID(w.id("lead").UID, id))))
	})

	It("takes a child that works back to a checkpoint, with another prompt", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		p := w.pod("lead-parser", 1)
		w.start(p)
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.recordMany("lead-parser", 2)
		w.refused("lead", "task_rewind", `{"task":"parser","checkpoint":7}`, "The newest checkpoint of the task parser is 2")
		id := w.calls("lead", "task_rewind", `{"task":"parser","checkpoint":1,"prompt":"Otherwise."}`)
		w.untilStopped(p)
		w.record("lead-parser", v1alpha1.TriggerSuspend, 1)
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeFalse()), HaveField("Text", ContainSubstring("The task parser goes back to checkpoint 1"))))
		w.Expect(w.operation(w.pod("lead-parser", 2))).To(HaveValue(And(HaveField("Prompt", "Otherwise."), HaveField("Rewind", HaveValue(HaveField("Checkpoint", BeEquivalentTo(1)))))))
	})

	It("steers no child that somebody applied, and none that a person has suspended", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.running("applied", childOf("lead"))
		before := w.task("applied")
		w.refused("lead", "task_stop", `{"task":"applied"}`, "a supervisor steers only the tasks that its own tools have made")
		w.refused("lead", "task_rewind", `{"task":"applied","checkpoint":1}`, "a supervisor steers only the tasks that its own tools have made")
		w.refused("lead", "task_stop", `{"task":"lead"}`, "has no child lead")
		w.Expect(w.task("applied").Generation).To(Equal(before.Generation))

		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		p := w.pod("lead-parser", 1)
		w.start(p)
		w.change("lead-parser", builders.Suspended)
		w.untilStopped(p)
		w.record("lead-parser", v1alpha1.TriggerSuspend, 1)
		w.until("lead-parser", v1alpha1.ReasonSuspended)
		w.refused("lead", "task_resume", `{"task":"parser","prompt":"Go on."}`, "and not by its supervisor")
	})

	It("forks a child, and the new tasks are its children as well", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		w.start(w.pod("lead-parser", 1))
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.recordMany("lead-parser", 1)
		const arguments = `{"task":"parser","name":"ways","variants":[{"name":"fast","prompt":"Fast."},{"name":"small"}]}`
		w.answered("lead", "task_fork", arguments, Equal("From checkpoint 1 of the task parser go on: fast, small."))
		w.answered("lead", "task_fork", arguments, Equal("From checkpoint 1 of the task parser go on: fast, small."))
		w.Expect(w.children("lead")).To(ConsistOf("lead-parser", "lead-fast", "lead-small"))
		p := w.pod("lead-fast", 1)
		w.Eventually(func() map[string]string { return w.actors("lead-fast") }).Should(HaveKeyWithValue(v1alpha1.EventTaskForked, "task lead"))
		w.start(p)
		w.until("lead-fast", v1alpha1.ReasonRunning)
		w.answered("lead", "task_stop", `{"task":"fast"}`, ContainSubstring("The task fast"))
	})

	It("moves its contract to another phase, once, whoever restarts", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.refused("lead", "phase_set", `{"phase":"Deploy"}`, "Research, Specify, Plan, Execute, Review")
		first := w.calls("lead", "phase_set", `{"phase":"Execute"}`)
		w.beginsPhase("lead", "Execute")
		w.Expect(w.answer("lead", first).Text).To(Equal("The contract port is in phase Execute."))
		w.Expect(w.task("lead").Status.History).To(ContainElement(And(HaveField("Reason", v1alpha1.EventPhaseChanged), HaveField("Actor", "task lead"),
			HaveField("Message", "the contract port goes from phase Research to Execute, with checkpoint 1"))))

		By("killing the manager between the move and its answer")
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/tasks/lead/status") && strings.Contains(w.body(r), `"phase":"Review"`) {
				w.store.SetDown(true)
			}
			return nil
		})
		id := w.calls("lead", "phase_set", `{"phase":"Review"}`)
		w.beginsPhase("lead", "Review")
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("Status.Contract.Phase", v1alpha1.PhaseReview))
		w.requests.setSpoil(nil)
		w.stop()
		w.store.SetDown(false)
		w.change("lead", func(t *v1alpha1.Task) { t.Spec.Contract.Phase = v1alpha1.PhasePlan })
		w.startManager()
		w.Expect(w.answer("lead", id).Refused).To(BeFalse())
		w.beginsPhase("lead", "Plan")
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("Status.Contract.Phase", v1alpha1.PhasePlan))
		w.Eventually(func() (moves []string) {
			for _, e := range w.store.Events(w.id("lead").UID) {
				if e.Reason == v1alpha1.EventPhaseChanged {
					moves = append(moves, strings.TrimPrefix(e.Message, "the contract port "))
				}
			}
			return moves
		}).Should(HaveExactElements("begins in phase Research", "goes from phase Research to Execute, with checkpoint 1",
			"goes from phase Execute to Review, with checkpoint 2", "goes from phase Review to Plan, with checkpoint 3"))
	})

	It("leaves its contract in its phase when the checkpoint is not kept with which another one would begin", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		id := w.calls("lead", "phase_set", `{"phase":"Execute"}`)
		w.beginsPhase("lead", "Execute", func(c *history.Checkpoint) { c.Durable, c.Refused = false, "no room is left" })
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeTrue()), HaveField("Text", And(
			ContainSubstring("The contract port stays in phase Research"), ContainSubstring("no room is left")))))
		w.Expect(w.task("lead").Status.Contract.Phase).To(Equal(v1alpha1.PhaseResearch))
	})

	It("publishes the newest checkpoint of a child as its own spec says", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) {
			t.Spec.Publish = &v1alpha1.Publish{Branch: "work", ProtectedPaths: []string{"deploy/"}, PushOptions: []string{"merge_request.create"}}
		})
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		w.start(w.pod("lead-parser", 1))
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.refused("lead", "publish", `{"task":"parser"}`, "has no checkpoint yet")
		w.recordMany("lead-parser", 2)
		id := w.calls("lead", "publish", `{"task":"parser"}`)
		pod, config := w.branchPublisher("lead-parser-2", "work", 1)
		w.Expect(config.Ref).To(Equal("refs/heads/work"))
		w.Expect(config.ProtectedPaths).To(ConsistOf("deploy/"))
		w.Expect(config.PushOptions).To(ConsistOf("merge_request.create"))
		w.Expect(w.checkpoint("lead-parser-2").Spec.Branches).To(HaveExactElements(HaveField("RequestedBy", "task:lead")))
		const commit = "0123456789012345678901234567890123456789"
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeFalse()), HaveField("Text", ContainSubstring(commit))))

		By("publishing a later one to the same branch")
		w.recordMany("lead-parser", 1)
		id = w.calls("lead", "publish", `{"task":"parser"}`)
		pod, config = w.branchPublisher("lead-parser-3", "work", 1)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonProtectedPaths, Message: "it changes deploy/prod.yaml", Commit: commit, Protected: []string{"deploy/prod.yaml"}})
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeTrue()), HaveField("Text", ContainSubstring("ProtectedPaths"))))
		w.Expect(w.checkpoint("lead-parser-2").Spec.Branches).To(BeEmpty())
	})

	It("is told whose work its branch has, when that of another child cannot be published there", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "work"} })
		ends := map[string]daemonapi.PublishResult{
			"parser":  {Reason: v1alpha1.ReasonPublished, Ref: "refs/heads/work", Commit: strings.Repeat("0", 40)},
			"printer": {Reason: v1alpha1.ReasonDiverged, Message: "refs/heads/work has others' work"},
		}
		for _, name := range []string{"parser", "printer"} {
			w.answered("lead", "task_create", `{"name":"`+name+`","prompt":"p"}`, ContainSubstring("was made"))
			w.start(w.pod("lead-"+name, 1))
			w.until("lead-"+name, v1alpha1.ReasonRunning)
			w.recordMany("lead-"+name, 1)
			id := w.calls("lead", "publish", `{"task":"%s"}`, name)
			pod, _ := w.branchPublisher("lead-"+name+"-1", "work", 1)
			w.publishEnds(pod, ends[name])
			said := HaveField("Text", ContainSubstring("is at refs/heads/work as"))
			if name == "printer" {
				said = HaveField("Text", ContainSubstring("The work of the task lead-parser was published there, checkpoint 1, and a branch has the work of one task: have that one go on with task_resume"))
			}
			w.Expect(w.answer("lead", id)).To(said)
		}
	})

	It("is refused what its spec or the API server does not allow", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) { t.Spec.Tools = []v1alpha1.AgentTool{v1alpha1.ToolTaskCreate} })
		w.refused("lead", "task_stop", `{"task":"a"}`, "does not have this tool, as its spec.tools says")
		w.refused("lead", "task_create", `{"name":"a","prompt":"p","template":{}}`, "The arguments are not those of task_create")
		w.refused("lead", "task_create", `{"name":"bell","prompt":"bell\u0007"}`, "prompt must be text without control characters")
		w.running("worker")
		w.refused("worker", "task_create", `{"name":"a","prompt":"p"}`, "only a supervisor has this tool")
	})

	It("gets its answer after an outage of the history store", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.store.SetDown(true)
		id := w.calls("lead", "task_create", `{"name":"late","prompt":"p"}`) // nobody is told
		w.stop()
		w.store.SetDown(false)
		w.startManager()
		w.Expect(w.answer("lead", id).Refused).To(BeFalse())
		w.Expect(w.children("lead")).To(ConsistOf("lead-late"))
	})

	It("starts a child from its own files as they are now, without its conversation", func() {
		w := newWorld()
		p := w.running("lead", leads("port"))
		w.refused("lead", "task_create", `{"name":"parser","prompt":"p","start_from":"self"}`, "take one with the tool checkpoint first")
		w.store.Begin(w.id("lead"), 1)
		w.record("lead", v1alpha1.TriggerManual, 1)
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p","start_from":"self"}`, ContainSubstring("was made"))
		from := w.task("lead-parser").Spec.StartFrom
		w.Expect(from).To(HaveValue(And(HaveField("At.CheckpointNumber", HaveValue(BeEquivalentTo(1))), HaveField("Conversation", v1alpha1.ConversationExclude))))
		w.Expect(w.config(w.pod("lead-parser", 1)).Source).To(HaveValue(And(HaveField("Checkpoint", BeEquivalentTo(1)), HaveField("IncludeConversation", BeFalse()))))

		By("being gone itself, by then")
		id := w.calls("lead", "task_create", `{"name":"last","prompt":"p","depends_on":["parser"]}`)
		w.Expect(w.answer("lead", id).Text).To(ContainSubstring("starts when parser has completed"))
		w.Expect(w.client.Delete(w.ctx, w.task("lead"))).To(Succeed())
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("DeletionTimestamp", Not(BeNil())))
		w.refused("lead", "task_create", `{"name":"too-late","prompt":"p"}`, "is being deleted")
		w.untilStopped(p)
	})
})
