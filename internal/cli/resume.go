package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/reason"
)

// resume holds the flags of `resume`.
type resume struct {
	*plugin
	prompt string
	added  string
	mode   *enumFlag
	clean  bool
	from   string
	// restart is set if a phase begins again, and phase is its name; the current one if that is empty.
	restart bool
	phase   string
	context contextFlags
	onDrift *enumFlag
	place   *enumFlag
	// deadline is the task's new deadlineSeconds; 0 to leave it as it is.
	deadline int64
	// budget are limits of the task's budget to set, by the names of their fields.
	budget   map[string]int64
	contract resumeContract
	yes      bool
	wait     waitFlags
	dryRun   dryRunFlag
	print    *genericclioptions.PrintFlags
}

// resumeExample are the examples in the help of `resume`.
const resumeExample = `  # Resume
  kubectl clew resume fix-login

  # Resume with a new prompt; a completed task needs one
  kubectl clew resume fix-login --prompt "The tests need Postgres 15."

  # Keep the code, and forget the conversation
  kubectl clew resume fix-login --clean --prompt "Review the code."

  # Go back to checkpoint 3, and continue from there
  kubectl clew resume fix-login --from-checkpoint 3 --prompt "Use the other library."

  # After its deadline: let the agent run for two hours in all
  kubectl clew resume fix-login --deadline-seconds 7200

  # After its budget: let it spend ten dollars and 500 tool calls in all
  kubectl clew resume fix-login --budget costMicroUSD=10000000,toolCalls=500

  # After the budget of a contract: let its tasks spend 40 dollars in all, and resume
  # the supervisor with each task that it has stopped
  kubectl clew resume lead --contract-budget costMicroUSD=40000000 --with-contract

  # Only show what that would do
  kubectl clew resume fix-login --from-checkpoint 3 --dry-run=client

  # In a script
  kubectl clew resume fix-login --from-checkpoint 3 --yes

  # Move to another node
  kubectl clew resume fix-login --placement otherNode

  # If the agent cannot resume its session: give it the last 20 messages, and little tool output
  kubectl clew resume fix-login --context-messages 20 --context-result-bytes 200

  # Have a supervisor begin the phase Execute again, whether or not it runs
  kubectl clew resume lead --mode RestartPhase --phase Execute

  # If the files were edited meanwhile: keep the edits as a checkpoint, and continue with them
  kubectl clew resume fix-login --on-drift preserve`

func (p *plugin) resumeCommand() *cobra.Command {
	o := &resume{plugin: p}
	cmd := &cobra.Command{
		Use:   "resume TASK",
		Short: "Resume a stopped task, or give a completed one its next prompt",
		Long: `Resume a suspended, rewound or failed task from its current state, with its code
and its conversation. A suspended task is set to Running by the same request. A
completed task continues when it gets a new prompt.

With --clean the agent continues with the code as it is, in a new conversation: it
gets its prompt and nothing else, and the former conversation is kept. With
--from-checkpoint code and conversation are rewound to a checkpoint first; what is
there now is kept as a branch and as a checkpoint. Before that, it shows which files
change and which messages go.

With --mode RestartPhase a supervisor goes back to the checkpoint with which the current
phase of its contract began, or that in --phase. One that runs is stopped first; its
children go on until the phase begins again. It is told what those that have finished have
come to; those that have not are stopped, and kept.

The budget of a contract stops all of its tasks. Of their supervisor, --contract-budget
raises it and resumes the supervisor by one request, and the command names the tasks that
still wait, with the command for each; with --with-contract it resumes them as well. It
waits for the supervisor alone. If that works already, it is left as it is: repeat the
command if it was interrupted.

An agent that can resume its own session remembers everything. Other agents get
the conversation in their prompt, within the limits that the task sets, or that
the --context flags set for this resume only.`,
		Example:           resumeExample,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0])
		},
	}
	o.addFlags(cmd)
	return cmd
}

