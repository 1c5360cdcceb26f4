package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// together has the checkpoints of a set taken of the supervisor lead and those of its children that work, and
// returns their numbers.
func (w *world) together(set *v1alpha1.Checkpoint, working ...string) map[string]int64 {
	GinkgoHelper()
	members := map[string]*v1alpha1.Checkpoint{"lead": set}
	for _, name := range working {
		members[name] = w.member(set, name)
	}
	numbers := map[string]int64{}
	for name, c := range members {
		numbers[name] = w.takeFor(c)
	}
	w.Eventually(w.setState(set)).Should(Equal(v1alpha1.SetReleasing))
	for name, number := range numbers {
		w.store.AddHoldEnd(w.id(name), history.HoldEnd{Set: string(set.UID), Checkpoint: number, Released: true})
	}
	w.Eventually(w.setState(set)).Should(Equal(v1alpha1.SetTogether))
	return numbers
}

// rewindsIn carries out the rewind of a task for which its pod of an attempt was made, and records what it has
// done, so that it can be undone.
func (w *world) rewindsIn(task string, attempt, to int64) *daemonapi.Operation {
	GinkgoHelper()
	p := w.pod(task, attempt)
	op := w.operation(p)
	Expect(op).NotTo(BeNil(), "the pod of attempt %d of %s rewinds", attempt, task)
	from := w.record(task, v1alpha1.TriggerPreRewind, attempt).Number
	w.store.SetRewind(w.id(task), history.Rewind{ID: op.ID, Completed: true, Rewound: &history.Rewound{Scope: string(v1alpha1.RewindBoth), From: from, To: to}})
	w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{
		Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationRewind, Operation: op.ID, FromCheckpoint: from, ToCheckpoint: to,
	})).To(Succeed())
	if len(p.Spec.InitContainers) > 0 {
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
	}
	return op
}

var _ = Describe("The undo of a rewind to a set", func() {
	It("takes back the children that have followed, with what had ended them", func() {
		w := newWorld()
		w.contract()
		set := w.setOf("evening", "lead")
		numbers := w.together(set, "docs", "tests")
		By("resuming a child that had completed in the set")
		w.change("done", builders.Resume("more"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "more" })
		again := w.pod("done", 2)
		w.start(again)
		w.until("done", v1alpha1.ReasonRunning)
		leadPod, docsPod, testsPod := w.pod("lead", 1), w.pod("docs", 1), w.pod("tests", 1)

		By("rewinding the supervisor with its children")
		w.change("lead", builders.Rewind("back", "evening"), func(t *v1alpha1.Task) { t.Spec.Rewind.Children = v1alpha1.ChildrenRewind })
		w.untilStopped(leadPod)
		w.rewindsIn("lead", 2, numbers["lead"])
		for _, p := range []*corev1.Pod{docsPod, testsPod, again} {
			w.untilStopped(p)
		}
		w.rewindsIn("docs", 2, numbers["docs"])
		w.rewindsIn("tests", 2, numbers["tests"])
		w.rewindsIn("done", 3, 2)
		w.until("done", v1alpha1.ReasonCompleted)
		w.until("docs", v1alpha1.ReasonRunning)

		By("rewinding a child by itself, which moves on by that")
		w.change("tests", rewindTo("own", v1alpha1.RewindBoth, v1alpha1.RewindTarget{CheckpointNumber: ptr.To(numbers["tests"])}))
		w.untilStopped(w.pod("tests", 2))
		w.rewindsIn("tests", 3, numbers["tests"])
		w.until("tests", v1alpha1.ReasonRunning)

		By("undoing that of the supervisor")
		leadPod, docsPod = w.pod("lead", 2), w.pod("docs", 2)
		w.change("lead", rewindTo("forth", "", v1alpha1.RewindTarget{UndoOf: "back"}), func(t *v1alpha1.Task) { t.Spec.Rewind.Children = v1alpha1.ChildrenRewind })
		w.untilStopped(leadPod)
		w.rewindsIn("lead", 3, 9)
		w.untilStopped(docsPod)
		op := w.operation(w.pod("docs", 3))
		Expect(op.ID).To(Equal("parent-forth"))
		Expect(op.Checkpoint).To(Equal(w.task("docs").Status.Parent.Rewind.Checkpoint), "from before it has followed")
		w.Eventually(w.current).WithArguments("tests").Should(HaveField("Status.Parent.FollowedRewind", "forth"))
		Expect(w.task("tests").Status.Rewind.ID).To(Equal("own"))
		Expect(w.task("lead").Status.Rewind.Message).To(And(ContainSubstring("docs to checkpoint"), ContainSubstring("another request since: tests")))
		w.rewindsIn("done", 4, 3) // at work before, so that it waits for a resume now
		w.until("done", v1alpha1.ReasonRewound)
	})
})
