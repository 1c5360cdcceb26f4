//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a task with limits", func() {
	w := newWorld()

	It("is stopped with a checkpoint at its deadline, and completes with a higher one", func(ctx SpecContext) {
		// What it wrote before the deadline is there when it continues.
		task := w.newTask("late", "sh", "-c", `[ -e begun ] || { touch begun; sleep 600; }`)
		task.Spec.DeadlineSeconds = ptr.To[int64](3)
		w.create(ctx, task)
		got := w.untilState(ctx, "late", 2*time.Minute, clewv1.ReasonDeadlineExceeded)
		Expect(got).To(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionFalse))
		Expect(got).To(matchers.HaveCondition(clewv1.TaskDurable, metav1.ConditionTrue))
		Expect(got.Status.Attempts[0].Outcome).To(Equal(clewv1.AttemptLimitReached))
		Expect(got.Status.ActiveSeconds).To(BeNumerically(">=", 3))

		w.patchSpec(ctx, "late", map[string]any{"deadlineSeconds": 600, "resume": map[string]any{"id": "on"}})
		got = w.untilState(ctx, "late", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Attempts).To(HaveLen(2))
	})

	It("has one attempt when its agent exits with a code of failOn", func(ctx SpecContext) {
		task := w.newTask("fatal", "sh", "-c", "exit 3")
		task.Spec.BackoffLimit = ptr.To[int32](3)
		task.Spec.FailOn = &clewv1.FailureMatcher{ExitCodes: []int32{3}}
		w.create(ctx, task)
		got := w.untilState(ctx, "fatal", 2*time.Minute, clewv1.ReasonAgentFailed)
		Expect(got.Status.Attempts).To(HaveLen(1))
		Expect(conditionMessage(got)).To(ContainSubstring("failOn has the exit code 3"))
	})
})
