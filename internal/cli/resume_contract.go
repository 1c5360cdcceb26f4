package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// The budget of a contract stops all of its tasks, and each that was stopped waits for a resume of its own.
// `resume` of the supervisor raises the budget, and says who waits, or resumes them as well.

// resumeContract are the flags of `resume` that are about the contract of a supervisor.
type resumeContract struct {
	// budget are limits of the contract's budget to set, by the names of their fields.
	budget map[string]int64
	// resumed is set if the contract's tasks that a budget has stopped are resumed as well.
	resumed bool
}

// add adds the flags to a command.
func (c *resumeContract) add(cmd *cobra.Command) {
	cmd.Flags().StringToInt64Var(&c.budget, "contract-budget", nil, "Of a supervisor: set limits of its contract's budget by the same request, such as costMicroUSD=40000000: what all tasks of the contract may spend together, including what they have spent. Others stay as they are.")
	cmd.Flags().BoolVar(&c.resumed, "with-contract", false, "Of a supervisor: resume each other task of its contract as well that a budget has stopped, unless that is its own.")
}

// given reports whether any of the flags is used.
func (c *resumeContract) given() bool { return len(c.budget) > 0 || c.resumed }

// checkLimits rejects limits of a budget that the API does not have.
func checkLimits(flag string, limits map[string]int64) error {
	for field, limit := range limits {
		if !slices.Contains(budget.Fields(), field) || limit < 1 || limit > budget.MostLimit {
			return fmt.Errorf("--%s has %s=%d; it must be one or more of %s, each from 1 to %d", flag, field, limit, listed(budget.Fields()), budget.MostLimit)
		}
	}
	return nil
}

// over returns the limit of the contract's budget, as the request sets it, of which all is spent; nil if there
// is none.
func (c *resumeContract) over(task *v1alpha1.Task) *budget.Use {
	contract, status := task.Spec.Contract, task.Status.Contract
	if task.Spec.Role != v1alpha1.RoleSupervisor || contract == nil || status == nil {
		return nil
	}
	return exceeded(budget.Budget{Scope: budget.OfContract, Name: contract.Name, Limit: budget.LimitsOf(contract.Budget)}, c.budget, status.Spent)
}

// exceeded returns the limit of a budget, with the limits that a request sets, of which all is spent; nil if
// there is none.
func exceeded(b budget.Budget, set map[string]int64, spent *v1alpha1.Spent) *budget.Use {
	for field, limit := range set {
		b.Limit = b.Limit.With(field, limit)
	}
	b.Spent = budget.Amounts(ptr.Deref(spent, v1alpha1.Spent{}))
	return budget.Exceeded([]budget.Budget{b})
}

// contractRest are the other tasks of a supervisor's contract that a budget has stopped.
type contractRest struct {
	contract string
	// tasks are those that go on when they are resumed, and apart the commands for the others.
	tasks []v1alpha1.Task
	apart []string
}

// rest returns the other tasks of the contract that a budget has stopped. It is an error if the task is not
// the one whose budget is the contract's.
func (c *resumeContract) rest(ctx context.Context, s *session, lead *v1alpha1.Task) (*contractRest, error) {
	if !c.given() {
		return &contractRest{}, nil
	}
	if lead.Spec.Role != v1alpha1.RoleSupervisor || lead.Spec.Contract == nil {
		return nil, fmt.Errorf("task %s leads no contract; --contract-budget and --with-contract are for the supervisor of one, and --budget sets the budget of a task", lead.Name)
	}
	rest := &contractRest{contract: lead.Spec.Contract.Name}
	list := &v1alpha1.TaskList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return nil, s.explain(err, "task", "")
	}
	members := membersOf(list.Items, rest.contract)
	if leader := leaderOf(members); leader != nil && leader.Name != lead.Name {
		return nil, fmt.Errorf("the contract %s is led by task %s, and only the budget of that one counts; run `kubectl clew resume %s -n %s` with these flags", rest.contract, leader.Name, leader.Name, s.namespace)
	}
	for i := range members {
		rest.add(lead, &members[i])
	}
	return rest, nil
}

// add adds a task of the contract, if a budget has stopped it.
func (r *contractRest) add(lead, t *v1alpha1.Task) {
	c := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded)
	if t.UID == lead.UID || c == nil || c.Reason != v1alpha1.ReasonBudgetExceeded || len(t.Status.Attempts) == 0 || t.DeletionTimestamp != nil {
		return // one that has yet to start does so by itself
	}
	command := fmt.Sprintf("kubectl clew resume %s -n %s", t.Name, t.Namespace)
	own := exceeded(budget.Budget{Scope: budget.OfTask, Limit: budget.LimitsOf(t.Spec.Budget)}, nil, t.Status.Spent)
	switch {
	case own != nil:
		r.apart = append(r.apart, fmt.Sprintf("%s --budget %s=NUMBER   # %s", command, own.Field, own))
	case t.Spec.OperatingMode == v1alpha1.OperatingModeSuspended:
		r.apart = append(r.apart, command+"   # somebody has suspended it")
	default:
		r.tasks = append(r.tasks, *t)
	}
}

