package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// pick holds the flags of `pick`.
type pick struct {
	*plugin
	yes    bool
	branch string
	dryRun dryRunFlag
	print  *genericclioptions.PrintFlags
}

func (p *plugin) pickCommand() *cobra.Command {
	o := &pick{plugin: p}
	cmd := &cobra.Command{
		Use:   "pick FORK TASK [--branch BRANCH]",
		Short: "Go on with one task of a fork, and suspend the others",
		Long: `Go on with one task of a fork, and suspend the others: each takes a last checkpoint,
keeps its work, and can be resumed. Tasks that have ended stay as they are. A picked task
that an earlier pick has suspended, or that was rewound, continues with "kubectl clew resume".

With --branch, the work of the task is published once the task is completed (at once if it
already is); a suspended task's work is published as it is now. Without it, the task's
spec.publish says whether it is; a fork does not copy that from its source.`,
		Example: `  # Compare the tasks, and go on with one of them
  kubectl clew compare approaches
  kubectl clew pick approaches with-oauth

  # Publish its work to a branch of the repository as well
  kubectl clew pick approaches with-oauth --branch clew/oauth

  # In a script
  kubectl clew pick approaches with-oauth --yes -o name`,
		Args:              exactly("FORK", "TASK"),
		ValidArgsFunction: p.completePick,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	cmd.Flags().StringVar(&o.branch, "branch", "", "Branch of the repository to which the task's work is published.")
	_ = cmd.RegisterFlagCompletionFunc("branch", cobra.NoFileCompletions)
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *pick) run(ctx context.Context, forkName, picked string) error {
	if err := checkPublishedBranch(o.branch); o.branch != "" && err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	f, err := s.fork(ctx, forkName)
	if err != nil {
		return err
	}
	others, err := o.others(ctx, s, f, picked)
	if err != nil {
		return err
	}
	if len(others) == 0 {
		fmt.Fprintf(o.ErrOut, "Nothing to suspend: no other task of fork %s is active.\n", f.Name)
	} else if o.dryRun.changes() && !o.yes {
		fmt.Fprintf(o.ErrOut, "Picks task %s, and suspends %s: %s.\n", picked, plural(int64(len(others)), "other task"), strings.Join(namesOf(others), ", "))
		if err := o.confirm("Suspend?"); err != nil {
			return err
		}
	}
	changed := &v1alpha1.TaskList{}
	// First: if that is refused, nothing is changed.
	task, err := s.task(ctx, picked)
	if err != nil {
		return err
	}
	published, err := o.publish(ctx, s, task)
	if err != nil {
		return err
	}
	for i := range others {
		if err := o.suspend(ctx, s, &others[i]); err != nil {
			return err
		}
		changed.Items = append(changed.Items, others[i])
	}
	o.tellResting(task)
	if done, err := o.printed(o.print, changed); done {
		return err
	}
	for _, name := range namesOf(others) {
		fmt.Fprintf(o.Out, "task.clew.dev/%s suspended%s\n", name, o.dryRun.suffix())
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s picked%s%s\n", picked, published, o.dryRun.suffix())
	return nil
}

// publish has the picked task publish its work. It returns a clause about that for the output.
func (o *pick) publish(ctx context.Context, s *session, task *v1alpha1.Task) (clause string, err error) {
	asked := publish{plugin: o.plugin, branch: o.branch}
	if o.branch == "" && task.Spec.Publish == nil {
		return "", nil
	}
	if o.branch == "" {
		clause = ", and published to " + task.Spec.Publish.Branch + " as its spec says"
		if asked.waitsForResume(task) {
			clause += ", but not before it is resumed"
		}
		return clause, nil
	}
	if task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended {
		asked.when = "suspended"
	}
	if asked.waitsForResume(task) {
		return "", fmt.Errorf("%s, and pick it without --branch", asked.publishAsItIs(task))
	}
	patch, err := asked.patch(task)
	if err != nil {
		return "", err
	}
	name := task.Name
	err = o.dryRun.merge(ctx, s.client, task, patch)
	return ", and publishing to " + o.branch + " requested", s.explain(err, "task", name)
}

// tellResting says that the picked task does not go on by itself. To resume it is another decision:
// what is picked may be finished, and is then only published.
func (o *pick) tellResting(task *v1alpha1.Task) {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	var state string
	switch {
	case succeeded != nil && succeeded.Status != metav1.ConditionUnknown:
		return // it has ended
	case isRewound(task):
		state = "was rewound, and waits for a resume"
	case task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended:
		state = "is suspended, and stays so"
	default:
		return
	}
	fmt.Fprintf(o.ErrOut, "Task %s %s: continue it with `kubectl clew resume %s -n %s`.\n", task.Name, state, task.Name, task.Namespace)
}

// others returns the active tasks of a Fork but the picked one.
func (o *pick) others(ctx context.Context, s *session, f *v1alpha1.Fork, picked string) ([]v1alpha1.Task, error) {
	if !apimeta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete) {
		return nil, fmt.Errorf("fork %s has not made all of its tasks, and would go on making them; wait for it with `kubectl wait --for=condition=Complete forks.clew.dev/%s -n %s`, or delete the Fork, which keeps its tasks, and suspend them by hand", f.Name, f.Name, s.namespace)
	}
	if !slices.ContainsFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == picked }) {
		var names []string
		for _, t := range f.Status.Tasks {
			names = append(names, t.Name)
		}
		return nil, fmt.Errorf("fork %s has no task %q; its tasks are %s", f.Name, picked, strings.Join(names, ", "))
	}
	var active []v1alpha1.Task
	for _, made := range f.Status.Tasks {
		task := &v1alpha1.Task{}
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: made.Name}, task)
		gone := err != nil && client.IgnoreNotFound(err) == nil || err == nil && string(task.UID) != made.UID
		switch {
		case gone && made.Name == picked:
			return nil, fmt.Errorf("task %s was deleted; start a new one from its history, or pick another", picked)
		case gone, made.Name == picked && err == nil:
		case err != nil:
			return nil, s.explain(err, "task", made.Name)
		case isActive(task):
			active = append(active, *task)
		}
	}
	return active, nil
}

