package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
)

type checkpointCreate struct {
	*plugin
	message, name string
	wait          waitFlags
	dryRun        dryRunFlag
	print         *genericclioptions.PrintFlags
}

func (p *plugin) checkpointCreateCommand() *cobra.Command {
	o := &checkpointCreate{plugin: p}
	cmd := &cobra.Command{
		Use:        "create TASK",
		SuggestFor: []string{"new", "add", "take", "make"},
		Short:      "Take a checkpoint of a task",
		Long: `Take a checkpoint of a task: of its code, the agent's own state and the position
in the conversation. The agent works on meanwhile. If recent checkpoints used a
lot of CPU, it may be taken about a minute later. If no pod of the task runs,
its last checkpoint is the state already, and the new one points at it.`,
		Example: `  # Take a checkpoint before something daring
  kubectl clew checkpoint create fix-login -m "Before the migration"

  # Name it, and do not wait for it
  kubectl clew checkpoint create fix-login --name before-migration --wait=false

  # Check the request without taking one
  kubectl clew checkpoint create fix-login --dry-run=server -o yaml`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.message, "message", "m", "", "What the checkpoint is for; it becomes the commit's message.")
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the Checkpoint. One is made up when left out.")
	o.wait.add(cmd, "the checkpoint is taken and the gitstore has it")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *checkpointCreate) run(ctx context.Context, taskName string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, taskName)
	if err != nil {
		return err
	}
	name := o.name
	if name == "" {
		id, err := o.newID()
		if err != nil {
			return err
		}
		name = task.Name + "-" + strings.TrimPrefix(id, "cli-")
	}
	checkpoint := &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}, Message: o.message},
	}
	if err := s.client.Create(ctx, checkpoint, o.dryRun.createOptions()...); err != nil {
		return s.explain(err, "checkpoint", name)
	}
	if o.wait.wait && !o.dryRun.server {
		checkpoint, err = await(ctx, s, o.wait, "checkpoint", &v1alpha1.CheckpointList{}, checkpoint, judgeCheckpoint)
		if err != nil {
			return err
		}
	}
	if done, err := o.printed(o.print, checkpoint); done {
		return err
	}
	fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s %s%s\n", name, created(checkpoint), o.dryRun.suffix())
	return nil
}

// created says what came of the request, in a word or more.
func created(c *v1alpha1.Checkpoint) string {
	if c.Status.Number == 0 {
		return "created"
	}
	text := fmt.Sprintf("created: number %d of %s", c.Status.Number, c.Spec.TaskRef.Name)
	if c.Status.Code != nil {
		text += fmt.Sprintf(", %s changed", plural(int64(c.Status.Code.FilesChanged), "file"))
	}
	if c.Status.SkippedCount > 0 {
		text += fmt.Sprintf(", %s not held (see `kubectl clew checkpoint show %s`)", plural(int64(c.Status.SkippedCount), "file"), c.Name)
	}
	return text
}

// judgeCheckpoint is done when the checkpoint is taken and the gitstore has it.
func judgeCheckpoint(c *v1alpha1.Checkpoint) verdict {
	ready := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointReady)
	durable := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointDurable)
	switch {
	case ready == nil:
		return verdict{state: "asked for the checkpoint"}
	case ready.Status == metav1.ConditionFalse && (ready.Reason == v1alpha1.ReasonTaskNotFound || ready.Reason == v1alpha1.ReasonTaskStopped):
		return verdict{err: fmt.Errorf("the checkpoint was not taken: %s (%s)", ready.Message, ready.Reason)}
	case ready.Status != metav1.ConditionTrue:
		return verdict{state: cmp.Or(ready.Message, ready.Reason)}
	case durable != nil && durable.Status == metav1.ConditionTrue:
		return verdict{done: true, state: "the gitstore has it"}
	}
	return verdict{state: fmt.Sprintf("taken as number %d, on its way to the gitstore", c.Status.Number)}
}
