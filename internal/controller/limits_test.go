package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a task with limits", func() {
	It("fails when its deadline passes, and continues with a higher one", func() {
		w := newWorld()
		By("reaching the deadline, which nothing but the time brings about")
		p := w.running("work", builders.Deadline(2))
		w.until("work", v1alpha1.ReasonStopping)
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(p)
		task := w.until("work", v1alpha1.ReasonDeadlineExceeded)
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionFalse))
		w.Expect(task.Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptLimitReached))
		used := task.Status.ActiveSeconds
		w.Expect(used).To(BeNumerically(">=", 2))
		w.Expect(task.Spec.OperatingMode).To(Equal(v1alpha1.OperatingModeRunning))
		w.Expect(task.Status.LatestCheckpoint.Name).To(Equal("work-1"))

		By("resuming it without more time")
		w.untilRecorded("work")
		w.refusesChange("work", "raise it in the same change to resume this task", builders.Resume("too-early"))

		By("resuming it with more time")
		w.restartManager()
		w.change("work", builders.Deadline(used+3600), builders.Resume("on"))
		p = w.pod("work", 2)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.complete("work", p).Status.ActiveSeconds).To(BeNumerically("<", used+3600))
		w.untilRecorded("work")
		w.Expect(w.reasons("work")).To(Equal([]string{
			v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed, v1alpha1.EventTaskResumed, v1alpha1.EventTaskCompleted,
		}))
	})

	It("causes no write while its agent runs", func() {
		w := newWorld()
		w.running("work", builders.Deadline(3600))
		w.untilRecorded("work")
		before := w.task("work").ResourceVersion
		w.Consistently(func() string { return w.task("work").ResourceVersion }).WithTimeout(2 * time.Second).Should(Equal(before))
	})

	It("is not retried for an exit code in failOn", func() {
		w := newWorld()
		p := w.running("work", func(t *v1alpha1.Task) { t.Spec.FailOn = &v1alpha1.FailureMatcher{ExitCodes: []int32{3}} })
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(Succeed())
		task := w.until("work", v1alpha1.ReasonAgentFailed)
		w.Expect(task).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("failOn has the exit code 3")))
		w.Expect(task.Status.Attempts).To(HaveLen(1))
	})
})
