package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
)

// checkpointBranch holds the flags of `checkpoint branch`.
type checkpointBranch struct {
	*plugin
	name     string
	remove   bool
	checkout bool
	// chosen is set if --checkout was given.
	chosen bool
	// neverMade is set if the gitstore had refused the branch that is removed.
	neverMade bool
	wait      waitFlags
	dryRun    dryRunFlag
	print     *genericclioptions.PrintFlags
}

func (p *plugin) checkpointBranchCommand() *cobra.Command {
	o := &checkpointBranch{plugin: p}
	cmd := &cobra.Command{
		Use:   "branch TASK [CHECKPOINT] --name BRANCH",
		Short: "Make a branch that holds the files of a checkpoint",
		Long: `Make a branch in the gitstore that holds exactly the files of a checkpoint, the latest
one by default. It is at the agent's own commit if the agent had committed everything,
and otherwise one commit on top of that. The task need not run, and is not changed.
git clone and git fetch know the branch as clew/TASK/BRANCH. When the agent next starts, its
own repository gets it as BRANCH, without the files that .gitignore names: the agent may push what
is there. From then on it is the agent's.

With --checkout, the agent's next start checks the branch out, once. No file is changed: it
is refused unless the worktree is what the checkpoint holds, so rewind to it first.
--checkout=false takes that back as long as the agent has not started.

The Checkpoint is made again if its object was deleted. One with a branch is kept
whatever the task's checkpointPolicy.retention says, unless its own retention is
ByPolicy. --remove removes the branch, if it is still where it was made.`,
		Example: `  # Make a branch of the latest checkpoint
  kubectl clew checkpoint branch fix-login --name try/oauth

  # Make one of the third checkpoint, and print its commit
  kubectl clew checkpoint branch fix-login 3 --name before -o jsonpath='{.status.branches[*].commit}'

  # Go back to the third checkpoint, and let the agent go on there on a branch of its own
  kubectl clew checkpoint branch fix-login 3 --name again --checkout
  kubectl clew rewind fix-login --to 3

  # Remove it
  kubectl clew checkpoint branch fix-login --name try/oauth --remove`,
		Args:              theFirst("TASK", "CHECKPOINT"),
		ValidArgsFunction: p.completeTaskCheckpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.chosen = cmd.Flags().Changed("checkout")
			return o.run(cmd.Context(), args)
		},
	}
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the branch, without clew/TASK/ (required).")
	cmd.Flags().BoolVar(&o.remove, "remove", false, "Remove the branch.")
	cmd.Flags().BoolVar(&o.checkout, "checkout", false, "Check the branch out in the agent's repository when the agent next starts.")
	cmd.MarkFlagsMutuallyExclusive("remove", "checkout")
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	o.wait.add(cmd, "the gitstore has the branch")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *checkpointBranch) run(ctx context.Context, args []string) error {
	if o.name == "" {
		return errors.New("name the branch with --name, such as --name try/oauth")
	}
	if err := refname.CheckBranch(o.name); err != nil {
		return fmt.Errorf("--name %s is not a valid branch name: %w", oneLine(o.name), err)
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	c, err := o.target(ctx, s, args)
	if err == nil {
		c, err = o.settle(ctx, s, c, len(args) > 1)
	}
	if err != nil {
		return err
	}
	old, name := c.DeepCopy(), c.Name
	switch {
	case o.remove:
		o.neverMade = o.refused(c)
		c.Spec.Branches = slices.DeleteFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == o.name })
	case !hasBranch(c, o.name):
		c.Spec.Branches = append(c.Spec.Branches, v1alpha1.CheckpointBranch{Name: o.name})
	}
	if o.chosen {
		if err := o.choose(ctx, s, c); err != nil {
			return err
		}
	}
	if err := s.change(ctx, &o.dryRun, old, c); err != nil {
		return err
	}
	if o.wait.wait && o.dryRun.changes() {
		if c, err = await(ctx, s, o.wait, "checkpoint", &v1alpha1.CheckpointList{}, c, o.judge); err != nil {
			return err
		}
	}
	if done, err := o.printed(o.print, c); done {
		return err
	}
	fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s %s%s\n", name, o.outcome(c), o.dryRun.suffix())
	return nil
}

