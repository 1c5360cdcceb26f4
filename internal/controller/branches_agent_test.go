package controller_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// preparedWith ends the pod's container prepare with what it reports of branches, and starts the
// agent.
func (w *world) preparedWith(p *corev1.Pod, checkout *daemonapi.CheckoutResult, branches ...daemonapi.BranchResult) {
	w.Helper()
	w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Branches: branches, Checkout: checkout})).To(Succeed())
	w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
}

// suspended suspends a running task.
func (w *world) suspended(name string, p *corev1.Pod) {
	w.Helper()
	w.change(name, func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeSuspended })
	w.untilStopped(p)
	w.until(name, v1alpha1.ReasonSuspended)
}

// resumed lets a suspended task run again, and returns its pod.
func (w *world) resumed(name string, attempt int64) *corev1.Pod {
	w.Helper()
	w.change(name, func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeRunning })
	return w.pod(name, attempt)
}

// eventuallyAgent waits for what is known of a Checkpoint's only branch in the agent's repository.
func (w *world) eventuallyAgent(name string, matches ...types.GomegaMatcher) {
	w.Helper()
	w.eventuallyBranches(name, HaveExactElements(HaveField("Agent", And(Not(BeNil()), And(matches...)))))
}

var _ = Describe("branches in the agent's repository", func() {
	state := func(s v1alpha1.AgentBranchState) types.GomegaMatcher { return HaveField("State", s) }
	checkout := func(s v1alpha1.CheckoutState) types.GomegaMatcher { return HaveField("Checkout.State", s) }
	made := daemonapi.BranchResult{Outcome: daemonapi.OutcomeMade, Commit: strings.Repeat("1", 40)}
	taken := daemonapi.BranchResult{Outcome: daemonapi.OutcomeTaken}
	checksOut := func(w *world, name, branch, id string) {
		w.pushedTo(name, v1alpha1.CheckpointBranch{Name: branch, ID: id, Checkout: v1alpha1.CheckoutNextStart})
	}

	It("come with the agent's next start, and are checked out once, as the timeline says", func() {
		w := newWorld()
		p := w.running("work")
		w.recordMany("work", 1)
		w.actAs("ann")
		checksOut(w, "work-1", "try", "one")
		w.eventuallyAgent("work-1", state(v1alpha1.AgentBranchPending), HaveField("Message", ContainSubstring("when the agent next starts")), checkout(v1alpha1.CheckoutPending))
		w.Expect(w.config(p).Branches).To(BeEmpty(), "nothing is asked of a pod that runs")

		w.suspended("work", p)
		p = w.resumed("work", 2)
		branch := daemonapi.Branch{Name: "try", Checkpoint: 1}
		asked := daemonapi.Checkout{ID: daemonapi.CheckoutID(1, "try", "one"), Branch: branch}
		w.Expect(w.config(p)).To(And(HaveField("Branches", HaveExactElements(branch)), HaveField("Checkout", HaveValue(Equal(asked)))))
		w.preparedWith(p, &daemonapi.CheckoutResult{ID: asked.ID, FromCheckpoint: 2, ToCheckpoint: 3}, made)
		w.eventuallyAgent("work-1", state(v1alpha1.AgentBranchMade), HaveField("Commit", made.Commit), HaveField("Attempt", BeEquivalentTo(2)), checkout(v1alpha1.CheckoutDone), HaveField("Checkout.FromCheckpoint", BeEquivalentTo(2)))
		w.Eventually(func() map[string]string { return w.actors("work") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventAgentBranchMade, "ann"), HaveKeyWithValue(v1alpha1.EventBranchCheckedOut, "ann"),
		))
		w.Eventually(w.notes).Should(ContainElement(ContainSubstring("a rewind to checkpoint 2 takes that back")))

		w.suspended("work", p)
		w.restartManager()
		p = w.resumed("work", 3)
		branch.Made = true
		w.Expect(w.config(p)).To(And(HaveField("Branches", HaveExactElements(branch)), HaveField("Checkout", BeNil())), "it was carried out")
		w.preparedWith(p, nil, daemonapi.BranchResult{Outcome: daemonapi.OutcomePresent})

		checksOut(w, "work-1", "try", "two")
		w.eventuallyAgent("work-1", checkout(v1alpha1.CheckoutPending))
		w.suspended("work", p)
		p = w.resumed("work", 4)
		w.Expect(w.config(p).Checkout).To(HaveField("ID", daemonapi.CheckoutID(1, "try", "two")))
		w.preparedWith(p, &daemonapi.CheckoutResult{ID: daemonapi.CheckoutID(1, "try", "two"), Reason: v1alpha1.ReasonBranchExists, Message: "it is left as it is"}, taken)
		w.eventuallyAgent("work-1", checkout(v1alpha1.CheckoutRefused), HaveField("Checkout.Message", ContainSubstring("it is left as it is")))
		w.eventuallyAgent("work-1", state(v1alpha1.AgentBranchMade), HaveField("Attempt", BeEquivalentTo(2)), HaveField("Commit", made.Commit))
		w.Eventually(func() map[string]string { return w.actors("work") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventBranchNotCheckedOut, "ann"), Not(HaveKey(v1alpha1.EventAgentBranchNotMade)),
		))
		w.Eventually(w.notes).Should(ContainElement(ContainSubstring("was not checked out (BranchExists)")))
	})

	It("are not lost when the pod that reported them is gone with the manager", func() {
		w := newWorld()
		p := w.running("work")
		w.recordMany("work", 1)
		w.branch("work-1", "try")
		w.eventuallyAgent("work-1", state(v1alpha1.AgentBranchPending))
		w.suspended("work", p)
		p = w.resumed("work", 2)
		w.stop()
		w.preparedWith(p, nil, made)
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 2, Trigger: string(v1alpha1.TriggerCompletion), Durable: true})
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 0)).To(Succeed())
		w.startManager()
		w.until("work", v1alpha1.ReasonCompleted)
		w.eventuallyAgent("work-1", state(v1alpha1.AgentBranchMade), HaveField("Attempt", BeEquivalentTo(2)))
	})

	It("wait when two of them are to be checked out, until one is not", func() {
		w := newWorld()
		p := w.running("work")
		w.recordMany("work", 2)
		w.actAs("ann")
		checksOut(w, "work-1", "one", "")
		checksOut(w, "work-2", "two", "")
		w.eventuallyAgent("work-1", HaveField("Checkout.Message", ContainSubstring("checkpoint 2 asks for a checkout of its branch two as well")))
		w.eventuallyAgent("work-2", HaveField("Checkout.Message", ContainSubstring("checkpoint 1 asks for a checkout of its branch one as well")))
		w.suspended("work", p)
		p = w.resumed("work", 2)
		w.Expect(w.config(p).Checkout).To(BeNil())
		w.preparedWith(p, nil, made, taken)
		w.eventuallyAgent("work-2", state(v1alpha1.AgentBranchNameTaken), HaveField("Attempt", BeEquivalentTo(2)))
		w.Eventually(func() map[string]string { return w.actors("work") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventAgentBranchMade, "ann"), HaveKeyWithValue(v1alpha1.EventAgentBranchNotMade, "ann"),
		))
		w.pushedTo("work-1", v1alpha1.CheckpointBranch{Name: "one"})
		w.eventuallyAgent("work-2", checkout(v1alpha1.CheckoutPending), HaveField("Checkout.Message", Not(ContainSubstring("as well"))))
		w.suspended("work", p)
		w.Expect(w.config(w.resumed("work", 3)).Checkout).To(HaveField("Name", "two"))
	})
})
