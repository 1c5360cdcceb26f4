package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// checkpointRestore holds the flags of `checkpoint restore`.
type checkpointRestore struct {
	*plugin
	name   string
	wait   waitFlags
	dryRun dryRunFlag
	print  *genericclioptions.PrintFlags
}

func (p *plugin) checkpointRestoreCommand() *cobra.Command {
	o := &checkpointRestore{plugin: p}
	cmd := &cobra.Command{
		Use:   "restore TASK NUMBER",
		Short: "Make the object of a checkpoint again",
		Long: `Make the Checkpoint object of a checkpoint again after it was deleted, by a task's
checkpointPolicy.retention or by hand. The new object is kept until somebody deletes
it. The task itself is not changed: to go back to a checkpoint, use
"kubectl clew rewind", which takes the number of a checkpoint without an object, too.`,
		Example: `  # The third checkpoint of a task, under its old name
  kubectl clew checkpoint restore fix-login 3

  # Under another name
  kubectl clew checkpoint restore fix-login 3 --name before-migration`,
		Args:              exactly("TASK", "NUMBER"),
		ValidArgsFunction: p.completeRestorable,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the Checkpoint object. Defaults to the task's name and the number.")
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	o.wait.add(cmd, "the object has the status of the checkpoint")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *checkpointRestore) run(ctx context.Context, taskName, wanted string) error {
	number, err := strconv.ParseInt(strings.TrimPrefix(wanted, "#"), 10, 32)
	if err != nil {
		return fmt.Errorf("%q is not the number of a checkpoint; `kubectl clew checkpoint list %s --all` lists them", wanted, taskName)
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, taskName)
	if err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, taskName)
	if err != nil {
		return err
	}
	has := func(c v1alpha1.Checkpoint) bool {
		return c.Status.TaskUID == string(task.UID) && c.Status.Number == number
	}
	if i := slices.IndexFunc(list.Items, has); i >= 0 {
		return o.report(&list.Items[i], fmt.Sprintf("exists already: number %d of %s", number, task.Name))
	}
	recorded, err := s.presentOr(ctx, task, missingNumber(list, task, number))
	if err != nil {
		return err
	}
	c := objectAgain(task, recorded, o.name)
	name := c.Name
	if err := o.dryRun.create(ctx, s.client, c); err != nil {
		return s.explain(err, "checkpoint", name)
	}
	if o.wait.wait && o.dryRun.changes() {
		if c, err = await(ctx, s, o.wait, "checkpoint", &v1alpha1.CheckpointList{}, c, judgeRestored); err != nil {
			return err
		}
	}
	return o.report(c, fmt.Sprintf("restored: number %d of %s", number, task.Name))
}

// report prints the object, or what became of it.
func (o *checkpointRestore) report(c *v1alpha1.Checkpoint, outcome string) error {
	if done, err := o.printed(o.print, c); done {
		return err
	}
	fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s %s%s\n", c.Name, outcome, o.dryRun.suffix())
	return nil
}

// judgeRestored is done once the status is that of the recorded checkpoint.
func judgeRestored(c *v1alpha1.Checkpoint) verdict {
	v := judgeCheckpoint(c)
	if c.Status.Number > 0 && v.err == nil {
		v.done = true
	}
	return v
}
