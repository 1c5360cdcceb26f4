package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// setOf applies a Checkpoint with the scope Contract.
func (w *world) setOf(name, supervisor string) *v1alpha1.Checkpoint {
	GinkgoHelper()
	c := manual(name, supervisor)
	c.Spec.Scope = v1alpha1.CheckpointOfContract
	w.create(c)
	return c
}

// setState reads the state of a set; "" while it has not begun.
func (w *world) setState(c *v1alpha1.Checkpoint) func() v1alpha1.CheckpointSetState {
	return func() v1alpha1.CheckpointSetState {
		w.Expect(w.objects.Get(c)()).To(Succeed())
		if c.Status.Set == nil {
			return ""
		}
		return c.Status.Set.State
	}
}

// member waits until a member of a set has a Checkpoint object, and returns that.
func (w *world) member(set *v1alpha1.Checkpoint, task string) *v1alpha1.Checkpoint {
	GinkgoHelper()
	w.Eventually(w.setState(set)).ShouldNot(BeEmpty())
	for _, m := range set.Status.Set.Members {
		if m.Task == task {
			c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: m.Checkpoint}}
			w.Eventually(w.objects.Get(c)).Should(Succeed())
			return c
		}
	}
	Fail(task + " is no member of the set")
	return nil
}

// takeFor records the checkpoint that an object asks for.
func (w *world) takeFor(c *v1alpha1.Checkpoint) int64 {
	return w.store.AddCheckpoint(w.id(c.Spec.TaskRef.Name), history.Checkpoint{
		Attempt: 1, Trigger: string(v1alpha1.TriggerManual), Time: time.Now(), Durable: true,
		RequestedByName: c.Name, RequestedByUID: string(c.UID), Commit: "c0ffee", Position: history.Position{Branch: "main", Position: 4},
	}).Number
}

// contract runs the supervisor lead with the children docs and tests, and another one, which has completed.
func (w *world) contract() {
	w.running("lead", leads("port"))
	w.running("docs", childOf("lead"))
	w.running("tests", childOf("lead"))
	done := w.running("done", childOf("lead"))
	w.record("done", v1alpha1.TriggerInterval, 1)
	w.complete("done", done)
	w.apply("queued", childOf("lead"), builders.Suspended)
}

