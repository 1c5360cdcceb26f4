package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/queue"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// asks makes the daemon of an attempt report a call that waits for an answer.
func (w *world) asks(name string, attempt int64, id string, change ...func(*history.ToolRequest)) {
	w.Helper()
	q := history.ToolRequest{ID: id, Attempt: attempt, Tool: "Bash", Input: `{"command":"git push"}`, InputDigest: "d", Since: time.Now(), Deadline: time.Now().Add(time.Hour)}
	for _, c := range change {
		c(&q)
	}
	w.store.Begin(w.id(name), attempt)
	w.store.SetRequests(w.id(name), q)
}

// decide adds a decision.
func decide(id string, answer v1alpha1.Answer, reason string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Decisions = append(t.Spec.Decisions, v1alpha1.Decision{RequestID: id, Answer: answer, Reason: reason, DecidedBy: "the president"})
	}
}

// answerOf waits for the answer to a request.
func (w *world) answerOf(name, id string) (answer *v1alpha1.RequestAnswer) {
	w.Helper()
	w.Eventually(func() *v1alpha1.RequestAnswer {
		for _, r := range w.task(name).Status.Requests {
			if r.ID == id {
				answer = r.Answer
			}
		}
		return answer
	}).ShouldNot(BeNil())
	return answer
}

var _ = Describe("a tool call about which a person is asked", func() {
	It("waits in its pod until somebody answers, whatever is killed meanwhile", func() {
		w := newWorld()
		w.actAs("ann")
		p := w.running("work", builders.Deadline(3600))
		w.asks("work", 1, "1-a")
		task := w.until("work", v1alpha1.ReasonWaitingForApproval)
		w.Expect(task).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("kubectl clew approve work 1-a")))
		w.Expect(task.Status.Requests).To(ConsistOf(And(HaveField("Tool", "Bash"), HaveField("Waits", v1alpha1.WaitCall), HaveField("Answer", BeNil()))))
		w.restartManager()
		w.store.SetDown(true)
		w.store.SetDown(false)
		w.Consistently(w.current).WithArguments("work").WithTimeout(time.Second).Should(HaveReason(v1alpha1.TaskSucceeded, v1alpha1.ReasonWaitingForApproval))

		By("ben answering")
		w.actAs("ben")
		w.change("work", decide("1-a", v1alpha1.AnswerApprove, "looks right"))
		w.Expect(w.answerOf("work", "1-a")).To(HaveValue(And(HaveField("Answer", v1alpha1.AnswerApprove), HaveField("By", "ben"), HaveField("Reason", "looks right"))))
		w.until("work", v1alpha1.ReasonRunning)

		By("the agent going on")
		w.store.SetRequests(w.id("work"))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Requests", BeEmpty()))
		w.Expect(w.complete("work", p).Status.HandledDecisions).To(ConsistOf("1-a"))
		w.untilRecorded("work")
		w.Expect(w.actors("work")).To(And(HaveKeyWithValue(v1alpha1.EventApprovalRequested, "clew"), HaveKeyWithValue(v1alpha1.EventToolApproved, "ben")))
		w.Eventually(w.notes).Should(ContainElement(ContainSubstring("request 1-a: the call of Bash was approved: looks right, answered by ben")))
		w.Expect(w.pods("work")).To(HaveLen(1))
	})

	It("is denied by its deadline, which nothing but the time brings about", func() {
		w := newWorld()
		w.running("work")
		w.asks("work", 1, "1-a", func(q *history.ToolRequest) { q.Deadline = time.Now().Add(2 * time.Second) })
		w.until("work", v1alpha1.ReasonWaitingForApproval)
		w.Expect(w.answerOf("work", "1-a")).To(HaveValue(And(HaveField("Answer", v1alpha1.AnswerDeny), HaveField("By", "clew"))))
		w.change("work", decide("1-a", v1alpha1.AnswerApprove, ""))
		w.Eventually(w.reasons).WithArguments("work").Should(ContainElement(v1alpha1.EventDecisionIgnored))
		w.Expect(w.answerOf("work", "1-a")).To(HaveField("Answer", v1alpha1.AnswerDeny))
	})

	It("waits without a pod and without a place if its agent has no hooks, and is told the answer", func() {
		w := newWorld()
		w.atOnce = queue.Limits{PerNamespace: 1}
		w.restartManager()
		p := w.running("work")
		w.asks("work", 1, "1-a", func(q *history.ToolRequest) { q.StopsAgent = true })
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 137)).To(Succeed())
		task := w.until("work", v1alpha1.ReasonWaitingForApproval)
		w.Expect(task.Status.Attempts).To(ConsistOf(And(HaveField("Outcome", v1alpha1.AttemptStopped), HaveField("Reason", v1alpha1.ReasonWaitingForApproval))))
		w.Expect(task.Status.Failures).To(BeZero())
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionUnknown))

		By("another task having its place meanwhile")
		other := w.running("other")
		w.restartManager()
		w.change("work", decide("1-a", v1alpha1.AnswerDeny, "use a branch"))
		w.until("work", v1alpha1.ReasonQueued)
		w.complete("other", other)

		By("the next attempt")
		p = w.pod("work", 2)
		w.Expect(w.config(p).Answers).To(ConsistOf(And(HaveField("ID", "1-a"), HaveField("Approved", false), HaveField("Prompt", ContainSubstring("use a branch")))))
		w.start(p)
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Requests", BeEmpty()))
		w.complete("work", p)
	})
})
