// Package budget knows what budgets allow, what is spent of them, and how to say so. It is pure.
//
// A budget bounds what a task spends, or what all tasks of a contract or of a namespace spend together.
// The daemon of a task stops its agent when one is spent, the manager starts no other one, and both say
// it in the same words.
package budget

import (
	"fmt"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// MostLimit is the highest limit of a v1alpha1.Budget.
	MostLimit = int64(1e15)
	// Most is more than anybody spends, and as much as is counted: for whatever an agent makes up there is
	// a higher limit.
	Most = MostLimit / 2
	// MostTokens and MostCost, in millionths of a US dollar, are more than one report of a model can be of.
	MostTokens, MostCost = int64(1e10), int64(1e12)
)

// Fields returns the names of the limits of a v1alpha1.Budget.
func Fields() []string {
	return []string{"inputTokens", "outputTokens", "costMicroUSD", "toolCalls", "checkpoints"}
}

// Amounts are what agents spend, or may spend. In a limit, 0 stands for any amount.
type Amounts struct {
	// InputTokens are tokens sent to the model, cached ones included, and OutputTokens those that it
	// returned.
	InputTokens  int64 `json:"inputTokens,omitempty"`
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// CostMicroUSD are millionths of a US dollar. In what one record adds, it may be negative: an agent
	// corrects an estimate.
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// ToolCalls are the calls that were completed, and Checkpoints those that were taken.
	ToolCalls   int64 `json:"toolCalls,omitempty"`
	Checkpoints int64 `json:"checkpoints,omitempty"`
}

// Plus returns the sum. No amount falls below 0.
func (a Amounts) Plus(b Amounts) Amounts {
	add := func(x, y int64) int64 { return min(max(within(x)+within(y), 0), Most) }
	return Amounts{
		add(a.InputTokens, b.InputTokens), add(a.OutputTokens, b.OutputTokens), add(a.CostMicroUSD, b.CostMicroUSD),
		add(a.ToolCalls, b.ToolCalls), add(a.Checkpoints, b.Checkpoints),
	}
}

// With returns the amounts with the one of a field set.
func (a Amounts) With(field string, n int64) Amounts {
	switch field {
	case "inputTokens":
		a.InputTokens = n
	case "outputTokens":
		a.OutputTokens = n
	case "costMicroUSD":
		a.CostMicroUSD = n
	case "toolCalls":
		a.ToolCalls = n
	case "checkpoints":
		a.Checkpoints = n
	}
	return a
}

// AtLeast returns the larger of each two amounts.
func (a Amounts) AtLeast(b Amounts) Amounts {
	return Amounts{
		max(a.InputTokens, b.InputTokens), max(a.OutputTokens, b.OutputTokens), max(a.CostMicroUSD, b.CostMicroUSD),
		max(a.ToolCalls, b.ToolCalls), max(a.Checkpoints, b.Checkpoints),
	}
}

// Used returns what one report says that a model was used for: no negative tokens, and no more than one
// can be of. Whoever writes a report may have made it up.
func Used(inputTokens, outputTokens, costMicroUSD int64) Amounts {
	tokens := func(n int64) int64 { return min(max(n, 0), MostTokens) }
	return Amounts{InputTokens: tokens(inputTokens), OutputTokens: tokens(outputTokens), CostMicroUSD: min(max(costMicroUSD, -MostCost), MostCost)}
}

func within(n int64) int64 { return min(max(n, -Most), Most) }

// LimitsOf returns the limits of a budget; none for nil.
func LimitsOf(b *v1alpha1.Budget) Amounts {
	if b == nil {
		return Amounts{}
	}
	limit := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	return Amounts{limit(b.InputTokens), limit(b.OutputTokens), limit(b.CostMicroUSD), limit(b.ToolCalls), limit(b.Checkpoints)}
}

// Status returns what was spent as a status shows it; nil for nothing.
func (a Amounts) Status() *v1alpha1.Spent {
	if a == (Amounts{}) {
		return nil
	}
	s := v1alpha1.Spent(a)
	return &s
}

// Scope is whose budget one is.
type Scope string

const (
	// OfTask is that of the task itself.
	OfTask Scope = "Task"
	// OfContract is that of the task's contract, which its supervisor has.
	OfContract Scope = "Contract"
	// OfNamespace is that of the task's namespace, for one calendar month, in UTC.
	OfNamespace Scope = "Namespace"
)

// Budget is a budget that a task works under.
type Budget struct {
	Scope Scope `json:"scope"`
	// Name of the contract; "" for other scopes.
	Name string `json:"name,omitempty"`
	// Limit is what may be spent, and Spent what was, by all to whom the budget applies.
	Limit Amounts `json:"limit"`
	Spent Amounts `json:"spent"`
}

