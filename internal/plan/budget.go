package plan

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// A task works under its own budget, under that of its contract, and under that of its namespace. Its
// daemon knows them, counts what it has yet to tell the history, and ends the agent at the end of the tool
// call with which one is spent. What is decided here follows the history: that nothing starts under a
// budget that is spent, and that an agent is stopped whose daemon has not ended it.

// Shared are the budgets that a task shares with others.
type Shared struct {
	// Known is false while there are any and the history store cannot be asked what is spent of them.
	Known bool
	// Budgets are those that there are.
	Budgets []budget.Budget
}

// BudgetHolder returns the supervisor of a contract whose contract.budget counts: the one that leads, or
// else the newest one that has begun, or else the oldest; nil if there is none.
func BudgetHolder(supervisors []v1alpha1.Task) *v1alpha1.Task {
	rank := func(t *v1alpha1.Task) int {
		switch {
		case Leads(t):
			return 0
		case len(t.Status.Attempts) > 0:
			return 1
		}
		return 2
	}
	var holder *v1alpha1.Task
	for _, t := range byAge(supervisors) {
		if t.DeletionTimestamp != nil {
			continue
		}
		// The newest of those that have begun, and the oldest of the others.
		if holder == nil || rank(t) < rank(holder) || rank(t) == 1 && rank(holder) == 1 {
			holder = t
		}
	}
	return holder
}

// ContractBudget returns the limits that a supervisor sets for its contract.
func ContractBudget(task *v1alpha1.Task) budget.Amounts {
	if task == nil || task.Spec.Contract == nil || task.Spec.Role != v1alpha1.RoleSupervisor {
		return budget.Amounts{}
	}
	return budget.LimitsOf(task.Spec.Contract.Budget)
}

// budgets returns those that the task works under, as far as is known.
func (d *decision) budgets() []budget.Budget {
	own := budget.Budget{Scope: budget.OfTask, Limit: budget.LimitsOf(d.task.Spec.Budget), Spent: d.spent()}
	return append([]budget.Budget{own}, d.shared()...)
}

// shared returns the budgets that the task shares with others. What a supervisor's status knows to be spent of
// that of its contract stays spent, though the history was put back to an older copy.
func (d *decision) shared() []budget.Budget {
	shared := slices.Clone(d.o.Shared.Budgets)
	for i := range shared {
		if known, lost := d.lostOfContract(shared[i]); lost {
			shared[i].Spent = shared[i].Spent.AtLeast(known)
		}
	}
	return shared
}

// lostOfContract returns what the supervisor's status knows to be spent of a budget, if that is of the contract,
// and whether the history lacks some of it. What was spent under a contract is forgotten with the last history that
// names it: that may be so for a supervisor that has never begun, or whose own history is deleted or another task's.
func (d *decision) lostOfContract(b budget.Budget) (known budget.Amounts, lost bool) {
	h, c := d.o.History, d.old.Contract
	if b.Scope != budget.OfContract || d.task.Spec.Role != v1alpha1.RoleSupervisor || c == nil || c.Name != b.Name {
		return known, false
	}
	begun := h.State.Attempt != 0 || len(d.old.Attempts) > 0
	if h.Deleted || h.ContinuedBy != "" || !begun {
		return known, false
	}
	known = budget.Amounts(ptr.Deref(c.Spent, v1alpha1.Spent{}))
	return known, b.Spent.Lacks(known)
}

// limitedBudgets returns those of the budgets that have a limit; nil for none.
func (d *decision) limitedBudgets() (limited []budget.Budget) {
	for _, b := range d.budgets() {
		if b.Limit != (budget.Amounts{}) {
			limited = append(limited, b)
		}
	}
	return limited
}

// ownBudgetExceeded returns the limit of a task's own budget of which all is spent, as its status says; nil
// if there is none.
func ownBudgetExceeded(task *v1alpha1.Task) *budget.Use {
	return budget.Exceeded([]budget.Budget{{
		Scope: budget.OfTask, Limit: budget.LimitsOf(task.Spec.Budget), Spent: budget.Amounts(ptr.Deref(task.Status.Spent, v1alpha1.Spent{})),
	}})
}

// spent returns what the task has spent: by the history or, while that cannot be asked or was put back to
// an older copy, by the status. What a history has lost for good is still spent.
func (d *decision) spent() budget.Amounts {
	known := budget.Amounts(ptr.Deref(d.s.Spent, v1alpha1.Spent{}))
	switch h := d.o.History; {
	case !h.Known, h.Deleted, d.behind():
		return known
	case h.State.Spent.Lacks(known):
		return h.State.Spent.AtLeast(known)
	default:
		return h.State.Spent
	}
}

