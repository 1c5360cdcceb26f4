package cli

import (
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// budgetUse is what is spent of one limit of a budget.
type budgetUse struct {
	// Scope is Task, or Contract for that of a supervisor's contract.
	Scope string `json:"scope"`
	// Limit is a field of spec.budget, such as costMicroUSD; the amounts are in its unit.
	Limit   string `json:"limit"`
	Spent   int64  `json:"spent"`
	Maximum int64  `json:"maximum"`
}

// budgetsOf returns what is spent of each limit that a task has, and, if it is a supervisor, of those of
// its contract, as the status says.
func budgetsOf(t *v1alpha1.Task) (uses []budgetUse) {
	all := []budget.Budget{{Scope: budget.OfTask, Limit: budget.LimitsOf(t.Spec.Budget), Spent: budget.Amounts(ptr.Deref(t.Status.Spent, v1alpha1.Spent{}))}}
	if c := t.Spec.Contract; c != nil && t.Spec.Role == v1alpha1.RoleSupervisor {
		of := budget.Budget{Scope: budget.OfContract, Limit: budget.LimitsOf(c.Budget)}
		if s := t.Status.Contract; s != nil {
			of.Spent = budget.Amounts(ptr.Deref(s.Spent, v1alpha1.Spent{}))
		}
		all = append(all, of)
	}
	for _, b := range all {
		for _, u := range b.Uses() {
			uses = append(uses, budgetUse{Scope: string(u.Scope), Limit: u.Field, Spent: u.Spent, Maximum: u.Limit})
		}
	}
	return uses
}

// percent returns how much is spent, rounded down: 100 only if all is.
func (u budgetUse) percent() int64 {
	if u.Spent >= u.Maximum {
		return int64(float64(u.Spent) / float64(u.Maximum) * 100)
	}
	return min(int64(float64(u.Spent)/float64(u.Maximum)*100), 99)
}

// word returns the name of the limit.
func (u budgetUse) word() string {
	word := map[string]string{
		"inputTokens": "tokens in", "outputTokens": "tokens out", "costMicroUSD": "cost", "toolCalls": "tool calls", "checkpoints": "checkpoints",
	}[u.Limit]
	if u.Scope == string(budget.OfContract) {
		return "contract " + word
	}
	return word
}

// figures says how much is spent of how much.
func (u budgetUse) figures() string {
	if u.Limit == "costMicroUSD" {
		return fmt.Sprintf("%s $%.2f of $%.2f", u.word(), float64(u.Spent)/1e6, float64(u.Maximum)/1e6)
	}
	return fmt.Sprintf("%s %s of %s", u.word(), count(u.Spent), count(u.Maximum))
}

// budgetCell returns what a list shows of budgets: of each budget the limit of which most is spent, or all
// of them with figures if there is room; - for none.
func budgetCell(uses []budgetUse, wide bool) string {
	var parts []string
	if wide {
		for _, u := range uses {
			parts = append(parts, u.figures())
		}
	} else {
		for _, scope := range []budget.Scope{budget.OfTask, budget.OfContract} {
			if u := fullest(uses, string(scope)); u != nil {
				parts = append(parts, fmt.Sprintf("%s %d%%", u.word(), u.percent()))
			}
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// fullest returns the limit of a budget of which most is spent; nil for none.
func fullest(uses []budgetUse, scope string) *budgetUse {
	var most *budgetUse
	for i := range uses {
		share := func(u *budgetUse) float64 { return float64(u.Spent) / float64(u.Maximum) }
		if u := &uses[i]; u.Scope == scope && (most == nil || share(u) > share(most)) {
			most = u
		}
	}
	return most
}