var _ = Describe("A Checkpoint with the scope Contract", func() {
	It("is taken of a supervisor and its children together, and takes them back", func() {
		w := newWorld()
		w.contract()
		set := w.setOf("evening", "lead")
		docs, tests := w.member(set, "docs"), w.member(set, "tests")
		Expect(docs.Spec.PartOf).To(HaveValue(Equal(v1alpha1.CheckpointSetRef{Name: "evening", UID: string(set.UID)})))
		Expect(docs.OwnerReferences).To(ConsistOf(HaveField("Name", "docs")))
		Expect(set.Status.Set.Members).To(HaveLen(4), "one that has not run is no member")
		w.Eventually(w.objects.Object(docs)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonRequested))
		numbers := map[string]int64{"lead": w.takeFor(set), "docs": w.takeFor(docs)}
		w.Eventually(w.objects.Object(docs)).Should(HaveCondition(v1alpha1.CheckpointReady, metav1.ConditionTrue))
		w.Eventually(w.objects.Object(set)).Should(haveMessage(v1alpha1.CheckpointReady, ContainSubstring("waiting for that of tests")))
		Expect(w.setState(set)()).To(Equal(v1alpha1.SetTaking))

		By("taking the last one, after which the agents continue")
		numbers["tests"] = w.takeFor(tests)
		w.Eventually(w.setState(set)).Should(Equal(v1alpha1.SetReleasing))
		for task, number := range numbers {
			w.store.AddHoldEnd(w.id(task), history.HoldEnd{Set: string(set.UID), Checkpoint: number, Released: true, InCall: task == "tests"})
		}
		w.Eventually(w.objects.Object(set)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTakenTogether))
		Expect(set).To(HaveCondition(v1alpha1.CheckpointReady, metav1.ConditionTrue))
		Expect(set.Status.Number).To(Equal(numbers["lead"]))
		Expect(set.Status.Set.Members).To(ContainElements(
			And(HaveField("Task", "done"), HaveField("State", v1alpha1.MemberAtRest), HaveField("Number", int64(2))),
			And(HaveField("Task", "tests"), HaveField("HoldEnd", v1alpha1.HoldReleased), HaveField("Moment", v1alpha1.MomentInCall)),
		))
		Expect(w.store.Events(w.id("lead").UID)).To(ContainElement(And(
			HaveField("Reason", v1alpha1.EventTakenTogether), HaveField("Checkpoint", numbers["lead"]))))
		w.Eventually(w.objects.Object(set)).Should(HaveReason(v1alpha1.CheckpointDurable, v1alpha1.ReasonPushed))

		By("rewinding the supervisor with its children")
		w.running("since", childOf("lead"))
		leadPod, docsPod := w.pod("lead", 1), w.pod("docs", 1)
		w.change("lead", builders.Rewind("back", "evening"), func(t *v1alpha1.Task) { t.Spec.Rewind.Children = v1alpha1.ChildrenRewind })
		w.untilStopped(leadPod)
		next := w.pod("lead", 2)
		Expect(w.task("docs").Status.Rewind).To(BeNil(), "no child follows before the supervisor is rewound")
		w.Expect(w.kubelet.Prepared(w.ctx, next, 0, daemonapi.PrepareResult{
			Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationRewind, Operation: "back", FromCheckpoint: 2, ToCheckpoint: numbers["lead"],
		})).To(Succeed())
		w.untilStopped(docsPod)
		op := w.operation(w.pod("docs", 2))
		Expect(op.ID).To(Equal("parent-back"))
		Expect(op.Checkpoint).To(Equal(numbers["docs"]))
		w.Eventually(w.current).WithArguments("done").Should(HaveField("Status.Rewind.ID", "parent-back"))
		Expect(w.task("docs").Spec.Rewind).To(BeNil())
		Expect(w.task("since").Status.Rewind).To(BeNil())
		w.Eventually(w.current).WithArguments("since").Should(HaveField("Status.Parent.FollowedRewind", "back"))
		Expect(w.task("lead").Status.Rewind.Message).To(ContainSubstring("stay as they are, since they are not in the set: since"))
	})

	It("is not taken together if an agent has continued before", func() {
		w := newWorld()
		w.contract()
		set := w.setOf("evening", "lead")
		docs, tests := w.member(set, "docs"), w.member(set, "tests")
		own := w.takeFor(set)
		docsNumber, testsNumber := w.takeFor(docs), w.takeFor(tests)
		w.Eventually(w.setState(set)).Should(Equal(v1alpha1.SetReleasing))
		w.store.AddHoldEnd(w.id("lead"), history.HoldEnd{Set: string(set.UID), Checkpoint: own, Released: true})
		w.store.AddHoldEnd(w.id("docs"), history.HoldEnd{Set: string(set.UID), Checkpoint: docsNumber})
		w.store.AddHoldEnd(w.id("tests"), history.HoldEnd{Set: string(set.UID), Checkpoint: testsNumber, Released: true})
		w.Eventually(w.objects.Object(set)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonNotTakenTogether))
		Expect(set).To(haveMessage(v1alpha1.CheckpointReady, ContainSubstring("docs did not stand still")))
		w.Expect(w.objects.Get(docs)()).To(Succeed())
		Expect(docs).To(HaveCondition(v1alpha1.CheckpointReady, metav1.ConditionTrue))
		w.restartManager()
		w.Consistently(w.setState(set)).Should(Equal(v1alpha1.SetApart))
	})

	It("goes on when the manager starts anew, and asks again for a member whose object is gone", func() {
		w := newWorld()
		w.contract()
		set := w.setOf("evening", "lead")
		docs := w.member(set, "docs")
		w.takeFor(set)
		w.takeFor(docs)
		tests := w.member(set, "tests")
		w.Expect(w.client.Delete(w.ctx, tests)).To(Succeed())
		w.restartManager()
		again := w.member(set, "tests")
		Expect(again.UID).NotTo(Equal(tests.UID))
		w.takeFor(again)
		w.Eventually(w.setState(set)).Should(Equal(v1alpha1.SetReleasing))
	})

	It("asks nobody any more once it is deleted", func() {
		w := newWorld()
		w.contract()
		set := w.setOf("evening", "lead")
		docs := w.member(set, "docs")
		w.Expect(w.client.Delete(w.ctx, set)).To(Succeed())
		w.Eventually(w.objects.Object(docs)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonNotTakenTogether))
	})

	It("says why it is none", func() {
		w := newWorld()
		w.running("alone")
		w.running("lead", leads("port"))
		w.Eventually(w.objects.Object(w.setOf("of-nobody", "no-task"))).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound))
		w.Eventually(w.objects.Object(w.setOf("of-worker", "alone"))).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonNotASupervisor))
		childless := w.setOf("of-childless", "lead")
		w.Eventually(w.objects.Object(childless)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonNoChildren))
	})
})
