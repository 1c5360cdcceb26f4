//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

var _ = Describe("a task that depends on another one", func() {
	w := newWorld()

	It("waits without a pod, and starts with the files that the other one has at its end", SpecTimeout(5*time.Minute), func(ctx SpecContext) {
		second := w.newTask("second", "grep", "-qx", "done", "made.txt")
		second.Spec.DependsOn = []clewv1.Dependency{{TaskRef: clewv1.NameReference{Name: "first"}, Condition: clewv1.DependOnCompleted}}
		second.Spec.StartFrom = &clewv1.StartFrom{TaskRef: clewv1.NameReference{Name: "first"}}
		second.Spec.BackoffLimit = new(int32)
		w.create(ctx, second)
		w.untilState(ctx, "second", time.Minute, clewv1.ReasonWaitingForTasks)

		w.create(ctx, w.newTask("first", "sh", "-c", "echo done >made.txt"))
		w.untilState(ctx, "first", 3*time.Minute, clewv1.ReasonCompleted)
		second = w.untilState(ctx, "second", 3*time.Minute, clewv1.ReasonCompleted)
		first := w.task(ctx, "first")
		Expect(second.Status.Source.Checkpoint).To(Equal(first.Status.LatestCheckpoint.Number))
		Expect(second.Status.Dependencies).To(ConsistOf(And(
			HaveField("TaskUID", string(first.UID)), HaveField("State", clewv1.DependencyMet))))
		Expect(second.Status.Attempts).To(HaveLen(1), "no pod was made while it waited")
	})
})
