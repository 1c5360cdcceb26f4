package v1alpha1_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func budgetOf(b v1alpha1.Budget) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Budget = &b })
}

func TestABadBudgetIsRefused(t *testing.T) {
	ofContract := func(role v1alpha1.Role, b v1alpha1.Budget) change {
		return spec(func(s *v1alpha1.TaskSpec) {
			s.Role, s.Contract = role, &v1alpha1.Contract{Name: "nightly", Budget: &b}
		})
	}
	const empty = "a budget needs a limit: set inputTokens, outputTokens, costMicroUSD, toolCalls or checkpoints, or leave the budget out"
	for name, c := range map[string]struct {
		change   change
		sentence string
	}{
		"without a limit":            {budgetOf(v1alpha1.Budget{}), empty},
		"of no calls":                {budgetOf(v1alpha1.Budget{ToolCalls: new(int64)}), "should be greater than or equal to 1"},
		"of less than nothing":       {budgetOf(v1alpha1.Budget{CostMicroUSD: ptr.To[int64](-5)}), "should be greater than or equal to 1"},
		"of more than there is":      {budgetOf(v1alpha1.Budget{InputTokens: ptr.To[int64](1e15 + 1)}), "should be less than or equal to"},
		"of a contract, and empty":   {ofContract(v1alpha1.RoleSupervisor, v1alpha1.Budget{}), empty},
		"of a contract, by a worker": {ofContract(v1alpha1.RoleWorker, v1alpha1.Budget{ToolCalls: ptr.To[int64](5)}), "only a contract's supervisor sets its budget: set role to Supervisor"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, create(builders.Task("bad-budget", c.change)), c.sentence)
		})
	}
	for name, good := range map[string]change{
		"one":           budgetOf(v1alpha1.Budget{Checkpoints: ptr.To[int64](1)}),
		"all":           budgetOf(v1alpha1.Budget{ptr.To[int64](1), ptr.To[int64](2), ptr.To[int64](3), ptr.To[int64](4), ptr.To[int64](1e15)}),
		"of-a-contract": ofContract(v1alpha1.RoleSupervisor, v1alpha1.Budget{CostMicroUSD: ptr.To[int64](1)}),
	} {
		if err := create(builders.Task("good-budget-"+name, good)); err != nil {
			t.Errorf("a good budget (%s) is refused: %v", name, err)
		}
	}
}

func TestAResumeNeedsABudgetThatIsLeft(t *testing.T) {
	const sentence = "the task has spent all that its budget allows (status.spent): raise that limit in the same change to resume this task"
	spent := v1alpha1.Spent{ToolCalls: 100, CostMicroUSD: 2_000_000}
	for name, c := range map[string]struct {
		changes []change
		refused bool
	}{
		"nothing is left":         {[]change{builders.Resume("on")}, true},
		"raised in the change":    {[]change{builders.ToolCallBudget(101), builders.Resume("on")}, false},
		"raised by too little":    {[]change{builders.ToolCallBudget(100), builders.Resume("on")}, true},
		"removed in the change":   {[]change{builders.ToolCallBudget(0), builders.Resume("on")}, false},
		"another limit is spent":  {[]change{budgetOf(v1alpha1.Budget{ToolCalls: ptr.To[int64](500), CostMicroUSD: ptr.To[int64](2_000_000)}), builders.Resume("on")}, true},
		"nothing spent of it":     {[]change{budgetOf(v1alpha1.Budget{InputTokens: ptr.To[int64](1)}), builders.Resume("on")}, false},
		"an earlier resume again": {[]change{builders.Resume("before"), builders.BackoffLimit(9)}, false},
		"a rewind":                {[]change{builders.Rewind("back", "spent-1")}, false},
		"no resume":               {[]change{builders.BackoffLimit(9)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("spent-"+slug(name), builders.ToolCallBudget(80)))
			task.Status.Spent, task.Status.HandledOperations = &spent, []string{"Resume/before"}
			setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded)
			for _, change := range c.changes {
				change(task)
			}
			err := server.Client.Update(t.Context(), task)
			if c.refused {
				expectRefused(t, err, sentence)
			} else if err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestWhateverIsSpentTheHighestBudgetIsMore(t *testing.T) {
	highest := v1alpha1.Budget{ptr.To(budget.MostLimit), ptr.To(budget.MostLimit), ptr.To(budget.MostLimit), ptr.To(budget.MostLimit), ptr.To(budget.MostLimit)}
	task := created(t, builders.Task("spent-most", builders.ToolCallBudget(80)))
	task.Status.Spent = &v1alpha1.Spent{budget.Most, budget.Most, budget.Most, budget.Most, budget.Most}
	setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded)
	budgetOf(highest)(task)
	builders.Resume("on")(task)
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Errorf("refused: %v", err)
	}
}

func TestABudgetBelowWhatIsSpentIsRefusedUnlessTheTaskRuns(t *testing.T) {
	const sentence = "the budget is below what the task has spent (status.spent): set that limit to more, or leave it out"
	for name, c := range map[string]struct {
		status  metav1.ConditionStatus
		reason  string
		change  change
		refused bool
	}{
		"of a suspended task":        {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.ToolCallBudget(99), true},
		"of one that has failed":     {metav1.ConditionFalse, v1alpha1.ReasonAgentFailed, builders.ToolCallBudget(99), true},
		"of one whose budget is":     {metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded, builders.ToolCallBudget(99), true},
		"of one that a phase stops":  {metav1.ConditionUnknown, v1alpha1.ReasonPhaseRestarted, builders.ToolCallBudget(99), true},
		"of another limit":           {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, budgetOf(v1alpha1.Budget{CostMicroUSD: ptr.To[int64](1)}), true},
		"which stops a running task": {metav1.ConditionUnknown, v1alpha1.ReasonRunning, builders.ToolCallBudget(1), false},
		"just what is spent":         {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.ToolCallBudget(100), false},
		"and stays as it was":        {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.BackoffLimit(9), false},
		"and is removed":             {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.ToolCallBudget(0), false},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("lowered-"+slug(name), builders.ToolCallBudget(80)))
			task.Status.Spent = &v1alpha1.Spent{ToolCalls: 100, CostMicroUSD: 5}
			setSucceeded(t, task, c.status, c.reason)
			c.change(task)
			err := server.Client.Update(t.Context(), task)
			if c.refused {
				expectRefused(t, err, sentence)
			} else if err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