// isActive reports whether a task runs, or would start to.
func isActive(task *v1alpha1.Task) bool {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	ended := succeeded != nil && succeeded.Status != metav1.ConditionUnknown
	return task.DeletionTimestamp == nil && task.Spec.OperatingMode != v1alpha1.OperatingModeSuspended && !ended
}

// suspend suspends one task; another one of the same name is left alone.
func (o *pick) suspend(ctx context.Context, s *session, task *v1alpha1.Task) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": task.UID},
		"spec":     map[string]any{"operatingMode": v1alpha1.OperatingModeSuspended},
	})
	if err != nil {
		return err
	}
	name := task.Name
	err = o.dryRun.merge(ctx, s.client, task, patch)
	return s.explain(err, "task", name)
}

// namesOf returns the names of tasks.
func namesOf(tasks []v1alpha1.Task) []string {
	names := make([]string, 0, len(tasks))
	for i := range tasks {
		names = append(names, tasks[i].Name)
	}
	return names
}

// completeFork completes the first argument, the name of a Fork.
func (p *plugin) completeFork(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.names(func(ctx context.Context, s *session) ([]string, error) {
		list := &v1alpha1.ForkList{}
		err := s.client.List(ctx, list, client.InNamespace(s.namespace))
		return startingWith(prefix, list.Items, func(f v1alpha1.Fork) string { return f.Name }), err
	})
}

// completePick completes a Fork, and then one of its tasks.
func (p *plugin) completePick(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return p.completeFork(cmd, args, prefix)
	}
	return p.names(func(ctx context.Context, s *session) ([]string, error) {
		f, err := s.fork(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return startingWith(prefix, f.Status.Tasks, func(t v1alpha1.ForkedTask) string { return t.Name }), nil
	})
}
