//go:build e2e && soak

package e2e

import (
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

var _ = Describe("the matrix of resumes", Label("slow", "soak"), func() {
	w := newWorld()

	DescribeTable("continues a task as its mode says", func(ctx SpecContext, state rewindmatrix.State) {
		w.resumes(ctx, state, clewv1.ResumeContinue, clewv1.ResumeClean, clewv1.ResumeFromCheckpoint, clewv1.ResumeContinue, clewv1.ResumeFromCheckpoint)
	},
		Entry("that is completed", SpecTimeout(15*time.Minute), rewindmatrix.Completed),
		Entry("that is suspended", SpecTimeout(15*time.Minute), rewindmatrix.Suspended),
		Entry("that has failed", SpecTimeout(15*time.Minute), rewindmatrix.Failed),
		Entry("that waits for a decision about its files", SpecTimeout(15*time.Minute), drifted),
	)

	It("refuses a running task, and a completed one without a prompt, and changes nothing", SpecTimeout(15*time.Minute), func(ctx SpecContext) {
		r := w.newRewindable(ctx, rewindmatrix.Running)
		refused := func(sentence string, modes ...string) {
			GinkgoHelper()
			before := r.readMoment(ctx, r.name)
			for _, mode := range modes {
				resume := map[string]any{"id": "on", "mode": mode}
				if mode == string(clewv1.ResumeFromCheckpoint) {
					resume["checkpointNumber"] = r.checkpoint.Status.Number
				}
				patch, err := json.Marshal(map[string]any{"spec": map[string]any{"resume": resume}})
				Expect(err).NotTo(HaveOccurred())
				_, err = r.kubectlIn(ctx, nil, "patch", "task", r.name, "--type=merge", "-p", string(patch))
				Expect(err).To(MatchError(ContainSubstring(sentence)), mode)
			}
			Expect(r.task(ctx, r.name).Status.Resume).To(BeNil())
			expectSame(r.readMoment(ctx, r.name), before, "refused")
		}
		refused("only a stopped task can be resumed", "Continue", "Clean", "FromCheckpoint")
		r.state = rewindmatrix.Completed
		r.stop(ctx)
		refused("a completed task continues only with a new prompt", "Continue", "Clean")
	})

	It("keeps a task off its node, until another resume lets it run anywhere", SpecTimeout(15*time.Minute), func(ctx SpecContext) {
		r := w.newRewindable(ctx, rewindmatrix.Suspended)
		before := r.readMoment(ctx, r.name)
		node := r.task(ctx, r.name).Status.Attempts[0].NodeName
		r.patchSpec(ctx, r.name, map[string]any{"operatingMode": "Running", "resume": clewv1.Resume{ID: "away", Placement: clewv1.PlacementOtherNode}})
		task := r.untilState(ctx, r.name, 3*time.Minute, clewv1.ReasonUnschedulable)
		Expect(task.Status.Resume).To(HaveValue(And(HaveField("State", clewv1.OperationInProgress), HaveField("AvoidedNode", node))))
		resume := clewv1.Resume{ID: "anywhere", Prompt: "Go on."}
		r.resumeAs(ctx, resume)
		expectSame(r.readMoment(ctx, r.name), r.resumedFrom(before, resume), "resumed anywhere")
	})
})
