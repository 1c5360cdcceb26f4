package history

import "github.com/clew-dev/clew/internal/budget"

// Spending is what was spent by a task, and by all tasks of its contract and of its namespace.
type Spending struct {
	// Through is the sequence of the task's last record that is counted; 0 for a task without records.
	Through int64
	// Limit is the task's own budget, as it was set last; Spent is what it has spent, whatever rewinds
	// have taken back. What was inherited is not counted.
	Limit, Spent budget.Amounts
	// Contract is the name of the task's contract; "" for none. ContractLimit is its budget as it was set
	// last, and ContractSpent what all of its tasks have spent.
	Contract                     string
	ContractLimit, ContractSpent budget.Amounts
	// Month is what all tasks of the namespace have spent in the current month, in UTC, by when that was
	// recorded.
	Month budget.Amounts
}

// SetBudgets says what a task may spend, and what its contract may. What is spent stays.
type SetBudgets struct {
	// Task is the limit of the task.
	Task budget.Amounts
	// Contract is the name of the contract whose budget is set as well; "" for none. ContractLimit is its
	// limit.
	Contract      string
	ContractLimit budget.Amounts
}

// SpentBy returns what records add to what a task has spent, apart from checkpoints: only the store
// knows which of those are new.
func SpentBy(records []Record) (sum budget.Amounts) {
	corrected := int64(0)
	for _, r := range records {
		switch {
		case r.Usage != nil:
			used := budget.Used(r.Usage.InputTokens, r.Usage.OutputTokens, r.Usage.CostMicroUSD)
			if used.CostMicroUSD < 0 { // what it takes back may be from earlier records
				corrected, used.CostMicroUSD = max(corrected+used.CostMicroUSD, -budget.Most), 0
			}
			sum = sum.Plus(used)
		case r.Message != nil && r.Message.ToolResult != nil && !r.Message.ToolResult.Interrupted:
			sum.ToolCalls++
		}
	}
	sum.CostMicroUSD += corrected
	return sum
}
