package task

import (
	"context"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// observeBudgets reads what is spent of the budgets that a task shares with others. The history store is
// asked only if there are any.
func (r *Reconciler) observeBudgets(ctx context.Context, task, parent *v1alpha1.Task) (plan.Shared, error) {
	name := plan.ContractName(task)
	if name == "" && parent != nil {
		name = plan.ContractName(parent)
	}
	holder, err := r.budgetHolder(ctx, task.Namespace, name)
	if err != nil {
		return plan.Shared{}, err
	}
	if holder != nil && holder.UID == task.UID {
		holder = task // newer than the cache: a resume comes with the budget that it needs, and is decided on once
	}
	ofContract, ofNamespace := plan.ContractBudget(holder), r.NamespaceBudgets.Of(task.Namespace)
	if ofContract == (budget.Amounts{}) && ofNamespace == (budget.Amounts{}) {
		return plan.Shared{Known: true}, nil
	}
	spending, err := r.Store.Spending(ctx, historyTask(task), name)
	if err != nil {
		logf.FromContext(ctx).V(1).Info("could not ask what is spent of a budget", "error", err.Error())
		return plan.Shared{}, nil
	}
	shared := plan.Shared{Known: true}
	for _, b := range []budget.Budget{
		{Scope: budget.OfContract, Name: name, Limit: ofContract, Spent: spending.ContractSpent},
		{Scope: budget.OfNamespace, Limit: ofNamespace, Spent: spending.Month},
	} {
		if b.Limit != (budget.Amounts{}) {
			shared.Budgets = append(shared.Budgets, b)
		}
	}
	return shared, nil
}

// budgetHolder returns the supervisor whose budget counts for a contract; nil if there is none.
func (r *Reconciler) budgetHolder(ctx context.Context, namespace, contract string) (*v1alpha1.Task, error) {
	if contract == "" {
		return nil, nil
	}
	supervisors, err := r.indexed(ctx, namespace, supervisorsByContract, contract)
	if err != nil {
		return nil, err
	}
	return plan.BudgetHolder(supervisors), nil
}

// keepBudgets stores what the task may spend, and its contract if it is this supervisor's budget that
// counts there, for as long as the task has an attempt: its daemon and those of the contract's other tasks
// are told with each answer of the server. It is stored again for each attempt, since the store may have
// forgotten it meanwhile. What fails is tried again by the next reconciliation; until then the daemons
// know what they knew, and the manager stops what must be stopped.
func (r *Reconciler) keepBudgets(ctx context.Context, task *v1alpha1.Task, m *known) {
	n := len(task.Status.Attempts)
	if n == 0 || task.DeletionTimestamp != nil {
		return
	}
	set := history.SetBudgets{Task: budget.LimitsOf(task.Spec.Budget)}
	if name := plan.ContractName(task); name != "" && task.Spec.Role == v1alpha1.RoleSupervisor {
		holder, err := r.budgetHolder(ctx, task.Namespace, name)
		if err == nil && holder != nil && holder.UID == task.UID {
			set.Contract, set.ContractLimit = name, plan.ContractBudget(task)
		}
	}
	newest, copies := task.Status.Attempts[n-1].Number, r.memory.copies.Load()
	if m.keptBudgets == set && m.keptBudgetsFor == newest && m.keptBudgetsIn == copies {
		return
	}
	none := set.Task == (budget.Amounts{}) && set.ContractLimit == (budget.Amounts{})
	if none && m.keptBudgetsFor == 0 && task.Status.Attempts[n-1].Outcome != "" {
		return // nothing runs, and nothing was said to be stored
	}
	if err := r.Store.SetBudgets(ctx, historyTask(task), set); err != nil {
		logf.FromContext(ctx).V(1).Info("could not store the task's budget", "error", err.Error())
		return
	}
	m.keptBudgets, m.keptBudgetsFor, m.keptBudgetsIn = set, newest, copies
}

// recallSpending has the history store count again what it has lost with an older copy. What fails is
// decided anew.
func (r *Reconciler) recallSpending(ctx context.Context, task *v1alpha1.Task, lost *plan.LostSpending) {
	if lost == nil {
		return
	}
	if err := r.Store.RecallSpending(ctx, historyTask(task), lost.Spent, lost.Through); err != nil {
		logf.FromContext(ctx).Info("the history store could not be told what a task has spent, which it has lost", "error", err.Error())
	}
}

// recallOfContract has the history store count again what it has lost of what the tasks of a contract have spent.
// What fails is decided anew.
func (r *Reconciler) recallOfContract(ctx context.Context, task *v1alpha1.Task, lost *plan.LostOfContract) {
	if lost == nil {
		return
	}
	if err := r.Store.RecallContractSpending(ctx, historyTask(task), lost.Name, lost.Spent, lost.Since.Time); err != nil {
		logf.FromContext(ctx).Info("the history store could not be told what the tasks of a contract have spent, which it has lost", "contract", lost.Name, "error", err.Error())
	}
}

// passOnBudgets removes what a task that is about to be gone may spend. Its contract may spend what the
// supervisor says whose budget counts next.
func (r *Reconciler) passOnBudgets(ctx context.Context, task *v1alpha1.Task) error {
	name, set := plan.ContractName(task), history.SetBudgets{}
	if plan.ContractBudget(task) == (budget.Amounts{}) {
		name = ""
	}
	if name == "" && task.Spec.Budget == nil {
		return nil
	}
	holder, err := r.budgetHolder(ctx, task.Namespace, name)
	if err != nil {
		return err
	}
	set.Contract, set.ContractLimit = name, plan.ContractBudget(holder)
	return r.Store.SetBudgets(ctx, historyTask(task), set)
}

func historyTask(task *v1alpha1.Task) history.Task {
	return history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)}
}
