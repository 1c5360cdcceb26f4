package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/retention"
)

// checkpointPrune holds the flags of `checkpoint prune`.
type checkpointPrune struct {
	*plugin
	last   int32
	age    string
	yes    bool
	dryRun dryRunFlag
	// setLast and setAge say which flags override the task's policy.
	setLast, setAge bool
}

func (p *plugin) checkpointPruneCommand() *cobra.Command {
	o := &checkpointPrune{plugin: p}
	cmd := &cobra.Command{
		Use:   "prune TASK",
		Short: "Delete the Checkpoint objects that a policy does not keep",
		Long: `Delete the Checkpoint objects of a task that its checkpointPolicy.retention, or the
policy given here, does not keep. The manager does so by itself for the task's own
policy; this command does it now, or once for a stricter one.

Only objects are deleted. The history keeps each checkpoint and the gitstore its
code: commands take the number of a checkpoint without an object, and
"kubectl clew checkpoint restore" makes the object again. Never deleted are the latest
one, those whose retention is Keep, those that somebody applied or a rewind made
unless their retention is ByPolicy, and those that a Task, Fork or
ConversationSnapshot names.`,
		Example: `  # Show what the task's policy does not keep
  kubectl clew checkpoint prune fix-login --dry-run

  # Keep only the newest five and those of the last hour
  kubectl clew checkpoint prune fix-login --keep-last 5 --keep-for 1h`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.setLast, o.setAge = cmd.Flags().Changed("keep-last"), cmd.Flags().Changed("keep-for")
			return o.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().Int32Var(&o.last, "keep-last", 0, "How many of the newest to keep. Defaults to the task's policy.")
	cmd.Flags().StringVar(&o.age, "keep-for", "", "The age up to which to keep the others, such as 90m or 2d. Defaults to the task's policy.")
	_ = cmd.RegisterFlagCompletionFunc("keep-for", cobra.NoFileCompletions)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	o.dryRun.add(cmd)
	return cmd
}

func (o *checkpointPrune) run(ctx context.Context, taskName string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, taskName)
	if err != nil {
		return err
	}
	rule, err := o.rule(task)
	if err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, taskName)
	if err != nil {
		return err
	}
	named, err := s.named(ctx)
	if err != nil {
		return err
	}
	answer := retention.Decide(list.Items, task, named, rule, o.clock())
	if len(answer.Surplus) == 0 {
		fmt.Fprintf(o.ErrOut, "Nothing to delete: the policy keeps all Checkpoint objects of task %s.\n", task.Name)
		return nil
	}
	if err := o.preview(answer, list); err != nil {
		return err
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Delete these objects?"); err != nil {
			return err
		}
	}
	return o.remove(ctx, s, answer)
}

// rule returns the policy to apply: the task's, with what the flags override.
func (o *checkpointPrune) rule(task *v1alpha1.Task) (retention.Rule, error) {
	rule := retention.RuleOf(task, 0)
	if o.setLast {
		rule.KeepLast = int(o.last)
	}
	if o.setAge {
		var ok bool
		if rule.KeepFor, ok = parseAge(o.age); !ok {
			return rule, fmt.Errorf("--keep-for is %q; it must be a duration such as 90m or 2d", o.age)
		}
	}
	switch {
	case rule.KeepLast < 0:
		return rule, fmt.Errorf("--keep-last is %d; it must not be negative", rule.KeepLast)
	case rule.KeepFor < 0:
		return rule, fmt.Errorf("--keep-for is %s; it must not be negative", o.age)
	case rule.KeepLast == 0 && rule.KeepFor == 0:
		return rule, errors.New("this would delete every checkpoint's object: set --keep-last to at least 1, or --keep-for")
	}
	return rule, nil
}

// parseAge reads a duration, also one in whole days.
func parseAge(text string) (age time.Duration, ok bool) {
	if days, whole := strings.CutSuffix(text, "d"); whole {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * 24 * time.Hour, err == nil && n >= -36500 && n <= 36500
	}
	age, err := time.ParseDuration(text)
	return age, err == nil
}

// named returns the Checkpoints that the objects of the namespace name.
func (s *session) named(ctx context.Context) (retention.Names, error) {
	tasks, forks, snapshots := &v1alpha1.TaskList{}, &v1alpha1.ForkList{}, &v1alpha1.ConversationSnapshotList{}
	for kind, list := range map[string]client.ObjectList{"task": tasks, "fork": forks, "conversationsnapshot": snapshots} {
		if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
			return retention.Names{}, s.explain(err, kind, "")
		}
	}
	return retention.NamesIn(tasks.Items, forks.Items, snapshots.Items), nil
}

// preview prints what will be deleted, and what stays.
func (o *checkpointPrune) preview(answer retention.Answer, list *v1alpha1.CheckpointList) error {
	surplus := make([]v1alpha1.Checkpoint, 0, len(answer.Surplus))
	for _, c := range answer.Surplus {
		surplus = append(surplus, *c)
	}
	if err := o.checkpointTable(o.ErrOut, surplus, false, false); err != nil {
		return err
	}
	others := int64(len(list.Items) - len(surplus) - answer.Kept)
	fmt.Fprintf(o.ErrOut, "%s to delete; the policy keeps %d, and %d %s kept whatever it says. Their records and code stay.\n",
		plural(int64(len(surplus)), "object"), answer.Kept, others, verb(others, "is", "are"))
	return nil
}

// remove deletes the surplus objects, unless they were changed since.
func (o *checkpointPrune) remove(ctx context.Context, s *session, answer retention.Answer) error {
	var options []client.DeleteOption
	if o.dryRun.server {
		options = append(options, client.DryRunAll)
	}
	for _, c := range answer.Surplus {
		if o.dryRun.client {
			fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s deleted%s\n", c.Name, o.dryRun.suffix())
			continue
		}
		unchanged := client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}
		err := s.client.Delete(ctx, c, append(slices.Clone(options), unchanged)...)
		if client.IgnoreNotFound(err) != nil {
			return s.explain(err, "checkpoint", c.Name)
		}
		fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s deleted%s\n", c.Name, o.dryRun.suffix())
	}
	return nil
}
