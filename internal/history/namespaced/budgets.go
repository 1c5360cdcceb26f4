package namespaced

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
)

// Spending returns what a task, its contract and its namespace have spent.
func (s *Store) Spending(ctx context.Context, task history.Task, contract string) (history.Spending, error) {
	task, err := s.task(ctx, task)
	if err != nil {
		return history.Spending{}, err
	}
	return s.keyed.Spending(ctx, task, contract)
}

// SetBudgets stores the limits of a task and of its contract.
func (s *Store) SetBudgets(ctx context.Context, task history.Task, set history.SetBudgets) error {
	task, err := s.task(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.SetBudgets(ctx, task, set)
}

// RecallSpending counts what a task has spent, after the database has lost some of it.
func (s *Store) RecallSpending(ctx context.Context, task history.Task, spent budget.Amounts, through int64) error {
	task, err := s.task(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.RecallSpending(ctx, task, spent, through)
}

// RecallContractSpending counts what the tasks of a contract have spent, after the database has lost some of it.
func (s *Store) RecallContractSpending(ctx context.Context, task history.Task, contract string, spent budget.Amounts, since time.Time) error {
	task, err := s.task(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.RecallContractSpending(ctx, task, contract, spent, since)
}
