package budget

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestAmountsAddUpAndNeverOverflow(t *testing.T) {
	for name, c := range map[string]struct{ a, b, want Amounts }{
		"nothing":               {Amounts{}, Amounts{}, Amounts{}},
		"each by itself":        {Amounts{1, 2, 3, 4, 5}, Amounts{10, 20, 30, 40, 50}, Amounts{11, 22, 33, 44, 55}},
		"a corrected cost":      {Amounts{CostMicroUSD: 100}, Amounts{CostMicroUSD: -30}, Amounts{CostMicroUSD: 70}},
		"more than it has cost": {Amounts{CostMicroUSD: 100}, Amounts{CostMicroUSD: -300}, Amounts{}},
		"more than there is":    {Amounts{InputTokens: math.MaxInt64}, Amounts{InputTokens: math.MaxInt64}, Amounts{InputTokens: Most}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.a.Plus(c.b)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOneReportIsBelievedUpToWhatOneCanBe(t *testing.T) {
	if got := Used(9e18, math.MaxInt64, math.MaxInt64); got != (Amounts{InputTokens: 1e10, OutputTokens: 1e10, CostMicroUSD: 1e12}) {
		t.Errorf("what an agent makes up counts as %+v", got)
	}
	if got := Used(-5, math.MinInt64, math.MinInt64); got != (Amounts{CostMicroUSD: -1e12}) {
		t.Errorf("what an agent takes back counts as %+v", got)
	}
}

func TestForWhateverIsSpentThereIsAHigherLimit(t *testing.T) {
	spent := Amounts{}
	for range 3 {
		spent = spent.Plus(Amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64})
	}
	limit := Amounts{MostLimit, MostLimit, MostLimit, MostLimit, MostLimit}
	if u := Exceeded([]Budget{{Scope: OfContract, Limit: limit, Spent: spent}}); u != nil {
		t.Errorf("%d %s are as much as a budget can allow", u.Spent, u.Field)
	}
}

func TestLimitsThatAreLeftOutAreNone(t *testing.T) {
	if got := LimitsOf(nil); got != (Amounts{}) {
		t.Errorf("no budget limits %+v", got)
	}
	got := LimitsOf(&v1alpha1.Budget{CostMicroUSD: ptr.To[int64](5), Checkpoints: ptr.To[int64](7)})
	if got != (Amounts{CostMicroUSD: 5, Checkpoints: 7}) {
		t.Errorf("the limits are %+v", got)
	}
}

func TestABudgetIsExceededOnceAllOfALimitIsSpent(t *testing.T) {
	for name, c := range map[string]struct {
		limit, spent Amounts
		want         string
	}{
		"no limit":              {Amounts{}, Amounts{9, 9, 9, 9, 9}, ""},
		"nothing spent":         {Amounts{1, 1, 1, 1, 1}, Amounts{}, ""},
		"one left":              {Amounts{ToolCalls: 10}, Amounts{ToolCalls: 9}, ""},
		"all spent":             {Amounts{ToolCalls: 10}, Amounts{ToolCalls: 10}, "toolCalls"},
		"more spent":            {Amounts{OutputTokens: 10}, Amounts{OutputTokens: 4000}, "outputTokens"},
		"another one is spent":  {Amounts{ToolCalls: 10}, Amounts{Checkpoints: 10}, ""},
		"the second of two":     {Amounts{InputTokens: 100, Checkpoints: 2}, Amounts{InputTokens: 99, Checkpoints: 2}, "checkpoints"},
		"the cost":              {Amounts{CostMicroUSD: 1}, Amounts{CostMicroUSD: 1}, "costMicroUSD"},
		"the first of both":     {Amounts{InputTokens: 1, ToolCalls: 1}, Amounts{InputTokens: 1, ToolCalls: 1}, "inputTokens"},
		"the tokens of a model": {Amounts{InputTokens: 1}, Amounts{InputTokens: Most}, "inputTokens"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if u := Exceeded([]Budget{{Scope: OfTask, Limit: c.limit, Spent: c.spent}}); u != nil {
				got = u.Field
			}
			if got != c.want {
				t.Errorf("the limit is %q, want %q", got, c.want)
			}
		})
	}
	of := Exceeded([]Budget{{Scope: OfTask}, {Scope: OfContract, Name: "nightly", Limit: Amounts{ToolCalls: 1}, Spent: Amounts{ToolCalls: 1}}})
	if of == nil || of.Scope != OfContract || of.Name != "nightly" {
		t.Errorf("the budget is that of %+v", of)
	}
}

func TestSomebodyShouldKnowFromFourFifthsOn(t *testing.T) {
	for limit, from := range map[int64]int64{1: 1, 5: 4, 10: 8, 100: 80, 1e15: 8e14} {
		if u := (Use{Limit: limit, Spent: from - 1}); u.NearlySpent() {
			t.Errorf("%d of %d are nearly all", u.Spent, limit)
		}
		if u := (Use{Limit: limit, Spent: from}); !u.NearlySpent() {
			t.Errorf("%d of %d are not nearly all", u.Spent, limit)
		}
	}
}

func TestSentencesSayHowMuchOfWhatAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		use          Use
		says, advice string
	}{
		{Use{OfTask, "", "toolCalls", 100, 103}, "the task has spent 103 of the 100 tool calls that budget.toolCalls allows",
			"; to continue, raise budget.toolCalls above that and resume the task in one change"},
		{Use{OfTask, "", "costMicroUSD", 5_000_000, 5_012_300}, "the task has spent 5.0123 of the 5.00 US dollars that budget.costMicroUSD allows",
			"; to continue, raise budget.costMicroUSD above that and resume the task in one change"},
		{Use{OfContract, "nightly", "inputTokens", 7, 7}, "the tasks of the contract nightly have spent 7 of the 7 input tokens that contract.budget.inputTokens of its supervisor allows",
			"; to continue, raise contract.budget.inputTokens of the contract's supervisor, then resume the task"},
		{Use{OfNamespace, "", "outputTokens", 7, 8}, "the tasks of this namespace have spent 8 of the 7 output tokens that outputTokens of its budget allows in a calendar month",
			"; to continue, resume the task in the next month, or once an administrator has raised budgets in the values of Clew's chart"},
		{Use{OfTask, "", "checkpoints", 2, 2}, "the task has spent 2 of the 2 checkpoints that budget.checkpoints allows",
			"; to continue, raise budget.checkpoints above that and resume the task in one change"},
	} {
		if got := c.use.String(); got != c.says {
			t.Errorf("it says %q, want %q", got, c.says)
		}
		if got := c.use.Advice(); got != c.advice {
			t.Errorf("it advises %q, want %q", got, c.advice)
		}
	}
	if got := dollars(1); got != "0.000001" {
		t.Errorf("a millionth of a dollar is %s", got)
	}
}
