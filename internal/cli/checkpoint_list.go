package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

func (p *plugin) checkpointListCommand() *cobra.Command {
	var flags *genericclioptions.PrintFlags
	var noHeaders, all bool
	cmd := &cobra.Command{
		Use:        "list [TASK]",
		SuggestFor: []string{"get"},
		Aliases:    []string{"ls"},
		Short:      "List the checkpoints of a task, or of all tasks of the namespace",
		Long: `List the checkpoints of a task, or of all tasks of the namespace. A task keeps
only as many Checkpoint objects as its checkpointPolicy.retention says; --all also
lists the checkpoints of the task that have no object any more. They have no name:
commands take their number. Those of a task that was deleted are listed as its history
has them.`,
		Example: `  # The checkpoints of a task, oldest first
  kubectl clew checkpoint list fix-login

  # Those without an object as well
  kubectl clew checkpoint list fix-login --all

  # Only their names
  kubectl clew checkpoint list fix-login -o name`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			task := ""
			if len(args) > 0 {
				task = args[0]
			}
			return p.checkpointList(cmd.Context(), task, all, flags, noHeaders)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Also list the checkpoints of the task that have no object any more.")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "Do not print column headers.")
	flags = p.printFlags(cmd)
	return cmd
}

func (p *plugin) checkpointList(ctx context.Context, taskName string, all bool, flags *genericclioptions.PrintFlags, noHeaders bool) error {
	switch {
	case all && taskName == "":
		return errors.New("--all needs a task: `kubectl clew checkpoint list TASK --all`")
	case all && *flags.OutputFormat == "name":
		return errors.New("checkpoints without an object have no name: leave out --all, or choose another output")
	}
	s, err := p.connect()
	if err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, taskName)
	if err != nil {
		return err
	}
	hidden := int64(0)
	if taskName != "" {
		if hidden, err = s.addOthers(ctx, list, taskName, all); err != nil {
			return err
		}
	}
	if *flags.OutputFormat == "name" {
		if err := p.leaveOutNameless(list, taskName); err != nil {
			return err
		}
	}
	if done, err := p.printed(flags, list); done {
		return err
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(p.ErrOut, noCheckpoints(s.namespace, taskName, hidden))
		return nil
	}
	if err := p.checkpointTable(p.Out, list.Items, taskName == "", noHeaders); err != nil {
		return err
	}
	if hidden > 0 {
		fmt.Fprintf(p.ErrOut, "%s without an object not listed; add --all to list all of them.\n", plural(hidden, "checkpoint"))
	}
	return nil
}

// leaveOutNameless leaves the checkpoints of a deleted task that have no object out of a list of names,
// and says so. It is an error if no others are there.
func (p *plugin) leaveOutNameless(list *v1alpha1.CheckpointList, taskName string) error {
	all := len(list.Items)
	list.Items = slices.DeleteFunc(list.Items, func(c v1alpha1.Checkpoint) bool { return c.Name == "" })
	switch nameless := all - len(list.Items); {
	case nameless > 0 && len(list.Items) == 0:
		return fmt.Errorf("task %s was deleted, and its checkpoints have no object and no name: choose another output", taskName)
	case nameless > 0:
		fmt.Fprintf(p.ErrOut, "%s without an object not listed: only an object has a name; another output lists all.\n", plural(int64(nameless), "checkpoint"))
	}
	return nil
}

// noCheckpoints says that there is nothing to list, and, of a task, whether records are left.
func noCheckpoints(namespace, task string, hidden int64) string {
	switch {
	case task == "":
		return fmt.Sprintf("No checkpoints found in namespace %s.", namespace)
	case hidden > 0:
		return fmt.Sprintf("None of the %s of task %s has an object; add --all to list them.", plural(hidden, "checkpoint"), task)
	}
	return fmt.Sprintf("Task %s has no checkpoints yet: take one with `kubectl clew checkpoint create %s -n %s`.", task, task, namespace)
}

// addOthers adds the task's checkpoints that have no object, if all are wanted or the task was
// deleted; otherwise it returns how many there are.
func (s *session) addOthers(ctx context.Context, list *v1alpha1.CheckpointList, taskName string, all bool) (hidden int64, err error) {
	task, deleted, err := s.taskOrFormer(ctx, taskName)
	switch {
	case err != nil && !all && len(list.Items) > 0:
		return 0, nil // objects that outlive their task are listed even if the history cannot be read
	case err != nil:
		return 0, err
	case all, deleted:
		return 0, s.addRecorded(ctx, list, task)
	}
	return withoutObject(list, task), nil
}

// addRecorded adds the task's checkpoints that have no object.
func (s *session) addRecorded(ctx context.Context, list *v1alpha1.CheckpointList, task *v1alpha1.Task) error {
	recorded, err := s.allRecorded(ctx, task)
	if err != nil {
		return err
	}
	have := numbersOf(list, task)
	for i := range recorded {
		if !have[recorded[i].Number] {
			list.Items = append(list.Items, *objectOf(task, &recorded[i]))
		}
	}
	slices.SortStableFunc(list.Items, compareCheckpoints)
	return nil
}

// numbersOf returns the numbers of the task's checkpoints that have an object.
func numbersOf(list *v1alpha1.CheckpointList, task *v1alpha1.Task) map[int64]bool {
	numbers := map[int64]bool{}
	for _, c := range list.Items {
		if c.Status.Number > 0 && c.Status.TaskUID == string(task.UID) {
			numbers[c.Status.Number] = true
		}
	}
	return numbers
}

// withoutObject returns how many of the task's checkpoints have no object, as far as its status
// says. An object without a number may be that of a checkpoint that the status counts already.
func withoutObject(list *v1alpha1.CheckpointList, task *v1alpha1.Task) int64 {
	unnumbered := int64(0)
	for _, c := range list.Items {
		if c.Status.Number == 0 {
			unnumbered++
		}
	}
	return max(0, task.Status.CheckpointCount-int64(len(numbersOf(list, task)))-unnumbered)
}

// checkpointTable prints one line per checkpoint.
func (p *plugin) checkpointTable(w io.Writer, checkpoints []v1alpha1.Checkpoint, withTask, noHeaders bool) error {
	header := []string{"NUMBER", "NAME", "TRIGGER", "DURABLE", "FILES", "LINES", "MESSAGES", "AGE", "MESSAGE"}
	if withTask {
		header = append([]string{"TASK"}, header...)
	}
	if noHeaders {
		header = nil
	}
	rows := make([][]string, 0, len(checkpoints))
	for _, c := range checkpoints {
		number, messages := "-", "-"
		if c.Status.Number > 0 {
			number = strconv.FormatInt(c.Status.Number, 10)
		}
		if c.Status.Conversation != nil {
			messages = strconv.FormatInt(c.Status.Conversation.Position, 10)
		}
		taken := c.Status.Time
		if taken == nil {
			taken = &c.CreationTimestamp
		}
		files, lines := changes(c.Status.Code)
		row := []string{
			number, cmp.Or(c.Name, "-"), cmp.Or(string(c.Status.Trigger), "-"),
			conditionText(c.Status.Conditions, v1alpha1.CheckpointDurable),
			files, lines, messages, p.age(taken), clip.Runes(oneLine(c.Spec.Message), 60),
		}
		if withTask {
			row = append([]string{c.Spec.TaskRef.Name}, row...)
		}
		rows = append(rows, row)
	}
	return table(w, header, rows)
}
