package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
)

// rewind holds the flags of `rewind`.
type rewind struct {
	*plugin
	to, toTime, toCommit     string
	branch                   string
	toMessage, back          int64
	scope, preserve, onDrift *enumFlag
	whenRunning, children    *enumFlag
	only                     map[v1alpha1.RewindScope]*bool // --code, --conversation, --both
	paths                    []string
	yes                      bool
	wait                     waitFlags
	dryRun                   dryRunFlag
	print                    *genericclioptions.PrintFlags
}

// rewindHelp describes the command.
const rewindHelp = `Rewind a task to a checkpoint, a message or a time: its files, the agent's own
state and the conversation, or only some of these.

With --to-message, --to-time and --back, the target is moved back to the end of
a turn, so that no tool call is separated from its result. The files are restored
from the newest checkpoint at or before that point; with --to-time, from the newest
taken by then, whose messages the conversation still has, or from the next one, if the
last message had none yet and nothing else happened before that was taken. With --both,
the conversation is rewound to that checkpoint too, so that files and memory agree; with
--conversation, it is rewound to exactly that turn and the files stay as they are.

Paths select files, folders, and patterns: "src/*.go" in one folder, "**/*.go" in all.
Only these are then rewound. Everything else stays as it is, and so do the agent's
commits, branches and index, its own state and the conversation.

With --to-commit, the files become those of a commit that the task knows: of one of
its checkpoints, or of the history that it started from. Files that the commit's
.gitignore names stay, unless it is a checkpoint's. The agent's commits, branches and
index, its own state and the conversation stay as they are.
"--to base" is short for the commit of the repository that the task started from; of a
fork, that is the commit of its source. The files that a fork itself started with are at
the commit that its status.source names. To go back to the start of a task with the
conversation as well, have checkpointPolicy.beforeRun take a checkpoint there, or fork
the source of a fork once more.

Before it asks, it shows which files would change, which messages would go and which
work would stop. The agent is stopped first. The current state is always kept as a
checkpoint, so that "kubectl clew undo" can take the rewind back, and by default also as
a branch in the agent's repository. Only with --on-drift override, what was changed while
the task was not running is not kept anywhere. Then the task continues from the target,
unless it was stopped before.

A rewind of all files makes the branches, tags and stashes of the agent's repository those
of the checkpoint, too. Newer ones, also the branches of earlier rewinds, are then only in
the checkpoint that keeps the current state: "kubectl clew undo" brings them back.

With --children rewind, the command waits for the supervisor, and the children in the set
follow it. One that had ended, in the set or since, has ended as it had in the set, or
waits for "kubectl clew resume" if it was at work there. "kubectl clew undo" of the
supervisor takes them back as well.`

