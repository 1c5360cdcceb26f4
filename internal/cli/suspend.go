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
conversation are kept. If spec.workspace.whenSuspended is Release, its volume is given back once all
of that is stored elsewhere; the task's condition VolumeReleased says when.`,
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
	if suspended, err := checkSuspendable(task); suspended || err != nil {
		return o.unchanged(task, err)
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

// unchanged answers for a task that no request is sent for: it is suspended already, or cannot be.
func (o *suspend) unchanged(task *v1alpha1.Task, err error) error {
	if err != nil {
		return err
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s is suspended already\n", task.Name)
	return nil
}

// checkSuspendable reports whether the task is suspended already, and returns an error if it has
// stopped for another reason. It does not judge by a state that the operator is about to leave.
func checkSuspendable(task *v1alpha1.Task) (suspended bool, err error) {
	succeeded := observed(task)
	switch {
	case task.DeletionTimestamp != nil:
		return false, fmt.Errorf("task %s is being deleted, so there is nothing to suspend", task.Name)
	case succeeded == nil || underWay(task.Status.Resume) || underWay(task.Status.Rewind):
		return false, nil
	case succeeded.Status == metav1.ConditionTrue:
		return false, fmt.Errorf("task %s is completed, so there is nothing to suspend", task.Name)
	case succeeded.Reason == v1alpha1.ReasonSuspended:
		return task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended, nil
	case hasStopped(succeeded):
		return false, fmt.Errorf("task %s is not running (%s), so there is nothing to suspend; it stays stopped until `kubectl clew resume %s -n %s`", task.Name, succeeded.Reason, task.Name, task.Namespace)
	}
	return false, nil
}

// observed returns the condition Succeeded; nil if the operator has yet to see the newest spec,
// which may ask for a resume.
func observed(task *v1alpha1.Task) *metav1.Condition {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if succeeded == nil || succeeded.ObservedGeneration < task.Generation {
		return nil
	}
	return succeeded
}

// underWay reports whether an operation waits or is carried out.
func underWay(operation *v1alpha1.OperationStatus) bool {
	return operation != nil && (operation.State == v1alpha1.OperationPending || operation.State == v1alpha1.OperationInProgress)
}

// hasStopped reports whether a task with this condition Succeeded runs only once it is resumed.
func hasStopped(succeeded *metav1.Condition) bool {
	return succeeded.Status != metav1.ConditionUnknown || stopped(succeeded.Reason)
}

// judgeSuspend is done once the task is suspended. A task that has stopped for another reason
// meanwhile does not become so.
func judgeSuspend(task *v1alpha1.Task) verdict {
	state, succeeded := taskState(task), observed(task)
	switch {
	case task.Spec.OperatingMode != v1alpha1.OperatingModeSuspended:
		return verdict{err: fmt.Errorf("task %s was resumed before it was suspended", task.Name)}
	case succeeded == nil:
		return verdict{state: state}
	case succeeded.Reason == v1alpha1.ReasonSuspended:
		return verdict{done: true, state: state}
	case hasStopped(succeeded):
		return verdict{err: fmt.Errorf("task %s stopped before it was suspended: %s", task.Name, state)}
	}
	return verdict{state: state}
}
