package toolclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/tools"
	"github.com/clew-dev/clew/internal/toolcall"
)

// Program is the name of the command line.
const Program = "clew"

const (
	// callWait is how long a call may take.
	callWait = 90 * time.Second
	// pendingWait is how long a call is repeated that takes longer, and repeatPause how long it rests
	// in between.
	pendingWait = 10 * time.Minute
	repeatPause = time.Second
)

// FailedError is the error of a call that was answered with a refusal, which was printed.
type FailedError struct{ Text string }

// Error implements error.
func (e *FailedError) Error() string { return e.Text }

// command is one run of the program.
type command struct {
	client Client
	json   bool
}

// NewCommand returns the program clew.
func NewCommand(socket, version string) *cobra.Command {
	c := &command{client: Client{Socket: socket, Name: Program, Version: version}}
	root := &cobra.Command{
		Use:   Program,
		Short: "Clew's tools for the task that runs here",
		Long: "Clew runs this task. It takes checkpoints of the files, to which the work can be taken back,\n" +
			"and keeps the whole conversation. A supervisor also makes and steers other tasks.\n" +
			"This program is for the agent, and for shells in its container.\n" +
			"It exits with 0 if the call was carried out, and with 1 if not; standard error then says why.",
		Example: `  clew checkpoint -m "the tests pass, before the refactoring"
  clew checkpoints
  clew diff                              # what has changed since the newest checkpoint
  clew diff 3 7 --path src               # what has changed from checkpoint 3 to 7
  clew history search "connection refused"
  clew task create parser -p @parser.md  # for supervisors: clew task --help, clew phase, clew publish`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print the answer as JSON")
	root.PersistentFlags().StringVar(&c.client.Socket, "socket", socket, "socket of Clew's daemon")
	root.AddCommand(c.checkpoint(), c.checkpoints(), c.diff(), c.history(), c.task(), c.phase(), c.publish())
	return root
}

func (c *command) checkpoint() *cobra.Command {
	var in tools.CheckpointInput
	cmd := &cobra.Command{
		Use:     `checkpoint -m MESSAGE`,
		Short:   "Take a checkpoint, unless nothing has changed since the newest one",
		Example: `  clew checkpoint -m "the tests pass, before the refactoring"`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.call(cmd, v1alpha1.ToolCheckpoint, in) },
	}
	cmd.Flags().StringVarP(&in.Message, "message", "m", "", "what this state is, in one line")
	return cmd
}

func (c *command) checkpoints() *cobra.Command {
	var in tools.CheckpointsInput
	cmd := &cobra.Command{
		Use:     "checkpoints",
		Short:   "List the checkpoints of this task, newest first",
		Example: "  clew checkpoints --limit 5\n  clew checkpoints --before 12",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.call(cmd, v1alpha1.ToolCheckpoints, in) },
	}
	cmd.Flags().IntVar(&in.Limit, "limit", 0, "how many to list; 20 if left out")
	cmd.Flags().Int64Var(&in.Before, "before", 0, "list those with lower numbers than this one")
	return cmd
}

func (c *command) diff() *cobra.Command {
	var in tools.DiffInput
	cmd := &cobra.Command{
		Use:   "diff [FROM [TO]]",
		Short: "Show what has changed between two checkpoints, or since one",
		Long: "Shows what has changed in the files between two checkpoints or, without TO, from a checkpoint to now.\n" +
			"FROM is the newest checkpoint if left out; 0 stands for the files that the task started from.",
		Example: "  clew diff\n  clew diff 3\n  clew diff 3 7 --path src/main.go\n  clew diff 0          # all that this task has changed",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if in.From, in.To, err = fromTo(args, "clew checkpoints lists them"); err != nil {
				return err
			}
			return c.call(cmd, v1alpha1.ToolDiff, in)
		},
	}
	cmd.Flags().StringVar(&in.Path, "path", "", "compare only this file, or this folder")
	return cmd
}