// addFlags adds the flags of `resume`.
func (o *resume) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.prompt, "prompt", "", "Next prompt for the agent.")
	cmd.Flags().StringVar(&o.added, "additional-context", "", "Text that the agent gets below the prompt.")
	o.mode = enum(cmd, "mode", string(v1alpha1.ResumeContinue), "Where the task continues; FromCheckpoint needs --from-checkpoint, which alone is enough.",
		string(v1alpha1.ResumeContinue), string(v1alpha1.ResumeClean), string(v1alpha1.ResumeFromCheckpoint), string(v1alpha1.ResumeRestartPhase))
	cmd.Flags().StringVar(&o.phase, "phase", "", "With --mode RestartPhase: the phase that begins again, the current one when left out.")
	cmd.Flags().BoolVar(&o.clean, "clean", false, "Continue with the code as it is, in a new conversation; short for --mode Clean.")
	cmd.Flags().StringVar(&o.from, "from-checkpoint", "", "Continue from this checkpoint: its number, latest, or the name of its object.")
	_ = cmd.RegisterFlagCompletionFunc("from-checkpoint", o.completeCheckpointOf)
	o.context.add(cmd)
	o.onDrift = driftFlag(cmd)
	o.place = enum(cmd, "placement", string(v1alpha1.PlacementAny), "Where to run: on any node, or on another one than last time.",
		string(v1alpha1.PlacementAny), string(v1alpha1.PlacementOtherNode))
	cmd.Flags().Int64Var(&o.deadline, "deadline-seconds", 0, "Set the task's deadlineSeconds by the same request: how long the agent may run in all attempts together, including what it has run.")
	cmd.Flags().StringToInt64Var(&o.budget, "budget", nil, "Set limits of the task's budget by the same request, such as toolCalls=500: what it may spend in all attempts together, including what it has spent. Others stay as they are. That of a contract is --contract-budget.")
	o.contract.add(cmd)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "With --from-checkpoint, --mode RestartPhase or --on-drift override: do not ask for confirmation.")
	o.wait.add(cmd, "the agent runs again")
	o.dryRun.add(cmd)
	o.print = o.printFlags(cmd)
}

// maxDeadline is the longest deadline that the API accepts: a year, in seconds.
const maxDeadline = 31_536_000

// check rejects missing and contradictory flags.
func (o *resume) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("prompt") && strings.TrimSpace(o.prompt) == "" {
		return errors.New("--prompt is empty; leave it out to continue without a new prompt")
	}
	if cmd.Flags().Changed("deadline-seconds") && (o.deadline < 1 || o.deadline > maxDeadline) {
		return fmt.Errorf("--deadline-seconds is %d; it must be from 1 to %d", o.deadline, maxDeadline)
	}
	return cmp.Or(
		checkLimits("budget", o.budget),
		checkLimits("contract-budget", o.contract.budget),
		notBoth(cmd, "clean", "from-checkpoint", "the one keeps the code and leaves the conversation, the other rewinds both"),
		o.checkMode(cmd.Flags().Changed("mode")),
		o.context.check(),
	)
}

// checkMode brings --mode together with the flags that stand for one.
func (o *resume) checkMode(given bool) error {
	mode := v1alpha1.ResumeMode(o.mode.value)
	o.restart = mode == v1alpha1.ResumeRestartPhase
	switch {
	case mode == v1alpha1.ResumeFromCheckpoint && o.from == "":
		return errors.New("--mode FromCheckpoint needs a checkpoint: name it with --from-checkpoint NUMBER")
	case o.phase != "" && !o.restart:
		return errors.New("--phase goes with --mode RestartPhase only; add that, or leave --phase out")
	case o.restart && o.contract.resumed:
		return errors.New("--mode RestartPhase stops the children that have not finished, and --with-contract resumes them; remove one of the two")
	case given && mode != v1alpha1.ResumeFromCheckpoint && o.from != "":
		return fmt.Errorf("--from-checkpoint is the mode FromCheckpoint; remove it or --mode %s", mode)
	case given && mode != v1alpha1.ResumeClean && o.clean:
		return fmt.Errorf("--clean is the mode Clean; remove it or --mode %s", mode)
	}
	o.clean = o.clean || mode == v1alpha1.ResumeClean
	return nil
}

// goesBack reports whether files and messages go.
func (o *resume) goesBack() bool { return o.from != "" || o.restart }

