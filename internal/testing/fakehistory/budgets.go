package fakehistory

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
)

// budgets are what was spent together, and what was set.
type budgets struct {
	// contracts are by namespace and name, months by namespace, and set by the UID of the task.
	contracts, months map[string]budget.Amounts
	set               map[string]history.SetBudgets
}

func newBudgets() budgets {
	return budgets{contracts: map[string]budget.Amounts{}, months: map[string]budget.Amounts{}, set: map[string]history.SetBudgets{}}
}

// SetSpent sets what a task has spent. Its checkpoints are counted.
func (s *Store) SetSpent(t history.Task, spent budget.Amounts) {
	s.change(t, func(k *task) { k.state.Spent = spent })
}

// SetContractSpent sets what all tasks of a contract have spent, and notifies about one of them.
func (s *Store) SetContractSpent(t history.Task, contract string, spent budget.Amounts) {
	s.change(t, func(*task) { s.budgets.contracts[t.Namespace+"/"+contract] = spent })
}

// SetMonthSpent sets what all tasks of a namespace have spent this month, and notifies about one of them.
func (s *Store) SetMonthSpent(t history.Task, spent budget.Amounts) {
	s.change(t, func(*task) { s.budgets.months[t.Namespace] = spent })
}

// BudgetsOf returns what was set last for a task.
func (s *Store) BudgetsOf(taskUID string) history.SetBudgets {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budgets.set[taskUID]
}

// Spending implements the controllers' stores.
func (s *Store) Spending(_ context.Context, t history.Task, contract string) (history.Spending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spending := history.Spending{Contract: contract, ContractSpent: s.budgets.contracts[t.Namespace+"/"+contract], Month: s.budgets.months[t.Namespace]}
	if k := s.find(t.Key()); k != nil {
		spending.Through, spending.Spent = k.state.LastSequence, k.spent()
	}
	set := s.budgets.set[t.UID]
	spending.Limit = set.Task
	return spending, s.unavailable()
}

// SetBudgets implements the controllers' stores.
func (s *Store) SetBudgets(_ context.Context, t history.Task, set history.SetBudgets) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	s.budgets.set[t.UID] = set
	return nil
}

// RecallSpending implements the controllers' stores.
func (s *Store) RecallSpending(_ context.Context, t history.Task, spent budget.Amounts, _ int64) error {
	s.mu.Lock()
	err := s.unavailable()
	s.mu.Unlock()
	if err == nil {
		s.change(t, func(k *task) { k.state.Spent = k.state.Spent.AtLeast(spent) })
	}
	return err
}

// RecallContractSpending implements the controllers' stores.
func (s *Store) RecallContractSpending(_ context.Context, t history.Task, contract string, spent budget.Amounts, _ time.Time) error {
	s.mu.Lock()
	err := s.unavailable()
	s.mu.Unlock()
	if err == nil {
		key := t.Namespace + "/" + contract
		s.change(t, func(*task) { s.budgets.contracts[key] = s.budgets.contracts[key].AtLeast(spent) })
	}
	return err
}

// spent returns what the task has spent, its checkpoints included.
func (k *task) spent() budget.Amounts {
	spent := k.state.Spent
	spent.Checkpoints = int64(len(k.checkpoints))
	return spent
}
