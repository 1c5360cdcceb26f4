package toolclient

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

func (c *command) taskResume() *cobra.Command {
	var in toolcall.ResumeInput
	var prompt string
	cmd := &cobra.Command{
		Use:     "resume TASK",
		Short:   "Go on with a task that has stopped",
		Example: "  clew task resume parser\n  clew task resume parser -p \"The tests in lex_test.go fail: fix them.\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.Task = args[0]
			if in.Prompt, err = readPrompt(prompt, cmd.InOrStdin()); err != nil {
				return err
			}
			return c.call(cmd, v1alpha1.ToolTaskResume, in)
		},
	}
	promptFlag(cmd, &prompt, "what its agent shall do next; a completed task needs one")
	cmd.Flags().StringVar(&in.CallID, "call-id", "", callIDUsage)
	return cmd
}

func (c *command) taskRewind() *cobra.Command {
	var in toolcall.RewindInput
	var prompt string
	cmd := &cobra.Command{
		Use:     "rewind TASK CHECKPOINT",
		Short:   "Take a task back to a checkpoint, with its files and its conversation, and go on from there",
		Example: "  clew task rewind parser 3\n  clew task rewind parser 3 -p \"Do not write a parser by hand: use the library.\"",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.Task = args[0]
			if in.Checkpoint, err = number(args[1], listed); err != nil {
				return err
			}
			if in.Prompt, err = readPrompt(prompt, cmd.InOrStdin()); err != nil {
				return err
			}
			return c.call(cmd, v1alpha1.ToolTaskRewind, in)
		},
	}
	promptFlag(cmd, &prompt, "what its agent shall do then; it goes on as it was told before if left out")
	cmd.Flags().StringVar(&in.CallID, "call-id", "", callIDUsage)
	return cmd
}

func (c *command) taskFork() *cobra.Command {
	var in toolcall.ForkInput
	var variants []string
	cmd := &cobra.Command{
		Use:   "fork TASK NAME --variant VARIANT[=PROMPT]...",
		Short: "Make tasks that go on from a checkpoint of another one, each in its own way",
		Example: `  clew task fork parser ways --variant regexp="Use regular expressions." --variant library=@library.md
  clew task fork parser again --checkpoint 3 --variant second-try`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.Task, in.Name, in.Variants = args[0], args[1], nil
			if len(variants) == 0 {
				return fmt.Errorf("name at least one new task with --variant")
			}
			for _, v := range variants {
				name, prompt, _ := strings.Cut(v, "=")
				if prompt, err = readPrompt(prompt, cmd.InOrStdin()); err != nil {
					return err
				}
				in.Variants = append(in.Variants, toolcall.ForkVariant{Name: name, Prompt: prompt})
			}
			return c.call(cmd, v1alpha1.ToolTaskFork, in)
		},
	}
	cmd.Flags().StringArrayVar(&variants, "variant", nil, "name of a new task, and its prompt, if it is not that of the forked task; @FILE reads it from a file")
	cmd.Flags().Int64Var(&in.Checkpoint, "checkpoint", 0, "number of the checkpoint to go on from; the latest one if left out")
	return cmd
}

func (c *command) taskStop() *cobra.Command {
	var in toolcall.StopInput
	cmd := &cobra.Command{
		Use:     "stop TASK",
		Short:   "Stop a task, whose work is kept",
		Example: "  clew task stop parser",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Task = args[0]
			return c.call(cmd, v1alpha1.ToolTaskStop, in)
		},
	}
	cmd.Flags().StringVar(&in.CallID, "call-id", "", callIDUsage)
	return cmd
}

func (c *command) phase() *cobra.Command {
	var in toolcall.PhaseInput
	set := &cobra.Command{
		Use:     "set PHASE",
		Short:   "Go to another phase of the contract",
		Example: "  clew phase set Execute",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Phase = args[0]
			return c.call(cmd, v1alpha1.ToolPhaseSet, in)
		},
	}
	set.Flags().StringVar(&in.CallID, "call-id", "", callIDUsage)
	cmd := &cobra.Command{Use: "phase", Short: "The phase of the contract"}
	cmd.AddCommand(set)
	return cmd
}

func (c *command) publish() *cobra.Command {
	var in toolcall.PublishInput
	cmd := &cobra.Command{
		Use:     "publish [TASK]",
		Short:   "Push work to the branch that is set for this task: its own, or that of a task that it has made",
		Example: "  clew checkpoint -m \"ready\" && clew publish\n  clew publish parser",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Task = strings.Join(args, "")
			return c.call(cmd, v1alpha1.ToolPublish, in)
		},
	}
	cmd.Flags().StringVar(&in.CallID, "call-id", "", callIDUsage)
	return cmd
}