// announce says which tasks are resumed as well.
func (r *contractRest) announce(w io.Writer, resumed bool) {
	if resumed && len(r.tasks) > 0 {
		fmt.Fprintf(w, "Resumes, of the contract %s, as well: %s\n", r.contract, listed(namesOf(r.tasks)))
	}
}

// hint says which tasks of the contract still wait, and the command for each.
func (r *contractRest) hint(w io.Writer, resumed bool) {
	commands, advice := r.apart, ""
	if !resumed {
		advice = "; --with-contract resumes those that only the contract's budget has stopped"
		for _, t := range r.tasks {
			commands = append(commands, fmt.Sprintf("kubectl clew resume %s -n %s", t.Name, t.Namespace))
		}
	}
	if len(commands) == 0 {
		return
	}
	fmt.Fprintf(w, "Of the contract %s, %s still stopped by a budget%s:\n", r.contract, tasksAre(len(commands)), advice)
	for _, command := range commands[:min(len(commands), maxListed)] {
		fmt.Fprintln(w, "  "+command)
	}
	if more := len(commands) - maxListed; more > 0 {
		fmt.Fprintf(w, "  and %d more, which `kubectl clew tree --contract %s` names\n", more, r.contract)
	}
}

// tasksAre counts tasks, with the verb.
func tasksAre(n int) string {
	if n == 1 {
		return "1 task is"
	}
	return fmt.Sprintf("%d tasks are", n)
}

// resumeRest resumes the tasks of the contract that only its budget has stopped. Those that cannot be are named
// in the error, and do not keep the others.
func (o *resume) resumeRest(ctx context.Context, s *session, rest *contractRest) error {
	if !o.contract.resumed {
		return nil
	}
	w := o.Out
	if prints(o.print) {
		w = o.ErrOut
	}
	var failed []error
	for i := range rest.tasks {
		t := &rest.tasks[i]
		if err := o.resumeOne(ctx, s, t); err != nil {
			failed = append(failed, fmt.Errorf("task %s is not resumed: %w; try again with `kubectl clew resume %s -n %s`", t.Name, s.explain(err, "task", t.Name), t.Name, t.Namespace))
			continue
		}
		fmt.Fprintf(w, "task.clew.dev/%s resume requested%s\n", t.Name, o.dryRun.suffix())
	}
	return errors.Join(failed...)
}

// resumeOne requests that a task goes on where it is, if it is still the one that was seen.
func (o *resume) resumeOne(ctx context.Context, s *session, task *v1alpha1.Task) error {
	id, err := o.newID()
	if err != nil {
		return err
	}
	request := emptyResume(id)
	request["placement"], request["onDrift"] = v1alpha1.PlacementAny, v1alpha1.OnDriftFail
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": task.UID}, "spec": map[string]any{"resume": request}})
	if err != nil {
		return err
	}
	return o.dryRun.merge(ctx, s.client, task, patch)
}

// onlyContract reports whether the supervisor itself is left as it is, since it works already: after a run of
// the command that was interrupted, for example.
func (o *resume) onlyContract(task *v1alpha1.Task) bool {
	return o.contract.given() && active(task) && !heldOff(task) && !o.saysHow()
}

// saysHow reports whether the command says how the task itself is to go on, which one that works already
// cannot be told.
func (o *resume) saysHow() bool {
	flags := []string{"additional-context", "on-drift", "placement", "context-summary"}
	for _, n := range contextNumbers() {
		flags = append(flags, n.flag)
	}
	return o.prompt != "" || o.goesBack() || o.clean || slices.ContainsFunc(flags, o.context.flags.Changed)
}

// runContract raises the contract's budget and resumes its other tasks, while their supervisor works.
func (o *resume) runContract(ctx context.Context, s *session, task *v1alpha1.Task, rest *contractRest) error {
	if over := o.contract.over(task); over != nil {
		return overContract(task, over)
	}
	fmt.Fprintf(o.ErrOut, "Task %s is active already (%s), and goes on.\n", task.Name, apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded).Reason)
	rest.announce(o.ErrOut, o.contract.resumed)
	limits := o.limits()
	if len(limits) > 0 {
		patch, err := json.Marshal(map[string]any{"spec": limits})
		if err != nil {
			return err
		}
		if err := o.dryRun.merge(ctx, s.client, task, patch); err != nil {
			return s.explain(err, "task", task.Name)
		}
	}
	failed := o.resumeRest(ctx, s, rest)
	rest.hint(o.ErrOut, o.contract.resumed)
	if done, err := o.printed(o.print, task); done {
		return errors.Join(err, failed)
	}
	if len(o.contract.budget) > 0 {
		fmt.Fprintf(o.Out, "task.clew.dev/%s budget of the contract %s set%s\n", task.Name, rest.contract, o.dryRun.suffix())
	}
	if len(o.budget) > 0 || o.deadline != 0 {
		fmt.Fprintf(o.Out, "task.clew.dev/%s its own limits are set%s\n", task.Name, o.dryRun.suffix())
	}
	return failed
}

// overContract is the error for a contract of whose budget all is spent.
func overContract(task *v1alpha1.Task, over *budget.Use) error {
	return fmt.Errorf("task %s cannot continue: %s; raise it with --contract-budget %s=NUMBER", task.Name, over, over.Field)
}