// target returns the Checkpoint that the arguments name; without one, that which has the branch
// to be removed, or the latest.
func (o *checkpointBranch) target(ctx context.Context, s *session, args []string) (*v1alpha1.Checkpoint, error) {
	task, err := s.task(ctx, args[0])
	if err != nil {
		return nil, err
	}
	list, err := s.checkpoints(ctx, task.Name)
	if err != nil {
		return nil, err
	}
	if len(args) > 1 {
		if !o.remove {
			return s.objectToChange(ctx, list, task, args[1])
		}
		c, err := findCheckpoint(list, task, args[1])
		if missing := (*noObject)(nil); errors.As(err, &missing) {
			return nil, fmt.Errorf("checkpoint %d of task %s has no object, and so no branch %s", missing.number, task.Name, o.name)
		}
		if err != nil {
			return nil, err
		}
		return o.holder(list, c)
	}
	if !o.remove {
		return s.objectToChange(ctx, list, task, historyv1.WordLatest)
	}
	for i := range slices.Backward(list.Items) {
		if c := &list.Items[i]; hasBranch(c, o.name) {
			return usable(c, task)
		}
	}
	return nil, fmt.Errorf("no checkpoint of task %s has a branch %s", task.Name, o.name)
}

// holder returns the object of a checkpoint which has the branch to be removed: a checkpoint that was
// requested while the task was stopped has several objects.
func (o *checkpointBranch) holder(list *v1alpha1.CheckpointList, c *v1alpha1.Checkpoint) (*v1alpha1.Checkpoint, error) {
	if hasBranch(c, o.name) {
		return c, nil
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Status.TaskUID == c.Status.TaskUID && other.Status.Number == c.Status.Number && hasBranch(other, o.name) {
			return other, nil
		}
	}
	return nil, fmt.Errorf("checkpoint %d of task %s has no branch %s", c.Status.Number, c.Spec.TaskRef.Name, o.name)
}

// settle checks that no other checkpoint has the branch that is to be made; if another object of the same
// one has it, it returns that. Of one to be removed, it returns the Checkpoint that has it, if that which
// was found only asks for it in vain.
func (o *checkpointBranch) settle(ctx context.Context, s *session, c *v1alpha1.Checkpoint, named bool) (*v1alpha1.Checkpoint, error) {
	if o.remove && (named || !o.refused(c)) {
		return c, nil
	}
	list, err := s.checkpoints(ctx, c.Spec.TaskRef.Name)
	if err != nil {
		return nil, err
	}
	other := o.another(list, c)
	switch {
	case other == nil:
		return c, nil
	case o.remove, other.Status.Number == c.Status.Number:
		return other, nil
	}
	return nil, fmt.Errorf("checkpoint %d of the task has the branch %s: choose another name, or remove it there first with `kubectl clew checkpoint branch %s %[1]d --name %[2]s --remove -n %[4]s`",
		other.Status.Number, o.name, c.Spec.TaskRef.Name, c.Namespace)
}

// another returns another checkpoint of the task that has the branch, or is about to get it; nil if
// none does. The gitstore would refuse the branch, and the Checkpoint would go on to ask for it.
func (o *checkpointBranch) another(list *v1alpha1.CheckpointList, c *v1alpha1.Checkpoint) *v1alpha1.Checkpoint {
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID != c.UID && other.Status.TaskUID == c.Status.TaskUID && hasBranch(other, o.name) && !o.refused(other) {
			return other
		}
	}
	return nil
}

// refused reports whether the gitstore has not made the branch of a Checkpoint.
func (o *checkpointBranch) refused(c *v1alpha1.Checkpoint) bool {
	b := o.branchOf(c)
	return b != nil && b.State == v1alpha1.BranchRefused
}