// Use is what is spent of one limit of a budget.
type Use struct {
	Scope Scope
	// Name of the contract; "" for other scopes.
	Name string
	// Field of v1alpha1.Budget, such as toolCalls.
	Field        string
	Limit, Spent int64
}

// Uses returns what is spent of each limit that there is.
func (b Budget) Uses() (uses []Use) {
	for _, u := range []Use{
		{Field: "inputTokens", Limit: b.Limit.InputTokens, Spent: b.Spent.InputTokens},
		{Field: "outputTokens", Limit: b.Limit.OutputTokens, Spent: b.Spent.OutputTokens},
		{Field: "costMicroUSD", Limit: b.Limit.CostMicroUSD, Spent: b.Spent.CostMicroUSD},
		{Field: "toolCalls", Limit: b.Limit.ToolCalls, Spent: b.Spent.ToolCalls},
		{Field: "checkpoints", Limit: b.Limit.Checkpoints, Spent: b.Spent.Checkpoints},
	} {
		if u.Limit > 0 {
			u.Scope, u.Name = b.Scope, b.Name
			uses = append(uses, u)
		}
	}
	return uses
}

// Exceeded returns the first limit of which all is spent; nil if there is none.
func Exceeded(budgets []Budget) *Use {
	for _, b := range budgets {
		for _, u := range b.Uses() {
			if u.Spent >= u.Limit {
				return &u
			}
		}
	}
	return nil
}

// NearlySpent reports whether 80 % of the limit are spent, from which on somebody should know.
func (u Use) NearlySpent() bool { return u.Spent >= u.Limit-u.Limit/5 }

// Key identifies the limit and its value.
func (u Use) Key() string { return fmt.Sprintf("%s/%s/%d", u.Scope, u.Field, u.Limit) }

// String says how much is spent of what.
func (u Use) String() string {
	switch u.Scope {
	case OfContract:
		return fmt.Sprintf("the tasks of the contract %s have spent %s that contract.budget.%s of its supervisor allows", u.Name, u.amounts(), u.Field)
	case OfNamespace:
		return fmt.Sprintf("the tasks of this namespace have spent %s that %s of its budget allows in a calendar month", u.amounts(), u.Field)
	}
	return fmt.Sprintf("the task has spent %s that budget.%s allows", u.amounts(), u.Field)
}

// Wait says that a task which has yet to begin waits. It does not say how much is spent, which changes
// all the time.
func (u Use) Wait() string {
	switch u.Scope {
	case OfContract:
		return fmt.Sprintf("all is spent that contract.budget.%s of the supervisor of the contract %s allows: the task starts once that is raised", u.Field, u.Name)
	case OfNamespace:
		return fmt.Sprintf("all is spent that %s of the namespace's budget allows this month: the task starts in the next one, or once an administrator has raised budgets in the values of Clew's chart", u.Field)
	}
	return fmt.Sprintf("all is spent that budget.%s allows, by the task whose history this one continues: the task starts once that is raised", u.Field)
}

// Advice is the end of a sentence about what to do when all is spent.
func (u Use) Advice() string {
	switch u.Scope {
	case OfContract:
		return "; to continue, raise contract.budget." + u.Field + " of the contract's supervisor, then resume the task"
	case OfNamespace:
		return "; to continue, resume the task in the next month, or once an administrator has raised budgets in the values of Clew's chart"
	}
	return "; to continue, raise budget." + u.Field + " above that and resume the task in one change"
}

// amounts says how much is spent of how much.
func (u Use) amounts() string {
	switch u.Field {
	case "inputTokens":
		return fmt.Sprintf("%d of the %d input tokens", u.Spent, u.Limit)
	case "outputTokens":
		return fmt.Sprintf("%d of the %d output tokens", u.Spent, u.Limit)
	case "costMicroUSD":
		return fmt.Sprintf("%s of the %s US dollars", dollars(u.Spent), dollars(u.Limit))
	case "toolCalls":
		return fmt.Sprintf("%d of the %d tool calls", u.Spent, u.Limit)
	}
	return fmt.Sprintf("%d of the %d checkpoints", u.Spent, u.Limit)
}

// dollars writes millionths of a dollar with at least two decimals, and no more than there are.
func dollars(micro int64) string {
	text := fmt.Sprintf("%d.%06d", micro/1e6, micro%1e6)
	short := strings.TrimRight(text, "0")
	if point := strings.IndexByte(text, '.'); len(short) < point+3 {
		return text[:point+3]
	}
	return short
}
