package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

func (p *plugin) checkpointListCommand() *cobra.Command {
	var flags *genericclioptions.PrintFlags
	var noHeaders bool
	cmd := &cobra.Command{
		Use:        "list [TASK]",
		SuggestFor: []string{"get"},
		Aliases:    []string{"ls"},
		Short:      "List the checkpoints of a task, or of all tasks of the namespace",
		Example: `  # All checkpoints of a task, oldest first
  kubectl clew checkpoint list fix-login

  # Only their names
  kubectl clew checkpoint list fix-login -o name`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			task := ""
			if len(args) > 0 {
				task = args[0]
			}
			return p.checkpointList(cmd.Context(), task, flags, noHeaders)
		},
	}
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "Do not print column headers.")
	flags = p.printFlags(cmd)
	return cmd
}

func (p *plugin) checkpointList(ctx context.Context, task string, flags *genericclioptions.PrintFlags, noHeaders bool) error {
	s, err := p.connect()
	if err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, task)
	if err != nil {
		return err
	}
	if len(list.Items) == 0 && task != "" {
		if _, err := s.task(ctx, task); err != nil {
			return err
		}
	}
	if done, err := p.printed(flags, list); done {
		return err
	}
	if len(list.Items) == 0 {
		fmt.Fprintf(p.ErrOut, "No checkpoints found in namespace %s.\n", s.namespace)
		return nil
	}
	return p.checkpointTable(p.Out, list.Items, task == "", noHeaders)
}

// checkpointTable prints one line per checkpoint.
func (p *plugin) checkpointTable(w io.Writer, checkpoints []v1alpha1.Checkpoint, withTask, noHeaders bool) error {
	header := []string{"NUMBER", "NAME", "TRIGGER", "DURABLE", "CHANGES", "MESSAGES", "AGE", "MESSAGE"}
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
		row := []string{
			number, c.Name, cmp.Or(string(c.Status.Trigger), "-"),
			conditionText(c.Status.Conditions, v1alpha1.CheckpointDurable),
			changes(c.Status.Code), messages, p.age(taken), clip.Runes(oneLine(c.Spec.Message), 60),
		}
		if withTask {
			row = append([]string{c.Spec.TaskRef.Name}, row...)
		}
		rows = append(rows, row)
	}
	return table(w, header, rows)
}
