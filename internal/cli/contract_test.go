package cli

import (
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// because adds to a waiting task why it waits.
func (b *bench) because(task *v1alpha1.Task, message string) {
	b.Helper()
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	c.Message, c.LastTransitionTime = message, metav1.NewTime(noon.Add(-5*time.Minute))
	b.try(server.Client.Status().Update(b.ctx, task))
}

// The phase is that of the supervisor that leads, and not of one that waits until it may.
func TestAContractShowsItsPhaseAndWhoWaitsAndWhy(t *testing.T) {
	b := newBench(t)
	lead := b.member("lead", nil, v1alpha1.ReasonRunning, func(t *v1alpha1.Task) {
		t.Spec.Contract.Budget = &v1alpha1.Budget{CostMicroUSD: ptr.To[int64](2_000_000), ToolCalls: ptr.To[int64](1000)}
	})
	lead.Status.Contract.LeadingSince, lead.Status.Contract.Since = ptr.To(metav1.NewTime(noon)), ptr.To(metav1.NewTime(noon))
	lead.Status.Contract.Spent = &v1alpha1.Spent{CostMicroUSD: 1_650_000, ToolCalls: 40}
	b.try(server.Client.Status().Update(b.ctx, lead))
	second := b.member("second", nil, v1alpha1.ReasonWaitingForContract)
	second.Status.Contract = nil
	b.because(second, "task lead leads the contract port")
	b.member("lead-done", lead, v1alpha1.ReasonCompleted)
	b.member("lead-works", lead, v1alpha1.ReasonRunning)
	b.because(b.member("lead-next", lead, v1alpha1.ReasonWaitingForTasks), "waits for task lead-works to complete")
	surplus := b.member("lead-surplus", lead, v1alpha1.ReasonChildLimitReached)
	surplus.Status.Contract, surplus.Status.Parent = nil, nil
	b.because(surplus, "the parent lead has 3 children")

	out, _ := b.must("tree", "--contract", "port")
	wantParts(t, "the contract", squeezed(out),
		"contract port is in phase Execute since 2026-11-21 12:00:00 (Research, Specify, Plan, Execute, Review)\nled by lead\n6 tasks: 1 ChildLimitReached, 1 Completed, 2 Running, 1 WaitingForContract, 1 WaitingForTasks\nbudget: contract cost $1.65 of $2.00, contract tool calls 40 of 1k\n",
		"COST BUDGET AGE", "- contract cost 82% ",
		"WAITING STATE FOR WHY\n", "lead-next WaitingForTasks 5m waits for task lead-works to complete\n", "second WaitingForContract 5m task lead leads the contract port", "lead-surplus ChildLimitReached 5m the parent lead has 3 children")
	out, _ = b.must("tree", "--contract", "port", "-o", "json")
	found := decode[taskTree](t, out)
	if c := found.Contract; c == nil || c.Supervisor != "lead" || c.Phase != "Execute" || len(c.Waiting) != 3 || len(c.Budget) != 2 || c.States["Running"] != 2 {
		t.Errorf("the JSON is %s", out)
	}
	if found.Tasks[0].Budgets[0] != (budgetUse{Scope: "Contract", Limit: "costMicroUSD", Spent: 1_650_000, Maximum: 2_000_000}) {
		t.Errorf("the budgets of the supervisor are %+v", found.Tasks[0].Budgets)
	}
}

func TestAContractWithoutASupervisor(t *testing.T) {
	b := newBench(t)
	task := b.task("left", v1alpha1.ReasonRunning)
	task.Status.Contract = &v1alpha1.ContractStatus{Name: "port"}
	b.try(server.Client.Status().Update(b.ctx, task))
	out, _ := b.must("tree", "--contract", "port")
	wantParts(t, "the contract", out, "contract port\nno supervisor leads it\n1 task: 1 Running\n\nTASK")
}

func TestListsShowTheLimitOfWhichMostIsSpent(t *testing.T) {
	task := builders.Task("a", func(t *v1alpha1.Task) {
		t.Spec.Budget = &v1alpha1.Budget{InputTokens: ptr.To[int64](1_000_000), CostMicroUSD: ptr.To[int64](500_000), Checkpoints: ptr.To[int64](10)}
		t.Status.Spent = &v1alpha1.Spent{InputTokens: 999_999, CostMicroUSD: 400_000, ToolCalls: 7}
	})
	uses := budgetsOf(task)
	wantText(t, "the cell", "tokens in 99%", budgetCell(uses, false))
	wantText(t, "the wide cell", "tokens in 1M of 1M, cost $0.40 of $0.50, checkpoints 0 of 10", budgetCell(uses, true))
	task.Status.Spent.CostMicroUSD = 510_000
	wantText(t, "the cell of what is over", "cost 102%", budgetCell(budgetsOf(task), false))
	wantText(t, "the cell of a task without a budget", "-", budgetCell(budgetsOf(builders.Task("b")), true))
}

func TestBudgetsInTheListOfTasks(t *testing.T) {
	b := newBench(t)
	task := b.member("worker", nil, v1alpha1.ReasonRunning, builders.ToolCallBudget(10))
	task.Status.Spent = &v1alpha1.Spent{ToolCalls: 4}
	b.try(server.Client.Status().Update(b.ctx, task))
	b.withHistory(map[string]any{"GET taskhistories": historyv1.TaskHistoryList{
		Items: []historyv1.TaskHistory{taskHistoryOf("worker", string(task.UID)), taskHistoryOf("gone", "u")},
	}})
	out, _ := b.must("task", "list")
	wantParts(t, "the list", squeezed(out), "COST BUDGET CHECKPOINTS", "$0.0123 tool calls 40% 4", "$0.0123 - 4")
	out, _ = b.must("task", "list", "-o", "wide")
	wantParts(t, "the wide list", squeezed(out), "tool calls 4 of 10")
}