// recallSpending has the history count what the status knows to be spent, if it was put back to an older
// copy and has lost some of that: daemons, and the task's contract and namespace, go by the history. It is told
// at once, since no pod may ever send that again; what is sent again then counts no more.
func (d *decision) recallSpending() {
	h, known := d.o.History, budget.Amounts(ptr.Deref(d.old.Spent, v1alpha1.Spent{}))
	known.Checkpoints = 0 // the history counts those that it has
	if !h.Known || h.Deleted || h.ContinuedBy != "" || h.State.Attempt == 0 || !h.State.Spent.Lacks(known) {
		return
	}
	d.plan.LostSpending = &LostSpending{Spent: known, Through: d.old.RecordSequence}
	d.requeue(d.o.Limits.ProblemGrace)
}

// recallOfContract has the history count what a supervisor's status knows to be spent under its contract, if it
// was put back to an older copy: what tasks had spent that are gone meanwhile, nobody else can tell.
func (d *decision) recallOfContract() {
	for _, b := range d.o.Shared.Budgets {
		if known, lost := d.lostOfContract(b); lost && d.o.History.Known {
			d.plan.LostOfContract = &LostOfContract{Name: b.Name, Spent: known, Since: metav1.NewMicroTime(d.now)}
			if t := d.old.Contract.SpentTime; t != nil {
				d.plan.LostOfContract.Since = *t
			}
			d.requeue(d.o.Limits.ProblemGrace)
		}
	}
}

// budgetGraceOver notes since when a budget is known to be spent while the agent of the active attempt
// runs, and reports whether its daemon has had the time to end it.
func (d *decision) budgetGraceOver(a *v1alpha1.Attempt) bool {
	if a.BudgetSpentTime == nil {
		a.BudgetSpentTime = ptr.To(metav1.NewTime(d.now))
	}
	over := a.BudgetSpentTime.Add(d.o.Limits.BudgetGrace)
	if d.now.Before(over) {
		d.requeueAt(over)
		return false
	}
	return true
}

// warnOfBudgets adds an entry for each limit of which 80 % are found to be spent while an attempt is
// active, once for each value that it has.
func (d *decision) warnOfBudgets() {
	var known []string
	for _, b := range d.budgets() {
		for _, u := range b.Uses() {
			noted := slices.Contains(d.s.BudgetWarnings, u.Key())
			if !u.NearlySpent() || !noted && d.active() == nil {
				continue
			}
			if !noted {
				d.addEntry(v1alpha1.EventBudgetNearlySpent, clew, u.String())
			}
			known = append(known, u.Key())
		}
	}
	for _, key := range d.s.BudgetWarnings {
		if !d.o.Shared.Known && !strings.HasPrefix(key, string(budget.OfTask)+"/") {
			known = append(known, key) // it is not known whether that is so any more
		}
	}
	d.s.BudgetWarnings = known
}

// budgetBlocker returns why a task that has yet to begin may not start its agent: a budget is spent, of the
// contract or the namespace, or of the history that it has adopted.
func (d *decision) budgetBlocker() *Blocker {
	over := budget.Exceeded(d.budgets())
	if over == nil || d.want() == wantRewindOnly {
		return nil
	}
	if over.Scope == budget.OfNamespace {
		d.requeueAt(nextMonth(d.now))
	}
	return &Blocker{v1alpha1.ReasonBudgetExceeded, over.Wait()}
}

// nextMonth returns when the next calendar month begins, in UTC.
func nextMonth(now time.Time) time.Time {
	now = now.UTC()
	return time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

// reportSpent writes what was spent to the status.
func (d *decision) reportSpent() {
	d.s.Spent = d.spent().Status()
	for _, b := range d.o.Shared.Budgets {
		if b.Scope != budget.OfContract || d.s.Contract == nil || d.task.Spec.Role != v1alpha1.RoleSupervisor {
			continue
		}
		if _, lost := d.lostOfContract(b); lost {
			continue // what is known, and since when, stays until the history has it again
		}
		if spent := b.Spent.Status(); !equality.Semantic.DeepEqual(spent, d.s.Contract.Spent) {
			d.s.Contract.Spent, d.s.Contract.SpentTime = spent, ptr.To(metav1.NewMicroTime(d.now))
		}
	}
}

// WaitsForBudget reports whether a task that has yet to begin waits for a budget to be raised.
func WaitsForBudget(task *v1alpha1.Task) bool {
	c := succeededOf(task)
	return c != nil && c.Reason == v1alpha1.ReasonBudgetExceeded && len(task.Status.Attempts) == 0
}