func (p *plugin) rewindCommand() *cobra.Command {
	o := &rewind{plugin: p}
	cmd := &cobra.Command{
		Use:        "rewind TASK --to CHECKPOINT|NUMBER|base|latest | --to-message N | --to-time T | --back N | --to-commit ID [flags] [-- PATH...]",
		SuggestFor: []string{"rollback", "restore", "revert", "reset"},
		Short:      "Rewind a task to a checkpoint, a message or a time",
		Long:       rewindHelp,
		Example: `  # Show what the rewind would do, and ask for confirmation
  kubectl clew rewind fix-login --to 3

  # Only show what it would do
  kubectl clew rewind fix-login --to 3 --dry-run=client

  # Only the files; the agent remembers what it tried
  kubectl clew rewind fix-login --to before-migration --code

  # Only the conversation: to message 12 as shown by "task history", or by 4 messages
  kubectl clew rewind fix-login --to-message 12 --conversation
  kubectl clew rewind fix-login --back 4 --conversation

  # Only some files
  kubectl clew rewind fix-login --to 3 -- src/login.go 'test/**/*.snap'

  # The files that the task started from, and those that a fork started with
  kubectl clew rewind fix-login --to base
  kubectl clew rewind my-fork --to-commit "$(kubectl get task my-fork -o jsonpath='{.status.source.commit}')"

  # The files as they are in a commit, or one folder of it
  kubectl clew rewind fix-login --to-commit "$(git rev-parse origin/main)"
  kubectl clew rewind fix-login --to-commit "$(git rev-parse v1.2.0)" -- vendor

  # Everything, to a time or to one hour ago
  kubectl clew rewind fix-login --to-time "2026-11-21 12:00:00"
  kubectl clew rewind fix-login --to-time 1h

  # A supervisor and its children, to a set of checkpoints
  kubectl clew rewind lead --to before-release --children rewind

  # In a script
  kubectl clew rewind fix-login --to 3 --branch tried/first --yes`,
		Args:              taskAndPaths,
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.paths = args[1:]
			return o.run(cmd.Context(), cmd, args[0])
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *rewind) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.to, "to", "", "Number of the checkpoint to rewind to, or name of its object. A number need not have a Checkpoint object any more, and means the checkpoint of that number whatever objects are named. base is the commit that the task started from: only the files are rewound to it. latest is the latest checkpoint.")
	flags.Int64Var(&o.toMessage, "to-message", 0, "Position of the last message to keep, as shown by \"task history\".")
	flags.StringVar(&o.toTime, "to-time", "", "Time up to which messages are kept: a time such as 2026-11-21T12:00:00Z, a time as shown by \"task history\", a date, which is its midnight, or a duration before now such as 30m. It must not be in the future.")
	flags.StringVar(&o.toCommit, "to-commit", "", "Full id of a commit whose files are restored. Only the files are rewound.")
	flags.Int64Var(&o.back, "back", 0, "Number of newest messages to drop.")
	o.scope = enum(cmd, "scope", string(v1alpha1.RewindBoth), "What to rewind.",
		string(v1alpha1.RewindCode), string(v1alpha1.RewindConversation), string(v1alpha1.RewindBoth))
	o.only = map[v1alpha1.RewindScope]*bool{
		v1alpha1.RewindCode:         flags.Bool("code", false, "Only the files; short for --scope Code."),
		v1alpha1.RewindConversation: flags.Bool("conversation", false, "Only the conversation and the agent's own state; short for --scope Conversation."),
		v1alpha1.RewindBoth:         flags.Bool("both", false, "The files, the conversation and the agent's own state; short for --scope Both."),
	}
	o.children = enum(cmd, "children", string(v1alpha1.ChildrenKeep), "What becomes of a supervisor's children. With Rewind, --to names a set that \"checkpoint create --contract\" has taken, and each child in it follows.",
		string(v1alpha1.ChildrenKeep), string(v1alpha1.ChildrenRewind))
	_ = cmd.RegisterFlagCompletionFunc("to", o.completeTargetOf)
	_ = cmd.RegisterFlagCompletionFunc("to-commit", o.completeCommitOf)
	o.addCommonFlags(cmd, "the task is rewound")
}

// addCommonFlags adds the flags that rewind and undo have in common. until completes the
// sentence "Wait until …".
func (o *rewind) addCommonFlags(cmd *cobra.Command, until string) {
	flags := cmd.Flags()
	flags.StringVar(&o.branch, "branch", "", "Name of the branch that keeps the current state. Defaults to clew/before-ID.")
	o.preserve = enum(cmd, "preserve", string(v1alpha1.PreserveBranch), "How to keep the current state in the agent's repository.",
		string(v1alpha1.PreserveBranch), string(v1alpha1.PreserveStash), string(v1alpha1.PreserveDiscard))
	o.onDrift = driftFlag(cmd)
	o.whenRunning = enum(cmd, "when-running", string(v1alpha1.WhenRunningStop), "Whether a running agent is stopped for the rewind.",
		string(v1alpha1.WhenRunningStop), string(v1alpha1.WhenRunningRefuse))
	flags.BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	o.wait.add(cmd, until)
	o.dryRun.add(cmd)
	o.print = o.printFlags(cmd)
}

