package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// restarts requests that a phase of the contract begins again.
func restarts(id, phase string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.OperatingMode = v1alpha1.OperatingModeRunning
		t.Spec.Resume = &v1alpha1.Resume{ID: id, Mode: v1alpha1.ResumeRestartPhase, Phase: phase}
	}
}

var _ = Describe("A phase that begins again", func() {
	It("tells the supervisor what its finished children have come to, and stops the others", func() {
		w := newWorld()
		lead := w.running("lead", leads("port"))
		w.record("lead", v1alpha1.TriggerBeforeRun, 1)
		done, busy := w.running("done", childOf("lead")), w.running("busy", childOf("lead"))
		w.store.Say(w.id("done"), "The parser is ported.")
		w.complete("done", done)

		By("suspending the supervisor, and beginning its phase again")
		w.change("lead", builders.Suspended)
		w.record("lead", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(lead)
		w.until("lead", v1alpha1.ReasonSuspended)
		w.change("lead", restarts("again", ""))
		next := w.pod("lead", 2)
		op := w.operation(next)
		Expect(op.Rewind).To(HaveValue(HaveField("Checkpoint", int64(1))))
		Expect(op.AdditionalContext).To(And(ContainSubstring("done"), ContainSubstring("The parser is ported."), ContainSubstring("busy")))
		Expect(w.task("busy").Status.Parent.StoppedBy).To(BeEmpty(), "nothing stops before the workspace is back")

		By("preparing the workspace")
		w.Expect(w.kubelet.Prepared(w.ctx, next, 0, daemonapi.PrepareResult{
			Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationResume, Operation: "again", ToCheckpoint: 1, FromCheckpoint: 2,
		})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, next)).To(Succeed())
		w.untilStopped(busy)
		w.until("busy", v1alpha1.ReasonPhaseRestarted)
		w.until("lead", v1alpha1.ReasonRunning)
		Expect(w.reasons("busy")).To(ContainElement(v1alpha1.EventStoppedByParent))
		Expect(state(w.task("done"))).To(Equal(v1alpha1.ReasonCompleted))

		By("resuming the child")
		w.change("busy", builders.Resume("go-on"))
		w.pod("busy", 2)
	})

	It("stops a supervisor that runs", func() {
		w := newWorld()
		lead := w.running("lead", leads("port"))
		w.record("lead", v1alpha1.TriggerBeforeRun, 1)
		w.change("lead", restarts("again", ""))
		w.until("lead", v1alpha1.ReasonRewinding)
		w.record("lead", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(lead)
		Expect(w.operation(w.pod("lead", 2)).Rewind).To(HaveValue(HaveField("Checkpoint", int64(1))))
	})

	It("is refused where it can be known", func() {
		w := newWorld()
		w.apply("worker")
		w.refusesChange("worker", "only a supervisor leads a contract through phases", restarts("again", ""))
		w.apply("lead", leads("port"))
		w.refusesChange("lead", "resume.phase is not one of the contract's phases", restarts("again", "Deploy"))
	})
})
