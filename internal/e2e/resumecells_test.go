//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

// drifted is a task that waits for a decision about its files.
const drifted rewindmatrix.State = "drifted"

// resumes carries out resumes from a state, to which it brings the task back each time, and expects
// what the documentation says.
func (w *world) resumes(ctx context.Context, state rewindmatrix.State, modes ...clewv1.ResumeMode) {
	GinkgoHelper()
	r := w.newRewindable(ctx, map[bool]rewindmatrix.State{true: rewindmatrix.Suspended, false: state}[state == drifted])
	attempts := int64(1)
	for i, mode := range modes {
		By(fmt.Sprintf("resuming it with the mode %s", mode))
		resume := clewv1.Resume{ID: fmt.Sprintf("on-%d", i+1), Mode: mode, Prompt: fmt.Sprintf("Go on, %d.", i+1)}
		if mode == clewv1.ResumeFromCheckpoint {
			resume.CheckpointNumber = &r.checkpoint.Status.Number
		}
		if state == drifted {
			r.drift(ctx, fmt.Sprintf("drift-%d", i+1))
			attempts++
			resume.OnDrift = clewv1.OnDriftOverride
		}
		before := r.readMoment(ctx, r.name)
		if state == drifted { // the change by hand is discarded
			before.files["README.md"] = r.undrifted
		}
		r.resumeAs(ctx, resume)
		attempts++
		expectSame(r.readMoment(ctx, r.name), r.resumedFrom(before, resume), "resumed with "+string(mode))
		r.say(ctx, fmt.Sprintf("I went on %d times.", i+1))
		r.stop(ctx)
	}
	r.expectChain(ctx, attempts)
}

// drift changes a file on the volume of the suspended task, which then does not continue.
func (r *rewindable) drift(ctx context.Context, id string) {
	GinkgoHelper()
	file := filepath.Join(r.volumeFolder(ctx, r.namespace, r.name+"-workspace"), "worktree", "README.md")
	var err error
	r.undrifted, err = readEntry(file)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(file, []byte("by hand, "+id+"\n"), 0o644)).To(Succeed())
	r.patchSpec(ctx, r.name, map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": id}})
	r.untilState(ctx, r.name, 2*time.Minute, clewv1.ReasonDriftDetected)
}

// resumeAs resumes the task, and waits until its agent runs.
func (r *rewindable) resumeAs(ctx context.Context, resume clewv1.Resume) {
	GinkgoHelper()
	r.patchSpec(ctx, r.name, map[string]any{"operatingMode": "Running", "resume": resume})
	r.eventually(ctx, func() *clewv1.OperationStatus { return r.task(ctx, r.name).Status.Resume }).WithTimeout(3 * time.Minute).
		Should(HaveValue(And(HaveField("ID", resume.ID), HaveField("State", clewv1.OperationCompleted))))
	r.untilAgentRuns(ctx, r.name, time.Minute)
}

// resumedFrom returns the moment to which a resume leads.
func (r *rewindable) resumedFrom(before moment, resume clewv1.Resume) moment {
	want := before
	switch resume.Mode {
	case clewv1.ResumeClean:
		want.session, want.messages = r.start.session, nil
	case clewv1.ResumeFromCheckpoint:
		want = r.good
	}
	want.messages = append(append([]string(nil), want.messages...), fmt.Sprintf("%d user %s <nil> <nil>", len(want.messages)+1, resume.Prompt))
	return want
}

// expectChain expects the attempts of the task to be numbered one after the other, each with how it
// began and ended.
func (r *rewindable) expectChain(ctx context.Context, attempts int64) {
	GinkgoHelper()
	chain := r.task(ctx, r.name).Status.Attempts
	Expect(chain).To(HaveLen(int(attempts)))
	pods := map[string]bool{}
	for i, a := range chain {
		trigger := clewv1.AttemptResume
		if i == 0 {
			trigger = clewv1.AttemptStart
		}
		Expect(a).To(And(HaveField("Number", int64(i+1)), HaveField("Trigger", trigger), HaveField("Outcome", Not(BeEmpty())),
			HaveField("StartTime", Not(BeNil())), HaveField("EndTime", Not(BeNil()))), "attempt %d", i+1)
		Expect(pods).NotTo(HaveKey(a.PodUID), "one attempt is one pod")
		pods[a.PodUID] = true
	}
}

var _ = Describe("resumes of every mode", long, func() {
	w := newWorld()

	It("continue a completed task as they say, one after the other", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.resumes(ctx, rewindmatrix.Completed, clewv1.ResumeContinue, clewv1.ResumeClean, clewv1.ResumeFromCheckpoint)
	})
})