func (o *rewind) run(ctx context.Context, cmd *cobra.Command, name string) error {
	hintAtFlags(o.ErrOut, cmd, o.paths)
	if err := o.check(cmd, name); err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	if err := checkRewindable(task); err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, name)
	if err != nil {
		return err
	}
	target, err := o.target(ctx, s, task, list)
	if err != nil {
		return err
	}
	if err := o.checkSet(task, target); err != nil {
		return err
	}
	id, err := o.newID()
	if err != nil {
		return err
	}
	effect, err := s.effectOf(ctx, task, o.params(target, id))
	if err != nil {
		return err
	}
	w := o.previewOf(&o.dryRun, o.print)
	if err := o.preview(w, task, list, target, id, effect); err != nil {
		return err
	}
	if err := o.previewChildren(ctx, s, w, task, target, id); err != nil {
		return err
	}
	if err := cmp.Or(o.driftFails(task), effect.fails(!o.dryRun.changes())); err != nil {
		return err
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Rewind?"); err != nil {
			return err
		}
	}
	return o.request(ctx, s, task, target, id)
}

// check rejects missing and contradictory flags.
func (o *rewind) check(cmd *cobra.Command, name string) error {
	given := 0
	for _, flag := range []string{"to", "to-message", "to-time", "back", "to-commit"} {
		if cmd.Flags().Changed(flag) {
			given++
		}
	}
	scopes := 0
	for scope, set := range o.only {
		if *set {
			o.scope.value = string(scope)
			scopes++
		}
	}
	switch {
	case scopes > 1, scopes == 1 && cmd.Flags().Changed("scope"):
		return errors.New("use only one of --code, --conversation, --both and --scope: each of them says what to rewind")
	case given == 0, given == 1 && cmd.Flags().Changed("to") && o.to == "":
		return fmt.Errorf("set the target with --to CHECKPOINT, --to NUMBER, --to base, --to latest, --to-message N, --to-time T, --back N or --to-commit ID; `kubectl clew checkpoint list %s` and `kubectl clew task history %s` show the possible targets", name, name)
	case given > 1:
		return errors.New("use only one of --to, --to-message, --to-time, --back and --to-commit: each of them sets the target")
	case cmd.Flags().Changed("to-message") && o.toMessage < 1:
		return fmt.Errorf("--to-message is %d; it must be the position of a message, at least 1", o.toMessage)
	case cmd.Flags().Changed("back") && o.back < 1:
		return fmt.Errorf("--back is %d; it must be the number of messages to drop, at least 1", o.back)
	}
	if err := o.checkBranch(); err != nil {
		return err
	}
	return o.checkFiles(cmd)
}

// checkBranch rejects a branch that cannot preserve the current state.
func (o *rewind) checkBranch() error {
	switch {
	case o.branch != "" && o.preserve.value != string(v1alpha1.PreserveBranch):
		return fmt.Errorf("--branch names the branch that --preserve Branch creates; remove --branch or --preserve %s", o.preserve.value)
	case o.branch != "":
		if err := refname.CheckBranch(o.branch); err != nil {
			return fmt.Errorf("--branch is %q: %w; use a branch name such as before/refactoring", o.branch, err)
		}
	}
	return nil
}

// request writes the rewind to the task, and waits for its end unless --wait=false is set.
func (o *rewind) request(ctx context.Context, s *session, task *v1alpha1.Task, target *rewindTarget, id string) error {
	name := task.Name
	requested := map[string]any{
		"id": id, "to": target.patch(),
		"scope": o.scopePatch(), "preserve": o.preserve.value, "branch": orNull(o.branch), "onDrift": o.onDrift.value, "whenRunning": o.whenRunning.value,
		"paths": o.pathsPatch(), "children": o.childrenPatch(),
	}
	if o.dryRun.client {
		return o.printUnsent(task, target, requested)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"rewind": requested}})
	if err != nil {
		return err
	}
	if err := o.dryRun.merge(ctx, s.client, task, patch); err != nil {
		return s.explain(err, "task", name)
	}
	outcome, known, onDrift := target.requested(), task.Status.UndecidedDrift(), v1alpha1.OnDrift(o.onDrift.value)
	if o.wait.wait && o.dryRun.changes() {
		task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, func(t *v1alpha1.Task) verdict { return judgeRewind(t, id) })
		if err != nil {
			return err
		}
		ended := task.Status.Rewind
		outcome = o.subject() + rewindOutcome(ended, v1alpha1.PreserveMode(o.preserve.value), target, discarded(task, ended, onDrift, known))
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", name, outcome, o.dryRun.suffix())
	return nil
}