// fromTo returns the numbers of up to two checkpoints; nil for those left out. where says where to find
// them.
func fromTo(args []string, where string) (from, to *int64, err error) {
	for i, into := range []**int64{&from, &to} {
		if i == len(args) {
			break
		}
		n, err := number(args[i], where)
		if err != nil {
			return nil, nil, err
		}
		*into = &n
	}
	return from, to, nil
}

// number returns the number of a checkpoint.
func number(arg, where string) (int64, error) {
	n, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not the number of a checkpoint: %s", arg, where)
	}
	return n, nil
}

func (c *command) history() *cobra.Command {
	var in tools.SearchInput
	search := &cobra.Command{
		Use:     "search WORDS...",
		Short:   "Search the conversation of this task, with all tool calls and results",
		Example: "  clew history search \"connection refused\"\n  clew history search flaky -timeout",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Query = strings.Join(args, " ")
			return c.call(cmd, v1alpha1.ToolHistorySearch, in)
		},
	}
	search.Flags().IntVar(&in.Limit, "limit", 0, "how many messages to print; 10 if left out")
	cmd := &cobra.Command{Use: "history", Short: "The conversation of this task"}
	cmd.AddCommand(search)
	return cmd
}

// call calls a tool and prints the answer.
func (c *command) call(cmd *cobra.Command, tool v1alpha1.AgentTool, in any) error {
	return c.callFor(cmd, pendingWait, tool, in)
}

// callFor is call, for a tool that is called again for a while until there is an answer.
func (c *command) callFor(cmd *cobra.Command, wait time.Duration, tool v1alpha1.AgentTool, in any) error {
	begin := time.Now()
	for {
		result, err := c.once(cmd.Context(), tool, in)
		if err != nil {
			return err
		}
		if !unanswered(result) {
			return c.deliver(cmd, result)
		}
		if time.Since(begin) >= wait {
			return &FailedError{TextOf(result)}
		}
		select {
		case <-time.After(repeatPause):
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		}
	}
}

// once calls a tool once.
func (c *command) once(ctx context.Context, tool v1alpha1.AgentTool, in any) (*mcp.CallToolResult, error) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	result, err := c.client.Call(ctx, string(tool), in)
	if err != nil {
		return nil, given(ctx, c.client, tool, err)
	}
	if result.IsError {
		return nil, &FailedError{TextOf(result)}
	}
	return result, nil
}

// unanswered reports whether a tool is to be called again to have its answer.
func unanswered(result *mcp.CallToolResult) bool {
	var data struct {
		toolcall.Unanswered
		toolcall.Waited
	}
	encoded, err := json.Marshal(result.Meta[tools.DataKey])
	return err == nil && json.Unmarshal(encoded, &data) == nil && (data.Pending || data.Waiting)
}

// deliver prints an answer, and tells the daemon that it is printed.
func (c *command) deliver(cmd *cobra.Command, result *mcp.CallToolResult) error {
	if err := c.print(cmd.OutOrStdout(), result); err != nil {
		return err
	}
	if call, ok := result.Meta[tools.CallKey].(string); ok {
		ctx, cancel := context.WithTimeout(cmd.Context(), callWait)
		defer cancel()
		// Without it, the daemon learns it at the end of the agent's turn.
		_ = c.client.Delivered(ctx, call)
	}
	return nil
}

// given explains an error by the fact that the task does not give its agent the tool.
func given(ctx context.Context, client Client, tool v1alpha1.AgentTool, err error) error {
	all, _, failed := client.Tools(ctx)
	if failed != nil {
		return err
	}
	names := []string{}
	for _, t := range all {
		if t.Name == string(tool) {
			return err
		}
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("this task gives its agent none of Clew's tools: spec.tools of the Task says which")
	}
	return fmt.Errorf("this task does not give its agent the tool %s, but %s: spec.tools of the Task says which", tool, strings.Join(names, ", "))
}

func (c *command) print(out io.Writer, result *mcp.CallToolResult) error {
	text := strings.TrimRight(TextOf(result), "\n")
	if !c.json {
		_, err := fmt.Fprintln(out, text)
		return err
	}
	var answer any = map[string]string{"text": text}
	if data, ok := result.Meta[tools.DataKey]; ok {
		answer = data
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(answer)
}
