package daemontest

import (
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// SetBudgets makes the server tell of these budgets with its next answers. What is spent of one of the
// scope Task is added up from the task's records.
func (s *Server) SetBudgets(uid string, budgets ...*daemonv1.Budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.task(uid).limits = append([]*daemonv1.Budget{}, budgets...)
}

// budgets returns what the server says of them; nil if it knows none.
func (t *Task) budgets() *daemonv1.Budgets {
	if t.limits == nil {
		return nil
	}
	told := &daemonv1.Budgets{Through: t.Last()}
	for _, limit := range t.limits {
		b := proto.CloneOf(limit)
		if b.GetScope() == "Task" {
			b.Spent = t.spent()
		}
		told.Budgets = append(told.Budgets, b)
	}
	return told
}

// spent adds up what the task has spent.
func (t *Task) spent() *daemonv1.Amounts {
	sum := &daemonv1.Amounts{Checkpoints: int64(len(t.Checkpoints))}
	for _, r := range t.Records {
		if result := r.GetMessage().GetToolResult(); result != nil && !result.GetInterrupted() {
			sum.ToolCalls++
		}
		u := r.GetUsage()
		sum.InputTokens += u.GetInputTokens()
		sum.OutputTokens += u.GetOutputTokens()
		sum.CostMicroUsd += u.GetCostMicroUsd()
	}
	return sum
}
