//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// finishesOrWaits is a worker that says what it has written, or, when it is told to write slowly, nothing.
const finishesOrWaits = `
case "$CLEW_PROMPT" in *slowly*) sleep infinity;; esac
echo parser >parser.txt
printf '{"type":"message","role":"assistant","text":"The parser has 42 rules."}\n'`

var _ = Describe("a phase that begins again", Label("agents"), func() {
	w := newWorld()

	It("begins with all that was before it, what finished children have come to, and nothing of the failed try", SpecTimeout(5*time.Minute), func(ctx SpecContext) {
		before := map[int]served{
			2: {Name: "task_create", Input: map[string]any{"name": "done", "prompt": "Write the parser."}},
			3: {Name: "task_wait", Input: map[string]any{"tasks": []string{"done"}}, Until: "It has stopped"},
			4: {Name: "phase_set", Input: map[string]any{"phase": clewv1.PhaseExecute}, Until: "is in phase Execute"},
			5: {Name: "task_create", Input: map[string]any{"name": "busy", "prompt": "Write slowly."}},
		}
		const hours = 10_000_000
		m := w.newModel(ctx, "lead", script{Steps: 7, Tools: before, Delays: map[int]int{7: hours},
			Commands: map[int]string{1: "echo plan >plan.txt", 6: "echo failed >tried.txt"}})
		lead := w.agentTask(ctx, "lead", claude(), m)
		lead.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](0)
		w.create(ctx, leadsTwo(lead))

		By("stopping it in the middle of Execute")
		w.eventually(ctx, func() []request { return m.log(ctx) }).WithTimeout(3 * time.Minute).Should(ContainElement(HaveField("Answer", HavePrefix("step 7:"))))
		start := w.phaseStart(ctx, "lead", clewv1.PhaseExecute)
		w.patchSpec(ctx, "lead", map[string]any{"operatingMode": "Suspended"})
		w.untilState(ctx, "lead", time.Minute, clewv1.ReasonSuspended)
		asked := len(m.log(ctx))

		By("beginning Execute again")
		m.script(ctx, script{Steps: 3, Tools: before})
		w.patchSpec(ctx, "lead", map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": "again", "mode": "RestartPhase"}})
		lead = w.untilState(ctx, "lead", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(lead.Status.Resume).To(HaveValue(And(HaveField("State", clewv1.OperationCompleted), HaveField("ToCheckpoint", start))))
		Expect(lead.Status.Contract.Phase).To(Equal(clewv1.PhaseExecute))

		first := m.log(ctx)[asked]
		Expect(first.Steps).To(Equal(upTo(3)), "what was done before the phase, and nothing since")
		// The session is that of the moment of the call of phase_set, for which the agent makes a result up.
		Expect(first.Calls).To(BeElementOf(3, 4), "calls")
		Expect(first.Results).To(Equal(first.Calls), "results, without which models refuse calls")
		Expect(first.prompt()).To(And(
			ContainSubstring("The phase Execute of the contract begins again."), ContainSubstring("lead-done"), ContainSubstring("completed"),
			ContainSubstring("The parser has 42 rules."), ContainSubstring("lead-busy")), "what the model is told")
		Expect(first.Prompts[0]).To(ContainSubstring(beginning))

		w.expectNothingTried(ctx)
	})

	It("tells a command the same, and stops it if it runs", SpecTimeout(5*time.Minute), func(ctx SpecContext) {
		w.create(ctx, leadsTwo(w.newTask("lead", "sh", "-euc", leadsAgain)))
		w.eventually(ctx, func() []string { return texts(w.conversation(ctx, "lead"), "assistant") }).WithTimeout(3 * time.Minute).Should(ContainElement("tried.txt is written"))
		start := w.phaseStart(ctx, "lead", clewv1.PhaseExecute)
		w.patchSpec(ctx, "lead", map[string]any{"resume": map[string]any{"id": "again", "mode": "RestartPhase"}})
		lead := w.untilState(ctx, "lead", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(lead.Status.Resume).To(HaveValue(HaveField("ToCheckpoint", start)))
		told := texts(w.conversation(ctx, "lead"), "user")
		Expect(told[len(told)-1]).To(And(ContainSubstring("begins again"), ContainSubstring("The parser has 42 rules."), ContainSubstring("lead-busy")))
		w.expectNothingTried(ctx)
	})
})

// leadsAgain is a supervisor that tries in the phase Execute, and ends when that begins again.
const leadsAgain = `
if grep -q "begins again" "${CLEW_CONVERSATION:-/dev/null}"; then [ ! -e tried.txt ]; exit; fi
echo plan >plan.txt
printf '{"type":"message","role":"assistant","text":"plan.txt is written"}\n'
clew task create done -p "Write the parser."
clew task wait done
clew phase set Execute
clew task create busy -p "Write slowly."
echo failed >tried.txt
printf '{"type":"message","role":"assistant","text":"tried.txt is written"}\n'
sleep infinity`

// leadsTwo makes a task a supervisor whose workers finish or wait.
func leadsTwo(lead *clewv1.Task) *clewv1.Task {
	lead.Spec.Role, lead.Spec.Contract = clewv1.RoleSupervisor, &clewv1.Contract{Name: "port"}
	template := &clewv1.ChildTemplate{Container: &clewv1.ChildContainer{Image: demoImage, Command: []string{"sh", "-euc", finishesOrWaits}}}
	if lead.Spec.Agent.Type != clewv1.AgentExec {
		template.Agent = &clewv1.ChildAgent{Type: clewv1.AgentExec}
	}
	lead.Spec.Children = &clewv1.Children{Template: template}
	return lead
}

// expectNothingTried expects that neither the files nor the conversation have anything of the failed try, that
// its child is stopped, and that the one that had finished is left as it is.
func (w *world) expectNothingTried(ctx context.Context) {
	GinkgoHelper()
	untried := And(ContainSubstring("plan.txt"), Not(ContainSubstring("tried.txt")))
	Expect(w.plugin(ctx, "task", "history", "lead")).To(untried)
	Expect(w.plugin(ctx, "diff", "lead", "--name-only")).To(untried)
	w.untilState(ctx, "lead-busy", time.Minute, clewv1.ReasonPhaseRestarted)
	Expect(state(w.task(ctx, "lead-done"))).To(Equal(clewv1.ReasonCompleted))
}

// phaseStart returns the number of the checkpoint with which a phase began, which was taken for that.
func (w *world) phaseStart(ctx context.Context, supervisor, phase string) int64 {
	GinkgoHelper()
	contract := w.task(ctx, supervisor).Status.Contract
	i := contract.Find(phase)
	Expect(i).To(BeNumerically(">=", 0), "the contract has entered %s: %+v", phase, contract)
	number := contract.Entered[i].Checkpoint
	Expect(w.checkpoints(ctx, supervisor)).To(ContainElement(And(HaveField("Status.Number", number), HaveField("Spec.Message", "before the phase "+phase))))
	return number
}
