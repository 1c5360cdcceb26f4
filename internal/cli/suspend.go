package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// suspend holds the flags of `suspend`.
type suspend struct {
	*plugin
	wait   waitFlags
	dryRun dryRunFlag
	print  *genericclioptions.PrintFlags
}

func (p *plugin) suspendCommand() *cobra.Command {
	o := &suspend{plugin: p}
	cmd := &cobra.Command{
		Use:        "suspend TASK",
		SuggestFor: []string{"stop", "pause"},
		Short:      "Stop the agent of a task until the task is resumed",
		Long: `Stop the agent of a task until "kubectl clew resume" continues it. Its code and its
conversation are kept.`,
		Example: `  # Suspend, and wait until the agent has stopped
  kubectl clew suspend fix-login

  # Only request it
  kubectl clew suspend fix-login --wait=false

  # Only check the request
  kubectl clew suspend fix-login --dry-run`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.wait.add(cmd, "the task is suspended")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *suspend) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	if isSucceeded(task) {
		return fmt.Errorf("task %s is completed, so there is nothing to suspend", name)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"operatingMode": v1alpha1.OperatingModeSuspended}})
	if err != nil {
		return err
	}
	if err := o.dryRun.merge(ctx, s.client, task, patch); err != nil {
		return s.explain(err, "task", name)
	}
	outcome := "suspend requested"
	if o.wait.wait && o.dryRun.changes() {
		if task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, judgeSuspend); err != nil {
			return err
		}
		outcome = "suspended"
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", name, outcome, o.dryRun.suffix())
	return nil
}

// isSucceeded reports whether a task is completed.
func isSucceeded(task *v1alpha1.Task) bool {
	return apimeta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.TaskSucceeded)
}

// judgeSuspend is done once the task is suspended. A task that has ended meanwhile cannot be.
func judgeSuspend(task *v1alpha1.Task) verdict {
	state := taskState(task)
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	switch {
	case task.Spec.OperatingMode != v1alpha1.OperatingModeSuspended:
		return verdict{err: fmt.Errorf("task %s was resumed before it was suspended", task.Name)}
	case succeeded == nil:
		return verdict{state: state}
	case succeeded.Reason == v1alpha1.ReasonSuspended:
		return verdict{done: true, state: state}
	case succeeded.Status != metav1.ConditionUnknown:
		return verdict{err: fmt.Errorf("task %s ended before it was suspended: %s", task.Name, state)}
	}
	return verdict{state: state}
}