// printUnsent prints what a client-side dry run would have requested.
func (o *rewind) printUnsent(task *v1alpha1.Task, target *rewindTarget, requested map[string]any) error {
	text, err := json.Marshal(requested)
	if err != nil {
		return err
	}
	task.Spec.Rewind = &v1alpha1.Rewind{}
	if err := json.Unmarshal(text, task.Spec.Rewind); err != nil {
		return err
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", task.Name, target.requested(), o.dryRun.suffix())
	return nil
}

// preview prints what the rewind will do.
func (o *rewind) preview(w io.Writer, task *v1alpha1.Task, list *v1alpha1.CheckpointList, target *rewindTarget, id string, effect rewindEffect) error {
	style := styleFor(w)
	scope := v1alpha1.RewindScope(o.scope.value)
	rows := target.rows(o.plugin, scope)
	if o.to == historyv1.WordBase {
		rows = append(rows, ownStart(task)...)
	}
	if target.named {
		rows = append(rows, effect.movedBack(target.checkpoint)...)
	}
	if target.checkpoint != nil {
		rows = append(rows, []string{"  newer checkpoints", newerCheckpoints(task, list, target.checkpoint)})
	}
	rows = append(rows, []string{"  rewinds", rewinds(scope, o.paths)})
	if goes := effect.conversation(); len(goes) > 0 {
		rows = append(rows, goes...)
	} else if kept, known := target.keptMessages(scope); known {
		text := fmt.Sprintf("keeps %d of %s", kept, plural(max(task.Status.MessageCount, target.messages()), "message"))
		if !target.named && scope == v1alpha1.RewindBoth {
			text += ", as at the checkpoint"
		}
		rows = append(rows, []string{"  conversation", text})
	}
	rows = append(rows, driftRow("rewind", task, v1alpha1.OnDrift(o.onDrift.value))...)
	rows = append(rows, []string{"  preserves", o.preserved(task, id, effect)})
	if target.field != "commit" {
		rows = append(rows, branchesGo(scope, o.paths)...)
	}
	rows = append(rows, []string{"  the agent", o.afterwards(task)})
	rows = append(rows, effect.stopped()...)
	fmt.Fprintln(w, style.bold("Rewind of task "+task.Name))
	if err := table(w, nil, append(rows, effect.changes(style)...)); err != nil {
		return err
	}
	return effect.printFiles(w, style)
}

// rewinds describes what a rewind changes, and what it leaves alone.
func rewinds(scope v1alpha1.RewindScope, paths []string) string {
	switch scope {
	case v1alpha1.RewindCode:
		return filesAt(paths) + "; the agent's own state and the conversation stay as they are"
	case v1alpha1.RewindConversation:
		return "the conversation and the agent's own state; the files stay as they are"
	}
	return "the files, the agent's own state and the conversation"
}

// branchesGo returns the row about branches that a rewind of the agent's repository does not keep;
// none if the rewind leaves the repository alone.
func branchesGo(scope v1alpha1.RewindScope, paths []string) [][]string {
	if scope == v1alpha1.RewindConversation || len(paths) > 0 {
		return nil
	}
	return [][]string{{"  branches", "of the agent's repository, its tags and stashes become the checkpoint's; newer ones are only in the checkpoint of the current state"}}
}

// newerCheckpoints counts the checkpoints after the target. A rewind keeps them.
func newerCheckpoints(task *v1alpha1.Task, list *v1alpha1.CheckpointList, target *v1alpha1.Checkpoint) string {
	newer := map[int64]bool{} // several Checkpoint objects can have the same number
	for _, c := range list.Items {
		if c.Status.Number > target.Status.Number && (c.Status.TaskUID == "" || c.Status.TaskUID == string(task.UID)) {
			newer[c.Status.Number] = true
		}
	}
	if len(newer) == 0 {
		return "none: this is the latest checkpoint"
	}
	if len(newer) == 1 {
		return "1 checkpoint, which is kept"
	}
	return plural(int64(len(newer)), "checkpoint") + ", all of which are kept"
}

// preserved describes how the rewind keeps the current state.
func (o *rewind) preserved(task *v1alpha1.Task, id string, effect rewindEffect) string {
	always := "the current state as a checkpoint"
	if o.onDrift.value == string(v1alpha1.OnDriftOverride) && !active(task) {
		always = "the current state, without what is discarded, as a checkpoint"
	}
	mode := v1alpha1.PreserveMode(o.preserve.value)
	if effect.RewindPreview != nil {
		mode = v1alpha1.PreserveMode(effect.Keeps.Preserve) // none is needed if the files stay
	}
	switch mode {
	case v1alpha1.PreserveBranch:
		if o.branch == "" && !o.dryRun.changes() && !prints(o.print) {
			id = "ID" // the rewind itself will have another id
		}
		return fmt.Sprintf("%s, and as branch %s in the agent's repository", always, daemonapi.PreservedBranch(o.branch, id))
	case v1alpha1.PreserveStash:
		return always + ", and as a stash in the agent's repository"
	}
	return always + " only"
}

// afterwards describes what becomes of the agent.
func (o *rewind) afterwards(task *v1alpha1.Task) string {
	if active(task) {
		return stoppedFirst(task)
	}
	return "is not running, and stays stopped until `kubectl clew resume " + task.Name + " -n " + task.Namespace + "`"
}

// stoppedFirst says what becomes of the agent of a task that runs, which goes back and continues.
func stoppedFirst(task *v1alpha1.Task) string {
	state := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded).Reason
	return "is stopped first, then continues from there (the task is " + state + " now)"
}