// choose makes the Checkpoint's spec ask for a checkout of the branch, once more if it did before,
// or not ask for it.
func (o *checkpointBranch) choose(ctx context.Context, s *session, c *v1alpha1.Checkpoint) error {
	id := ""
	if o.checkout {
		list, err := s.checkpoints(ctx, c.Spec.TaskRef.Name)
		if err == nil {
			err = o.alone(list, c)
		}
		if err == nil {
			id, err = o.newID()
		}
		if err != nil {
			return err
		}
	}
	for i := range c.Spec.Branches {
		switch b := &c.Spec.Branches[i]; {
		case b.Name == o.name && o.checkout:
			b.Checkout, b.ID = v1alpha1.CheckoutNextStart, id
		case b.Name == o.name || o.checkout: // only one can be checked out
			b.Checkout = v1alpha1.CheckoutNever
		}
	}
	return nil
}

// alone fails if another checkpoint of the task waits for a checkout.
func (o *checkpointBranch) alone(list *v1alpha1.CheckpointList, c *v1alpha1.Checkpoint) error {
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == c.UID || other.Status.TaskUID != c.Status.TaskUID {
			continue
		}
		for _, b := range other.Spec.Branches {
			if b.Checkout == v1alpha1.CheckoutNextStart && awaitsCheckout(other, b.Name) {
				return fmt.Errorf("checkpoint %d of the task already asks for a checkout of its branch %s, and only one can be checked out: take that back first with `kubectl clew checkpoint branch %s %[1]d --name %[2]s --checkout=false -n %[4]s`",
					other.Status.Number, b.Name, c.Spec.TaskRef.Name, c.Namespace)
			}
		}
	}
	return nil
}

// awaitsCheckout reports whether the outcome of a branch's checkout is not known yet.
func awaitsCheckout(c *v1alpha1.Checkpoint, name string) bool {
	b := (&checkpointBranch{name: name}).branchOf(c)
	return b == nil || b.Agent == nil || b.Agent.Checkout == nil || b.Agent.Checkout.State == v1alpha1.CheckoutPending
}

// hasBranch reports whether the spec names a branch.
func hasBranch(c *v1alpha1.Checkpoint, name string) bool {
	return slices.ContainsFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == name })
}

// branchOf returns what the status says of the branch; nil if it says nothing.
func (o *checkpointBranch) branchOf(c *v1alpha1.Checkpoint) *v1alpha1.CheckpointBranchStatus {
	for i := range c.Status.Branches {
		if b := &c.Status.Branches[i]; b.Name == o.name {
			return b
		}
	}
	return nil
}

// judge is done once the gitstore has made or removed the branch.
func (o *checkpointBranch) judge(c *v1alpha1.Checkpoint) verdict {
	b := o.branchOf(c)
	switch {
	case o.remove:
		return verdict{done: b == nil, state: "the branch is being removed"}
	case b != nil && b.State == v1alpha1.BranchMade:
		return verdict{done: true}
	case b != nil && b.ObservedGeneration == c.Generation:
		return verdict{err: fmt.Errorf("the branch was not made: %s", oneLine(b.Message))}
	}
	return verdict{state: "the branch is being made"}
}

// outcome says what is known of the branch.
func (o *checkpointBranch) outcome(c *v1alpha1.Checkpoint) string {
	of := fmt.Sprintf("branch %s of checkpoint %d", o.name, c.Status.Number)
	switch b := o.branchOf(c); {
	case o.remove && o.neverMade:
		return "request for " + of + " removed: it had not been made"
	case o.remove:
		return of + " removed"
	case b != nil && b.Commit != "" && o.checkout:
		return fmt.Sprintf("%s made: %s at %s; it is checked out when the agent next starts, if the worktree then is what the checkpoint holds", of, b.Ref, b.Commit)
	case b != nil && b.Commit != "":
		return fmt.Sprintf("%s made: %s at %s", of, b.Ref, b.Commit)
	}
	return of + " requested"
}
