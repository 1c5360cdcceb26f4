package toolclient

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// maxPrompt bounds a prompt that is read from a file, in bytes.
const maxPrompt = 1 << 20

// listed says where the numbers of another task's checkpoints are.
const listed = "clew task list names the latest one of each task"

// callIDUsage explains the flag --call-id.
const callIDUsage = "the same id always gets the same answer, and takes effect once; for scripts that repeat a call"

// task returns the commands about a supervisor's tasks.
func (c *command) task() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "task",
		Short: "Make other tasks, wait for them, read what they did and steer them",
		Long: "A supervisor makes tasks of its own: other agents, each of which works in its own copy of the repository.\n" +
			"A call that is repeated because its answer was lost takes effect once.",
		Example: `  clew task create parser -p @parser.md
  clew task create tests -p "Write tests for the parser." --depends-on parser --start-from parser
  clew task wait
  clew task diff parser
  clew task resume parser -p "The tests in lex_test.go fail: fix them."`,
	}
	cmd.AddCommand(c.taskCreate(), c.taskList(), c.taskWait(), c.taskHistory(), c.taskDiff(),
		c.taskResume(), c.taskRewind(), c.taskFork(), c.taskStop())
	return cmd
}

// promptFlag adds the flag for a prompt.
func promptFlag(cmd *cobra.Command, into *string, usage string) {
	cmd.Flags().StringVarP(into, "prompt", "p", "", usage+"; @FILE reads it from a file, - from standard input")
}

// readPrompt returns the prompt that a flag means.
func readPrompt(flag string, stdin io.Reader) (string, error) {
	name, isFile := strings.CutPrefix(flag, "@")
	if !isFile && flag != "-" {
		return flag, nil
	}
	in := stdin
	if isFile {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPrompt+1))
	if err != nil {
		return "", fmt.Errorf("read the prompt: %w", err)
	}
	if len(text) > maxPrompt {
		return "", fmt.Errorf("the prompt is far too long: put long material into a file of the repository, and name it in the prompt")
	}
	return strings.TrimSpace(string(text)), nil
}

func (c *command) taskCreate() *cobra.Command {
	var in toolcall.CreateInput
	var prompt string
	cmd := &cobra.Command{
		Use:   "create NAME -p PROMPT",
		Short: "Make a task, whose agent starts at once or when it has what it waits for",
		Long: "Makes a task, whose agent starts at once or when it has what it waits for.\n" +
			"The same name with the same arguments makes no second task.",
		Example: `  clew task create parser -p @parser.md
  clew task create tests -p "Write tests for the parser." --depends-on parser --start-from parser
  generate-prompt | clew task create docs -p - --start-from self`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.Name = args[0]
			if in.Prompt, err = readPrompt(prompt, cmd.InOrStdin()); err != nil {
				return err
			}
			return c.call(cmd, v1alpha1.ToolTaskCreate, in)
		},
	}
	promptFlag(cmd, &prompt, "what its agent shall do, with all that it needs to know")
	cmd.Flags().StringSliceVar(&in.DependsOn, "depends-on", nil, "tasks that must have completed before")
	cmd.Flags().StringVar(&in.StartFrom, "start-from", "", "task with whose files it starts, or self for this one; the repository as it was cloned if left out")
	return cmd
}

func (c *command) taskList() *cobra.Command {
	var in toolcall.ListInput
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tasks that this one has made",
		Example: "  clew task list\n  clew task list --phase Execute --json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.call(cmd, v1alpha1.ToolTaskList, in) },
	}
	cmd.Flags().StringVar(&in.Phase, "phase", "", "list only those that were made in this phase")
	return cmd
}

func (c *command) taskWait() *cobra.Command {
	var in toolcall.WaitInput
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "wait [TASK...]",
		Short:   "Wait until tasks have stopped: all that have not finished if none is named",
		Long:    "Waits until tasks have stopped: completed, failed, or waiting for somebody. It exits with 1 if they have not after the timeout.",
		Example: "  clew task wait\n  clew task wait parser tests --any\n  clew task wait parser --timeout 30m",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Tasks = args
			return c.callFor(cmd, timeout, v1alpha1.ToolTaskWait, in)
		},
	}
	cmd.Flags().BoolVar(&in.Any, "any", false, "wait until one of them has stopped, instead of all")
	cmd.Flags().DurationVar(&timeout, "timeout", 24*time.Hour, "how long to wait at most; it is exceeded by less than a minute")
	return cmd
}

func (c *command) taskHistory() *cobra.Command {
	var in toolcall.HistoryInput
	cmd := &cobra.Command{
		Use:     "history TASK [WORDS...]",
		Short:   "Print the newest messages of a task's conversation, or those with some words",
		Example: "  clew task history parser\n  clew task history parser \"connection refused\" --limit 3",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Task, in.Query = args[0], strings.Join(args[1:], " ")
			return c.call(cmd, v1alpha1.ToolTaskHistory, in)
		},
	}
	cmd.Flags().IntVar(&in.Limit, "limit", 0, "how many messages to print; 10 if left out")
	return cmd
}

func (c *command) taskDiff() *cobra.Command {
	var in toolcall.DiffInput
	cmd := &cobra.Command{
		Use:     "diff TASK [FROM [TO]]",
		Short:   "Show what a task has changed, or what differs between two of its checkpoints",
		Long:    "Shows what differs between two checkpoints of a task: from the files that it started with, if FROM is left out, to its latest checkpoint, if TO is.",
		Example: "  clew task diff parser\n  clew task diff parser 3 7 --path src/main.go",
		Args:    cobra.RangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.Task = args[0]
			if in.From, in.To, err = fromTo(args[1:], listed); err != nil {
				return err
			}
			return c.call(cmd, v1alpha1.ToolTaskDiff, in)
		},
	}
	cmd.Flags().StringVar(&in.Path, "path", "", "compare only this file, or this folder")
	return cmd
}
