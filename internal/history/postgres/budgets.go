package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// What a task spends is added up in its row, in the transaction that stores the records which say so, and
// with it the sums of its contract and of the month: each record counts once, however often it is sent,
// and neither a rewind nor a deletion takes anything back. An agent that corrects what it has said of a
// cost takes back what its own task has added to each of the three sums, and nothing of others.

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
		ToolCalls: t.SpentToolCalls, Checkpoints: t.CheckpointCount - t.RequestedCheckpoints,
	}
}

// spend adds to what the task has spent, and returns what that adds to the sums of its contract and of the
// month, in UTC. Its checkpoints are counted where they are stored.
func (l *locked) spend(more budget.Amounts, now time.Time) sqlc.SpendParams {
	before := spentOf(l.row)
	sum := before.Plus(more)
	l.row.SpentInputTokens, l.row.SpentOutputTokens = sum.InputTokens, sum.OutputTokens
	l.row.SpentCostMicroUsd, l.row.SpentToolCalls = sum.CostMicroUSD, sum.ToolCalls
	if month := now.UTC().Format("2006-01"); l.row.SpentMonth != month {
		l.row.SpentMonth, l.row.MonthCostMicroUsd = month, 0
	}
	cost := sum.CostMicroUSD - before.CostMicroUSD
	return sqlc.SpendParams{
		Namespace: l.task.Namespace, Contract: l.row.Contract, Month: l.row.SpentMonth, Most: budget.Most,
		InputTokens: sum.InputTokens - before.InputTokens, OutputTokens: sum.OutputTokens - before.OutputTokens,
		ContractCost: addPart(&l.row.ContractCostMicroUsd, cost), MonthCost: addPart(&l.row.MonthCostMicroUsd, cost),
		ToolCalls: sum.ToolCalls - before.ToolCalls, Checkpoints: more.Checkpoints,
	}
}

// addPart adds to what a task has added to a sum, of which it takes no more back than that, and returns
// what the sum changes by.
func addPart(part *int64, n int64) int64 {
	n = max(n, -*part)
	*part = min(*part+n, budget.Most)
	return n
}

// spendTogether adds what a task has spent to the sums of its contract and of the month, and what it has spent by
// records of after its contract's spending was recalled to the least that this has spent.
func spendTogether(ctx context.Context, q *sqlc.Queries, p sqlc.SpendParams, records []history.Record) error {
	if p.InputTokens == 0 && p.OutputTokens == 0 && p.ContractCost == 0 && p.MonthCost == 0 && p.ToolCalls == 0 && p.Checkpoints == 0 {
		return nil
	}
	recalled, err := q.Spend(ctx, p)
	if err != nil || len(recalled) == 0 {
		return err
	}
	since := spentSince(recalled[0].Time, records)
	return q.AddLeastSpent(ctx, sqlc.AddLeastSpentParams{
		Namespace: p.Namespace, Contract: p.Contract, Most: budget.Most, InputTokens: since.InputTokens, OutputTokens: since.OutputTokens,
		CostMicroUsd: max(since.CostMicroUSD, min(p.ContractCost, 0)), // it takes nothing of others back
		ToolCalls:    since.ToolCalls, Checkpoints: min(since.Checkpoints, p.Checkpoints),
	})
}

// spentSince returns what is spent by those of the records that were made after a time: of checkpoints, as much at
// most.
func spentSince(t time.Time, records []history.Record) budget.Amounts {
	made, checkpoints := make([]history.Record, 0, len(records)), int64(0)
	for _, r := range records {
		if r.Time.After(t) {
			made = append(made, r)
		}
		if c := r.Checkpoint; c != nil && c.Time.After(t) && c.Trigger != string(v1alpha1.TriggerManual) {
			checkpoints++ // a checkpoint that was lost is sent again as another record
		}
	}
	sum := history.SpentBy(made)
	sum.Checkpoints = checkpoints
	return sum
}

// after returns the records after a sequence.
func after(sequence int64, records []history.Record) []history.Record {
	i := slices.IndexFunc(records, func(r history.Record) bool { return r.Sequence > sequence })
	if i < 0 {
		return nil
	}
	return records[i:]
}

// RecallSpending counts what a task has spent by its records through a sequence, some of which an older
// copy of the database has lost: they count no more if they are sent again. The task has then spent at
// least that, apart from checkpoints, which are counted by those that are known; and its contract and
// this month have spent what it had lost. Errors: history.ErrNotFound if no attempt has begun;
// history.ErrUnavailable.
func (s *Store) RecallSpending(ctx context.Context, task history.Task, spent budget.Amounts, through int64) error {
	return s.write(ctx, fmt.Sprintf("store again what the task %s/%s has spent", task.Namespace, task.Name), func(q *sqlc.Queries) error {
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		has := spentOf(l.row)
		spent.Checkpoints = has.Checkpoints
		lost := spent.Beyond(has)
		together := l.spend(lost, time.Now())
		l.row.SpentThrough = max(l.row.SpentThrough, through)
		if err := l.save(ctx, q); err != nil {
			return err
		}
		return spendTogether(ctx, q, together, nil)
	})
}

// RecallContractSpending counts what all tasks of a contract of a task's namespace were known to have spent at a
// time, since, some of which an older copy of the database has lost: that of tasks which are gone, nobody recalls.
// Errors: history.ErrUnavailable.
//
// What a contract has spent is the larger of two numbers: the sum of what its tasks have spent, and the least, which
// is what was known at that time and what was spent since. The sum has each record once. The least does, too: what
// was known is of before that time, and only records that were made after it are added. So nothing counts twice,
// and the contract has never spent less than was known. What a task has spent before that time, and recalls or
// sends again, is added to the sum alone, be that before the recall or after it: their order changes nothing. What
// was spent after that time and is sent before the recall, as after an outage, is in the sum alone, too. Records
// have the times of their daemons: where clocks differ, all this holds but for what is made within the difference.
func (s *Store) RecallContractSpending(ctx context.Context, task history.Task, contract string, spent budget.Amounts, since time.Time) error {
	spent = budget.Amounts{}.Plus(spent) // within its bounds
	return s.write(ctx, fmt.Sprintf("store again what the tasks of the contract %s/%s have spent", task.Namespace, contract), func(q *sqlc.Queries) error {
		return q.RaiseLeastSpent(ctx, sqlc.RaiseLeastSpentParams{
			Namespace: task.Namespace, Contract: contract, Since: pgtype.Timestamptz{Time: since, Valid: true},
			InputTokens: spent.InputTokens, OutputTokens: spent.OutputTokens, CostMicroUsd: spent.CostMicroUSD,
			ToolCalls: spent.ToolCalls, Checkpoints: spent.Checkpoints,
		})
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
		spending.Through, contract = row.Through, cmp.Or(contract, row.Contract)
		spending.Spent = budget.Amounts{
			InputTokens: row.SpentInputTokens, OutputTokens: row.SpentOutputTokens, CostMicroUSD: row.SpentCostMicroUsd,
			ToolCalls: row.SpentToolCalls, Checkpoints: row.SpentCheckpoints,
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
			spending.ContractLimit, spending.ContractSpent = limit, spent.AtLeast(budget.Amounts{
				InputTokens: b.LeastInputTokens, OutputTokens: b.LeastOutputTokens, CostMicroUSD: b.LeastCostMicroUsd,
				ToolCalls: b.LeastToolCalls, Checkpoints: b.LeastCheckpoints,
			})
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
