package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// What a task spends is added up in its row, in the transaction that stores the records which say so, and
// with it the sums of its contract and of the month: each record counts once, however often it is sent,
// and neither a rewind nor a deletion takes anything back.

// Scopes of rows of budgets.
const (
	scopeTask     = "task"
	scopeContract = "contract"
	scopeMonth    = "month"
)

// spentOf returns what a task has spent.
func spentOf(t sqlc.Task) budget.Amounts {
	return budget.Amounts{
		InputTokens: t.SpentInputTokens, OutputTokens: t.SpentOutputTokens, CostMicroUSD: t.SpentCostMicroUsd,
		ToolCalls: t.SpentToolCalls, Checkpoints: t.CheckpointCount,
	}
}

// spend adds to what the task has spent. Its checkpoints are counted where they are stored.
func (l *locked) spend(more budget.Amounts) {
	sum := spentOf(l.row).Plus(more)
	l.row.SpentInputTokens, l.row.SpentOutputTokens = sum.InputTokens, sum.OutputTokens
	l.row.SpentCostMicroUsd, l.row.SpentToolCalls = sum.CostMicroUSD, sum.ToolCalls
}

// spendTogether adds to what the task's contract and its namespace have spent.
func (l *locked) spendTogether(ctx context.Context, q *sqlc.Queries, more budget.Amounts) error {
	if more == (budget.Amounts{}) {
		return nil
	}
	return q.Spend(ctx, sqlc.SpendParams{
		Namespace: l.task.Namespace, Contract: l.row.Contract, InputTokens: more.InputTokens, OutputTokens: more.OutputTokens,
		CostMicroUsd: more.CostMicroUSD, ToolCalls: more.ToolCalls, Checkpoints: more.Checkpoints,
	})
}

// Spending returns what a task has spent, and what all of its contract and its namespace have. contract
// is the name of its contract, or empty for the one that its newest attempt began with. Errors:
// history.ErrUnavailable.
func (s *Store) Spending(ctx context.Context, task history.Task, contract string) (history.Spending, error) {
	doing := fmt.Sprintf("read what the task %s/%s has spent", task.Namespace, task.Name)
	var spending history.Spending
	row, err := s.read().SpentOf(ctx, task.UID)
	switch {
	case err == nil && row.Namespace == task.Namespace:
		spending.Through, contract = row.LastSequence, cmp.Or(contract, row.Contract)
		spending.Spent = budget.Amounts{
			InputTokens: row.SpentInputTokens, OutputTokens: row.SpentOutputTokens, CostMicroUSD: row.SpentCostMicroUsd,
			ToolCalls: row.SpentToolCalls, Checkpoints: row.CheckpointCount,
		}
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return spending, wrap(err, doing)
	}
	spending.Contract = contract
	rows, err := s.read().BudgetsOf(ctx, sqlc.BudgetsOfParams{Namespace: task.Namespace, Uid: task.UID, Contract: contract})
	for _, b := range rows {
		limit := budget.Amounts{InputTokens: b.InputTokens, OutputTokens: b.OutputTokens, CostMicroUSD: b.CostMicroUsd, ToolCalls: b.ToolCalls, Checkpoints: b.Checkpoints}
		spent := budget.Amounts{
			InputTokens: b.SpentInputTokens, OutputTokens: b.SpentOutputTokens, CostMicroUSD: b.SpentCostMicroUsd,
			ToolCalls: b.SpentToolCalls, Checkpoints: b.SpentCheckpoints,
		}
		switch b.Scope {
		case scopeTask:
			spending.Limit = limit
		case scopeContract:
			spending.ContractLimit, spending.ContractSpent = limit, spent
		case scopeMonth:
			spending.Month = spent
		}
	}
	return spending, wrap(err, doing)
}

// SetBudgets stores the limits of a task, and those of its contract if that is named, so that daemons
// are told. Errors: history.ErrUnavailable.
func (s *Store) SetBudgets(ctx context.Context, task history.Task, set history.SetBudgets) error {
	return s.write(ctx, fmt.Sprintf("store the budget of the task %s/%s", task.Namespace, task.Name), func(q *sqlc.Queries) error {
		if set.Contract != "" {
			if err := setBudget(ctx, q, task.Namespace, scopeContract, set.Contract, set.ContractLimit); err != nil {
				return err
			}
		}
		if set.Task == (budget.Amounts{}) {
			return q.DeleteTaskBudget(ctx, sqlc.DeleteTaskBudgetParams{Namespace: task.Namespace, Uid: task.UID})
		}
		return setBudget(ctx, q, task.Namespace, scopeTask, task.UID, set.Task)
	})
}

func setBudget(ctx context.Context, q *sqlc.Queries, namespace, scope, name string, limit budget.Amounts) error {
	return q.SetBudget(ctx, sqlc.SetBudgetParams{
		Namespace: namespace, Scope: scope, Name: name, InputTokens: limit.InputTokens, OutputTokens: limit.OutputTokens,
		CostMicroUsd: limit.CostMicroUSD, ToolCalls: limit.ToolCalls, Checkpoints: limit.Checkpoints,
	})
}
