package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// mayCall sets how many calls of tools all tasks of the contract of a supervisor may spend.
func mayCall(n int64) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Contract.Budget = &v1alpha1.Budget{ToolCalls: &n} }
}

// endForBudget ends the agent of a pod as its daemon does.
func (w *world) endForBudget(name string, p *corev1.Pod, why string) *v1alpha1.Task {
	w.Helper()
	w.store.SetAgentEnd(w.id(name), history.AgentEnd{Attempt: resources.Attempt(p), ExitCode: 143, Cause: "BudgetSpent", Message: why})
	w.record(name, v1alpha1.TriggerSuspend, resources.Attempt(p))
	w.Expect(w.kubelet.AgentExits(w.ctx, p, 143)).To(Succeed())
	return w.until(name, v1alpha1.ReasonBudgetExceeded)
}

var _ = Describe("a task with a budget", func() {
	It("rests when that is spent, and continues with a higher one", func() {
		w := newWorld()
		p := w.running("work", builders.ToolCallBudget(10))
		w.Expect(w.config(p).Budgets).To(ConsistOf(budget.Budget{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: 10}}))
		w.Expect(w.store.BudgetsOf(w.id("work").UID).Task).To(Equal(budget.Amounts{ToolCalls: 10}), "what its daemon is told")
		w.store.Begin(w.id("work"), 1)

		By("spending four fifths of it")
		w.store.SetSpent(w.id("work"), budget.Amounts{ToolCalls: 8})
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.BudgetWarnings", ConsistOf("Task/toolCalls/10")))

		By("spending all of it")
		w.store.SetSpent(w.id("work"), budget.Amounts{ToolCalls: 10, CostMicroUSD: 7})
		task := w.endForBudget("work", p, "the task has spent 10 of the 10 tool calls that budget.toolCalls allows")
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionUnknown))
		w.Expect(task).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("raise budget.toolCalls above that and resume the task in one change")))
		w.Expect(task.Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptLimitReached))
		w.Expect(task.Status.Failures).To(BeZero())
		w.Expect(task.Status.Spent).To(HaveValue(Equal(v1alpha1.Spent{ToolCalls: 10, CostMicroUSD: 7, Checkpoints: 1})))
		w.Expect(task.Spec.OperatingMode).To(Equal(v1alpha1.OperatingModeRunning))

		By("resuming it without more")
		w.untilRecorded("work")
		w.refusesChange("work", "raise that limit in the same change to resume this task", builders.Resume("too-early"))
		w.refusesChange("work", "the budget is below what the task has spent", builders.ToolCallBudget(9))

		By("resuming it with more")
		w.restartManager()
		w.change("work", builders.ToolCallBudget(20), builders.Resume("on"))
		p = w.pod("work", 2)
		w.Expect(w.config(p).Budgets).To(ConsistOf(budget.Budget{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: 20},
			Spent: budget.Amounts{ToolCalls: 10, CostMicroUSD: 7, Checkpoints: 1}}))
		w.Expect(w.store.BudgetsOf(w.id("work").UID).Task).To(Equal(budget.Amounts{ToolCalls: 20}))
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		w.complete("work", p)
		w.untilRecorded("work")
		w.Expect(w.reasons("work")).To(Equal([]string{
			v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetExceeded, v1alpha1.EventTaskResumed, v1alpha1.EventTaskCompleted,
		}))
	})

	It("has spent what it had when the history goes back to an older copy", func() {
		w := newWorld()
		w.running("work", builders.ToolCallBudget(10))
		w.store.Begin(w.id("work"), 1)
		w.store.SetSpent(w.id("work"), budget.Amounts{ToolCalls: 8})
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Spent", HaveValue(HaveField("ToolCalls", int64(8)))))
		w.store.SetSpent(w.id("work"), budget.Amounts{ToolCalls: 3})
		w.Eventually(func() (history.Spending, error) { return w.store.Spending(w.ctx, w.id("work"), "") }).Should(HaveField("Spent.ToolCalls", int64(8)))
		w.Expect(w.task("work").Status.Spent.ToolCalls).To(Equal(int64(8)))
	})

	It("is stopped by the manager if its daemon does not do it, also when the budget is lowered", func() {
		w := newWorld()
		w.budgetGrace = 300 * time.Millisecond
		w.restartManager()
		p := w.running("work", builders.ToolCallBudget(100))
		w.store.Begin(w.id("work"), 1)
		w.store.SetSpent(w.id("work"), budget.Amounts{ToolCalls: 50})
		w.change("work", builders.ToolCallBudget(50))
		w.until("work", v1alpha1.ReasonStopping)
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(p)
		w.Expect(w.until("work", v1alpha1.ReasonBudgetExceeded).Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptLimitReached))
	})

	It("shares that of its contract, under which nothing starts once it is spent", func() {
		w := newWorld()
		w.grace, w.budgetGrace = time.Hour, 300*time.Millisecond // nothing is looked at again by itself
		w.restartManager()
		w.running("lead", leads("nightly"), mayCall(100))
		p := w.running("early", childOf("lead"))
		w.Expect(w.store.BudgetsOf(w.id("lead").UID)).To(Equal(history.SetBudgets{Contract: "nightly", ContractLimit: budget.Amounts{ToolCalls: 100}}))
		w.store.Begin(w.id("early"), 1)
		w.store.SetContractSpent(w.id("early"), "nightly", budget.Amounts{ToolCalls: 100})
		w.until("early", v1alpha1.ReasonStopping)
		w.untilStopped(p)
		w.Expect(w.until("early", v1alpha1.ReasonBudgetExceeded)).To(haveMessage(v1alpha1.TaskSucceeded,
			ContainSubstring("the tasks of the contract nightly have spent 100 of the 100 tool calls")))

		w.apply("late", childOf("lead"))
		w.Expect(w.until("late", v1alpha1.ReasonBudgetExceeded)).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("the task starts once that is raised")))
		w.Expect(w.pods("late")).To(BeEmpty())

		By("raising it")
		w.change("lead", mayCall(1000))
		w.pod("late", 1)
		w.Eventually(func() budget.Amounts { return w.store.BudgetsOf(w.id("lead").UID).ContractLimit }).Should(Equal(budget.Amounts{ToolCalls: 1000}))
		w.Expect(w.task("early")).To(HaveReason(v1alpha1.TaskSucceeded, v1alpha1.ReasonBudgetExceeded))
		w.change("early", builders.Resume("on"))
		w.pod("early", 2)
	})

	It("stays spent under its contract by tasks that are gone when the history goes back to an older copy", func() {
		w := newWorld()
		w.running("lead", leads("nightly"), mayCall(100))
		w.store.Begin(w.id("lead"), 1)
		w.store.SetContractSpent(w.id("lead"), "nightly", budget.Amounts{ToolCalls: 90})
		spent := HaveField("Status.Contract.Spent", HaveValue(HaveField("ToolCalls", int64(90))))
		w.Eventually(w.current).WithArguments("lead").Should(spent)
		w.store.SetContractSpent(w.id("lead"), "nightly", budget.Amounts{ToolCalls: 30})
		w.Eventually(func() (history.Spending, error) { return w.store.Spending(w.ctx, w.id("lead"), "nightly") }).
			Should(HaveField("ContractSpent.ToolCalls", int64(90)))
		w.Expect(w.task("lead")).To(spent)
	})

	It("shares that of its namespace", func() {
		w := newWorld()
		w.namespaceBudgets = budget.ByNamespace{Namespaces: map[string]*v1alpha1.Budget{w.namespace: {ToolCalls: ptr.To[int64](5)}}}
		w.restartManager()
		p := w.running("early")
		w.Expect(w.config(p).Budgets).To(ConsistOf(budget.Budget{Scope: budget.OfNamespace, Limit: budget.Amounts{ToolCalls: 5}}))
		w.store.SetMonthSpent(w.id("early"), budget.Amounts{ToolCalls: 5})
		w.apply("late")
		w.Expect(w.until("late", v1alpha1.ReasonBudgetExceeded)).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("the task starts in the next one")))
		w.Eventually(w.current).WithArguments("early").Should(HaveField("Status.BudgetWarnings", ConsistOf("Namespace/toolCalls/5")))
	})

	It("leaves nothing behind that bounds others when its Task is deleted", func() {
		w := newWorld()
		p := w.running("lead", leads("nightly"), mayCall(100), builders.ToolCallBudget(5))
		id := w.id("lead")
		w.Expect(w.client.Delete(w.ctx, w.task("lead"))).To(Succeed())
		w.untilStopped(p)
		w.Eventually(func() history.SetBudgets { return w.store.BudgetsOf(id.UID) }).Should(Equal(history.SetBudgets{Contract: "nightly"}))
	})
})
