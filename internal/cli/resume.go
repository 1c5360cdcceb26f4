package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

type resume struct {
	*plugin
	prompt  string
	onDrift *enumFlag
	wait    waitFlags
	dryRun  dryRunFlag
	print   *genericclioptions.PrintFlags
}

func (p *plugin) resumeCommand() *cobra.Command {
	o := &resume{plugin: p}
	cmd := &cobra.Command{
		Use:   "resume TASK",
		Short: "Let a suspended, rewound or failed task go on",
		Long: `Let a suspended, rewound or failed task go on where it stands, with its code and
its conversation. A suspended task is set to run again in the same request.`,
		Example: `  # Go on
  kubectl clew resume fix-login

  # Go on, and tell the agent something first
  kubectl clew resume fix-login --prompt "The tests need Postgres 15."

  # Someone edited the files meanwhile: keep the edits as a checkpoint, and go on with them
  kubectl clew resume fix-login --on-drift preserve`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.prompt, "prompt", "", "What to tell the agent next.")
	o.onDrift = driftFlag(cmd)
	o.wait.add(cmd, "the agent works again")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func driftFlag(cmd *cobra.Command) *enumFlag {
	return enum(cmd, "on-drift", string(v1alpha1.OnDriftFail), "What to do when the files were changed while the task slept: stop, keep them as a checkpoint and go on, or put back what Clew left.",
		string(v1alpha1.OnDriftFail), string(v1alpha1.OnDriftPreserve), string(v1alpha1.OnDriftOverride))
}

func (o *resume) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	if err := resumable(task); err != nil {
		return err
	}
	id, err := o.newID()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"operatingMode": v1alpha1.OperatingModeRunning,
		"resume": map[string]any{
			"id": id, "mode": v1alpha1.ResumeContinue, "prompt": orNull(o.prompt), "onDrift": o.onDrift.value,
		},
	}})
	if err != nil {
		return err
	}
	if err := s.client.Patch(ctx, task, client.RawPatch(types.MergePatchType, patch), o.dryRun.patchOptions()...); err != nil {
		return s.explain(err, "task", name)
	}
	outcome := "resume requested"
	if o.wait.wait && !o.dryRun.server {
		task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, func(t *v1alpha1.Task) verdict { return judgeResume(t, id) })
		if err != nil {
			return err
		}
		outcome = "resumed"
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", name, outcome, o.dryRun.suffix())
	return nil
}

// orNull gives null for nothing: a merge patch then removes what an earlier
// request has left in the field.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// resumable refuses what the API would refuse too, but with the next command.
func resumable(task *v1alpha1.Task) error {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	switch {
	case succeeded == nil:
		return fmt.Errorf("task %s has not started yet, so there is nothing to resume; look at it with `kubectl describe tasks.clew.dev %s -n %s`", task.Name, task.Name, task.Namespace)
	case succeeded.Status == metav1.ConditionTrue:
		return fmt.Errorf("task %s is completed, so there is nothing left to resume; take it back with `kubectl clew rewind %s --to NUMBER`, or carry on in a new task with `kubectl clew fork %s --name NEW`", task.Name, task.Name, task.Name)
	case succeeded.Status == metav1.ConditionUnknown && !stopped(succeeded.Reason):
		return fmt.Errorf("task %s is at work (%s), so there is nothing to resume; to stop it first, `kubectl patch tasks.clew.dev %s -n %s --type merge -p '{\"spec\":{\"operatingMode\":\"Suspended\"}}'`", task.Name, succeeded.Reason, task.Name, task.Namespace)
	}
	return nil
}

// stopped says whether a task that has not ended stands still.
func stopped(reason string) bool {
	switch reason {
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonRewound, v1alpha1.ReasonDriftDetected:
		return true
	}
	return false
}

// judgeResume is done when the agent works again.
func judgeResume(task *v1alpha1.Task, id string) verdict {
	state := taskState(task)
	operation := task.Status.Resume
	if operation == nil || operation.ID != id {
		return verdict{state: "asked to go on"}
	}
	switch operation.State {
	case v1alpha1.OperationCompleted:
		return verdict{done: true, state: state}
	case v1alpha1.OperationRefused, v1alpha1.OperationFailed:
		return verdict{err: operationError("resume", task, operation)}
	}
	return verdict{state: state}
}

// taskState is the state of a task in a few words.
func taskState(task *v1alpha1.Task) string {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if succeeded == nil {
		return "not seen yet"
	}
	if succeeded.Message == "" {
		return succeeded.Reason
	}
	return succeeded.Reason + ": " + succeeded.Message
}

// operationError says why a resume or rewind came to nothing, and what to do.
func operationError(verb string, task *v1alpha1.Task, operation *v1alpha1.OperationStatus) error {
	word := map[v1alpha1.OperationState]string{v1alpha1.OperationRefused: "was refused", v1alpha1.OperationFailed: "failed"}[operation.State]
	text := fmt.Sprintf("the %s of task %s %s: %s (%s)", verb, task.Name, word, orElse(plain(operation.Message), "no message"), operation.Reason)
	if operation.Reason == v1alpha1.ReasonDriftDetected {
		text += "; keep the changes with --on-drift preserve, or undo them with --on-drift override"
	}
	return errors.New(text)
}