// driftFlag adds --on-drift to a command.
func driftFlag(cmd *cobra.Command) *enumFlag {
	return enum(cmd, "on-drift", string(v1alpha1.OnDriftFail), "What to do if the files were changed while the task was not running: fail, keep the changes as a checkpoint and continue, or discard them and continue, after which nothing brings them back.",
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
	rest, err := o.contract.rest(ctx, s, task)
	if err != nil {
		return err
	}
	if o.onlyContract(task) {
		return o.runContract(ctx, s, task, rest)
	}
	if err := o.checkResumable(task); err != nil {
		return err
	}
	id, err := o.newID()
	if err != nil {
		return err
	}
	request, err := o.patch(ctx, s, task, id)
	if err != nil {
		return err
	}
	patch, err := o.change(request)
	if err != nil {
		return err
	}
	o.announceDiscarded(task)
	rest.announce(o.previewOf(&o.dryRun, o.print), o.contract.resumed)
	if err := o.agree(); err != nil {
		return err
	}
	failed, err := o.send(ctx, s, task, id, patch, rest)
	if err == nil {
		rest.hint(o.ErrOut, o.contract.resumed)
	}
	return errors.Join(err, failed)
}

// change returns the patch of a Task that requests a resume, with what the resume needs.
func (o *resume) change(request map[string]any) ([]byte, error) {
	spec := o.limits()
	spec["operatingMode"], spec["resume"] = v1alpha1.OperatingModeRunning, request
	return json.Marshal(map[string]any{"spec": spec})
}

// limits returns the limits that are raised, as fields of a Task's spec.
func (o *resume) limits() map[string]any {
	spec := map[string]any{}
	if o.deadline != 0 {
		spec["deadlineSeconds"] = o.deadline
	}
	if len(o.budget) > 0 {
		spec["budget"] = o.budget
	}
	if len(o.contract.budget) > 0 {
		spec["contract"] = map[string]any{"budget": o.contract.budget}
	}
	return spec
}

// send requests the resume, and those of the other tasks of the contract, and waits for its own. What keeps
// others from being resumed is returned apart.
func (o *resume) send(ctx context.Context, s *session, task *v1alpha1.Task, id string, patch []byte, rest *contractRest) (failed, err error) {
	if o.dryRun.client {
		return o.resumeRest(ctx, s, rest), o.printUnsent(task, patch)
	}
	name, known := task.Name, task.Status.UndecidedDrift()
	if err := o.dryRun.merge(ctx, s.client, task, patch); err != nil {
		return nil, s.explain(err, "task", name)
	}
	failed = o.resumeRest(ctx, s, rest)
	outcome := "resume requested"
	if o.wait.wait && o.dryRun.changes() {
		task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, func(t *v1alpha1.Task) verdict { return judgeResume(t, id) })
		if err != nil {
			return failed, err
		}
		outcome = o.outcome(task.Status.Resume, discarded(task, task.Status.Resume, v1alpha1.OnDrift(o.onDrift.value), known))
	}
	if done, err := o.printed(o.print, task); done {
		return failed, err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", name, outcome, o.dryRun.suffix())
	return failed, nil
}

// agree asks before files and messages go, as a rewind does.
func (o *resume) agree() error {
	goes := o.goesBack() || o.onDrift.value == string(v1alpha1.OnDriftOverride)
	if !goes || o.yes || !o.dryRun.changes() {
		return nil
	}
	return o.confirm("Resume?")
}

// outcome describes a resume that is complete, and what drift it has discarded.
func (o *resume) outcome(done *v1alpha1.OperationStatus, discarded *v1alpha1.DriftStatus) string {
	text, previous, kept := "resumed", "the previous state", done.ToCheckpoint > 0
	if kept {
		text = fmt.Sprintf("resumed from checkpoint %d", done.ToCheckpoint)
	}
	if discarded != nil {
		text += "; discarded " + changedMeanwhile(discarded)
		previous += ", without these changes,"
	}
	switch {
	case kept:
		text += keptAs(previous, done, v1alpha1.PreserveBranch)
	case o.clean:
		text += keptAs("the former conversation", done, v1alpha1.PreserveBranch)
	}
	return text
}

// printUnsent prints what a client-side dry run would have requested.
func (o *resume) printUnsent(task *v1alpha1.Task, patch []byte) error {
	task.Spec.Resume = nil // which is replaced as a whole
	if err := json.Unmarshal(patch, task); err != nil {
		return err
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s resume requested%s\n", task.Name, o.dryRun.suffix())
	return nil
}

// patch returns the patch of spec.resume. It removes the fields that an earlier resume set.
func (o *resume) patch(ctx context.Context, s *session, task *v1alpha1.Task, id string) (map[string]any, error) {
	request := emptyResume(id)
	request["prompt"], request["additionalContext"], request["context"] = orNull(o.prompt), orNull(o.added), o.context.patch()
	request["placement"], request["onDrift"] = o.place.value, o.onDrift.value
	switch {
	case o.clean:
		request["mode"] = v1alpha1.ResumeClean
	case o.restart:
		request["mode"], request["phase"] = v1alpha1.ResumeRestartPhase, orNull(o.phase)
		return request, o.previewPhase(ctx, s, task, id)
	case o.from != "":
		list, err := s.checkpoints(ctx, task.Name)
		if err != nil {
			return nil, err
		}
		from, err := s.anyCheckpoint(ctx, list, task, o.from)
		if err != nil {
			return nil, err
		}
		request["mode"] = v1alpha1.ResumeFromCheckpoint
		if from.Name == "" {
			request["checkpointNumber"] = from.Status.Number
		} else {
			request["checkpointRef"] = map[string]any{"name": from.Name}
		}
		return request, o.preview(ctx, s, task, id, from, "")
	}
	return request, nil
}

// emptyResume returns the patch of a resume from where the task is, without the fields of an earlier one.
func emptyResume(id string) map[string]any {
	return map[string]any{
		"id": id, "mode": v1alpha1.ResumeContinue, "checkpointRef": nil, "checkpointNumber": nil, "phase": nil,
		"prompt": nil, "additionalContext": nil, "context": nil,
	}
}

// checkResumable rejects what the API would reject too, but with advice on what to do.
func (o *resume) checkResumable(task *v1alpha1.Task) error {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	switch {
	case succeeded == nil:
		return fmt.Errorf("task %s has not started yet, so there is nothing to resume; check it with `kubectl describe tasks.clew.dev %s -n %s`", task.Name, task.Name, task.Namespace)
	case succeeded.Status == metav1.ConditionTrue && o.prompt == "" && !o.goesBack():
		return fmt.Errorf("task %s is completed, and continues only with a new prompt; give it one with --prompt, or continue from a checkpoint with --from-checkpoint NUMBER", task.Name)
	case active(task) && !heldOff(task) && o.restart && task.Status.Resume != nil && task.Status.Resume.State == v1alpha1.OperationInProgress:
		return fmt.Errorf("resume %s of task %s is in progress; wait until status.resume.state says how it ended, and run the command again", task.Status.Resume.ID, task.Name)
	case active(task) && !heldOff(task) && !o.restart:
		return fmt.Errorf("task %s is already active (%s), so there is nothing to resume; to suspend it first, run `kubectl clew suspend %s -n %s`", task.Name, succeeded.Reason, task.Name, task.Namespace)
	}
	if limit := cmp.Or(o.deadline, ptr.Deref(task.Spec.DeadlineSeconds, 0)); limit != 0 && task.Status.ActiveSeconds >= limit {
		return fmt.Errorf("the agent of task %s has run for %d seconds, and deadlineSeconds is %d: to continue, raise it with --deadline-seconds", task.Name, task.Status.ActiveSeconds, limit)
	}
	own := budget.Budget{Scope: budget.OfTask, Limit: budget.LimitsOf(task.Spec.Budget)}
	if over := exceeded(own, o.budget, task.Status.Spent); over != nil {
		return fmt.Errorf("task %s cannot continue: %s; raise it with --budget %s=NUMBER", task.Name, over, over.Field)
	}
	if over := o.contract.over(task); over != nil {
		return overContract(task, over)
	}
	return nil
}

// heldOff reports whether a resume keeps the task off a node; the API lets another one replace it
// as long as the pod cannot be scheduled.
func heldOff(task *v1alpha1.Task) bool {
	r := task.Status.Resume
	return r != nil && r.AvoidedNode != "" && r.State == v1alpha1.OperationInProgress
}

// stopped reports whether an unfinished task with this reason is at rest.
func stopped(name string) bool { return reason.Find(name).Standing == reason.Resting }

// judgeResume is done once the agent runs again.
func judgeResume(task *v1alpha1.Task, id string) verdict {
	state := taskState(task)
	operation := task.Status.Resume
	if operation == nil || operation.ID != id {
		return verdict{state: "resume requested"}
	}
	switch operation.State {
	case v1alpha1.OperationCompleted:
		return verdict{done: true, state: state}
	case v1alpha1.OperationRefused, v1alpha1.OperationFailed:
		return verdict{err: operationError("resume", task, operation)}
	}
	return verdict{state: state}
}

// taskState describes the state of a task in a few words.
func taskState(task *v1alpha1.Task) string {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if succeeded == nil {
		return "not processed yet"
	}
	if succeeded.Message == "" {
		return succeeded.Reason
	}
	return succeeded.Reason + ": " + succeeded.Message
}

// operationError says why a resume or rewind failed, and what to do.
func operationError(verb string, task *v1alpha1.Task, operation *v1alpha1.OperationStatus) error {
	outcome := map[v1alpha1.OperationState]string{v1alpha1.OperationRefused: "was refused", v1alpha1.OperationFailed: "failed"}[operation.State]
	// The advice of the cluster is in the words of a manifest, and the flags are named below.
	cause, _, _ := strings.Cut(cmp.Or(plain(operation.Message), "no message"), ": resume or rewind with onDrift")
	text := fmt.Sprintf("the %s of task %s %s: %s (%s)", verb, task.Name, outcome, cause, operation.Reason)
	if operation.Reason == v1alpha1.ReasonDriftDetected {
		text += "; " + decideDrift
	}
	if verb == "resume" && task.Status.PromptLost(task.Spec.Resume) {
		text += "; repeat --prompt, too: the agent has not got it"
	}
	return errors.New(text)
}
