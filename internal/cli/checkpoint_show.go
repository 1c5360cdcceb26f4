package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func (p *plugin) checkpointShowCommand() *cobra.Command {
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use:        "show CHECKPOINT | show TASK NUMBER",
		SuggestFor: []string{"describe", "get", "view", "diff"},
		Short:      "Show the details of a checkpoint",
		Example: `  # By the name of the Checkpoint object
  kubectl clew checkpoint show before-migration

  # By its number in a task, whether or not it still has an object
  kubectl clew checkpoint show fix-login 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 || len(args) == 2 {
				return nil
			}
			return fmt.Errorf("give the name of a checkpoint, or a task and a number; `kubectl clew checkpoint list` lists them")
		},
		ValidArgsFunction: p.completeCheckpointShow,
		RunE:              func(cmd *cobra.Command, args []string) error { return p.checkpointShow(cmd.Context(), args, flags) },
	}
	flags = p.printFlags(cmd)
	return cmd
}

func (p *plugin) checkpointShow(ctx context.Context, args []string, flags *genericclioptions.PrintFlags) error {
	s, err := p.connect()
	if err != nil {
		return err
	}
	checkpoint, deleted := &v1alpha1.Checkpoint{}, false
	if len(args) == 1 {
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: args[0]}, checkpoint)
		if err := s.explain(err, "checkpoint", args[0]); err != nil {
			return err
		}
	} else if checkpoint, deleted, err = s.checkpointOf(ctx, args[0], args[1]); err != nil {
		return err
	}
	if done, err := p.printed(flags, checkpoint); done {
		return err
	}
	return p.describeCheckpoint(p.Out, checkpoint, deleted)
}

// checkpointOf finds a checkpoint by its task, which may be deleted, and its number or name. One
// without an object is as the history has it.
func (s *session) checkpointOf(ctx context.Context, taskName, wanted string) (found *v1alpha1.Checkpoint, deleted bool, err error) {
	task, deleted, err := s.taskOrFormer(ctx, taskName)
	if err != nil {
		return nil, false, err
	}
	list, err := s.checkpoints(ctx, taskName)
	if err != nil {
		return nil, false, err
	}
	found, err = findCheckpoint(list, task, wanted)
	var missing *noObject
	if !errors.As(err, &missing) {
		return found, deleted, err
	}
	if deleted {
		missing.message = fmt.Sprintf("the history of task %s, which was deleted, has no checkpoint %d; list its checkpoints with `kubectl clew checkpoint list %s -n %s`", taskName, missing.number, taskName, s.namespace)
	}
	recorded, err := s.recordedOr(ctx, task, missing)
	if err != nil {
		return nil, false, err
	}
	return objectOf(task, recorded), deleted, nil
}

// nameless says why a checkpoint has no name.
func nameless(c *v1alpha1.Checkpoint, deleted bool) string {
	if deleted {
		return "none: the task was deleted, and its history is kept"
	}
	return fmt.Sprintf("none: its object was deleted (`kubectl clew checkpoint restore %s %d -n %s` makes it again)", c.Spec.TaskRef.Name, c.Status.Number, c.Namespace)
}

// describeCheckpoint prints the details of a checkpoint, whose task may be deleted, for people.
func (p *plugin) describeCheckpoint(w io.Writer, c *v1alpha1.Checkpoint, deleted bool) error {
	style := styleFor(w)
	var rows [][]string
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{style.bold(name + ":"), value})
		}
	}
	status := c.Status
	if c.Name == "" {
		add("Name", nameless(c, deleted))
	}
	add("Name", c.Name)
	add("Task", c.Spec.TaskRef.Name)
	add("Message", oneLine(c.Spec.Message))
	if status.Number > 0 {
		add("Number", strconv.FormatInt(status.Number, 10))
	}
	if part := c.Spec.PartOf; part != nil {
		add("Part of", "the set "+part.Name)
	}
	if status.Time != nil {
		add("Taken", fmt.Sprintf("%s (%s ago), %s, attempt %d", p.stamp(status.Time.Time), p.age(status.Time), status.Trigger, status.Attempt))
	}
	add("Retention", string(c.Spec.Retention))
	for _, condition := range []string{v1alpha1.CheckpointReady, v1alpha1.CheckpointDurable, v1alpha1.CheckpointIntact} {
		add(condition, describeCondition(status, condition))
	}
	add("Consistency", describeConsistency(status))
	add("Commit", status.Commit)
	add("Tree", status.Tree)
	add("Parent", status.Parent)
	add("Base", status.Base)
	add("Agent state", status.StateCommit)
	if status.Number > 0 {
		add("Contents", fmt.Sprintf("%s, %s", plural(status.Files, "file"), humanBytes(status.Bytes)))
	}
	if stats := status.Code; stats != nil {
		add("Changed", fmt.Sprintf("%s, %s added, %s removed", plural(int64(stats.FilesChanged), "file"), plural(stats.LinesAdded, "line"), plural(stats.LinesRemoved, "line")))
	}
	if at := status.Conversation; at != nil {
		add("Conversation", fmt.Sprintf("%s, %s with results", plural(at.Position, "message"), plural(at.ToolCalls, "tool call")))
	}
	add("Agent's git", describeGit(status.Git))
	for _, b := range status.Branches {
		add("Branch", describeBranch(b))
		if o := b.Origin; o != nil {
			add("", fmt.Sprintf("at the repository: %s (%s)", oneLine(o.Message), o.Reason))
		}
	}
	if err := table(w, nil, rows); err != nil {
		return err
	}
	if err := describeSet(w, style, status.Set); err != nil {
		return err
	}
	describeChanged(w, style, status)
	describeSkipped(w, style, status)
	return nil
}

// describeChanged lists the files that changed since the parent checkpoint.
func describeChanged(w io.Writer, style style, status v1alpha1.CheckpointStatus) {
	if len(status.ChangedFiles) == 0 {
		return
	}
	fmt.Fprintln(w, style.bold("Changed files:"))
	for _, file := range status.ChangedFiles {
		fmt.Fprintf(w, "  %-8s  %s\n", strings.ToLower(string(file.Action)), oneLine(file.Path))
	}
	if status.Code == nil {
		return
	}
	if more := int(status.Code.FilesChanged) - len(status.ChangedFiles); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// describeConsistency says whether all files were read at one instant.
func describeConsistency(status v1alpha1.CheckpointStatus) string {
	text := string(status.Consistency)
	switch status.Consistency {
	case v1alpha1.ConsistencyAgentNotStopped:
		text += ": the agent did not stop in time; the files may be from different moments"
	case v1alpha1.ConsistencyAgentThawed:
		text += ": the agent continued before all files were read; the files may be from different moments"
	}
	if text != "" && status.FrozenMilliseconds > 0 {
		text += fmt.Sprintf(" (the agent was stopped for %s)", time.Duration(status.FrozenMilliseconds)*time.Millisecond)
	}
	return text
}

// describeCondition formats a condition's status, its reason and, unless it is true, its
// message.
func describeCondition(status v1alpha1.CheckpointStatus, kind string) string {
	for _, condition := range status.Conditions {
		if condition.Type != kind {
			continue
		}
		text := string(condition.Status)
		if condition.Reason != "" {
			text += " (" + condition.Reason + ")"
		}
		if condition.Status != "True" && condition.Message != "" {
			text += ": " + oneLine(condition.Message)
		}
		return text
	}
	return ""
}

// describeGit describes the HEAD of the agent's repository and its uncommitted changes.
func describeGit(git *v1alpha1.GitPosition) string {
	if git == nil {
		return ""
	}
	at := "no commit yet"
	if git.Head != "" {
		at = git.Head
	}
	branch := "detached HEAD"
	if git.Branch != "" {
		branch = "branch " + oneLine(git.Branch)
	}
	return fmt.Sprintf("%s at %s, %s", branch, at, plural(int64(git.DirtyFileCount), "dirty file"))
}

// describeBranch describes a branch of the checkpoint in the gitstore and in the agent's
// repository.
func describeBranch(b v1alpha1.CheckpointBranchStatus) string {
	if b.State != v1alpha1.BranchMade {
		return fmt.Sprintf("%s (%s): %s", b.Name, b.State, oneLine(b.Message))
	}
	text := fmt.Sprintf("%s at %s", b.Ref, b.Commit)
	if b.Agent == nil {
		return text
	}
	if b.Agent.State != v1alpha1.AgentBranchMade {
		text += fmt.Sprintf("; %s (%s)", oneLine(b.Agent.Message), b.Agent.State)
	}
	if c := b.Agent.Checkout; c != nil {
		text += fmt.Sprintf("; %s (%s)", oneLine(c.Message), c.State)
	}
	return text
}

// describeSkipped lists the files that a checkpoint does not include.
func describeSkipped(w io.Writer, style style, status v1alpha1.CheckpointStatus) {
	if status.SkippedCount == 0 {
		return
	}
	fmt.Fprintln(w, style.bold("Not included (a rewind leaves these files unchanged):"))
	for _, file := range status.Skipped {
		fmt.Fprintf(w, "  %s  %s (%s)\n", strings.ReplaceAll(plain(file.Path), "\n", `\n`), file.Reason, humanBytes(file.Bytes))
	}
	if more := int(status.SkippedCount) - len(status.Skipped); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}