// judgeRewind is done once the rewind with that id is completed.
func judgeRewind(task *v1alpha1.Task, id string) verdict {
	operation := task.Status.Rewind
	if operation == nil || operation.ID != id {
		return verdict{state: "rewind requested"}
	}
	switch operation.State {
	case v1alpha1.OperationCompleted:
		return verdict{done: true, state: "rewound"}
	case v1alpha1.OperationRefused, v1alpha1.OperationFailed:
		return verdict{err: operationError("rewind", task, operation)}
	}
	return verdict{state: cmp.Or(operation.Message, taskState(task))}
}

// rewindOutcome describes where a rewind went, what drift it has discarded, and where the previous
// state is kept. How the target was found is in the status of the task.
func rewindOutcome(operation *v1alpha1.OperationStatus, preserve v1alpha1.PreserveMode, target *rewindTarget, discarded *v1alpha1.DriftStatus) string {
	text := fmt.Sprintf("rewound to checkpoint %d", operation.ToCheckpoint)
	switch {
	case target.field == "commit":
		text = "rewound to " + target.text
	case target.field == undoField:
		text = fmt.Sprintf("%s undone: %s", rewindName(target.value), text)
	case !target.named && operation.ToPosition > 0:
		text = fmt.Sprintf("rewound to message %d", operation.ToPosition)
		if operation.ToCheckpoint > 0 {
			text += fmt.Sprintf(" and checkpoint %d", operation.ToCheckpoint)
		}
	}
	previous := "the previous state"
	if discarded != nil {
		text += "; discarded " + changedMeanwhile(discarded)
		previous += ", without these changes,"
	}
	return text + keptAs(previous, operation, preserve)
}

// keptAs says as what an operation has kept the state before it; "" if it has not.
func keptAs(previous string, operation *v1alpha1.OperationStatus, preserve v1alpha1.PreserveMode) string {
	text := ""
	if operation.FromCheckpoint > 0 {
		text = fmt.Sprintf("; %s is kept as checkpoint %d", previous, operation.FromCheckpoint)
	}
	if operation.Preserved != "" {
		text += fmt.Sprintf(" and %s %s", strings.ToLower(string(preserve)), oneLine(operation.Preserved))
	}
	return text
}

// confirm asks a question, and fails unless the answer is yes.
func (p *plugin) confirm(question string) error {
	if !p.asks {
		return fmt.Errorf("a confirmation is needed, but there is no terminal to ask %q: add --yes to proceed, or --dry-run=server to only check the request", question)
	}
	fmt.Fprintf(p.ErrOut, "%s [y/N] ", question)
	answer, err := bufio.NewReader(p.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("cancelled: nothing was changed")
}
