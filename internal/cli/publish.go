package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// publish holds the flags of `publish`.
type publish struct {
	*plugin
	branch, when, approve, checkpoint, onDiverged string
	// former is what the status of the Checkpoint's branch was about before.
	former string
	// runs is set if an agent runs, which may have been started without the tool publish.
	runs   bool
	yes    bool
	wait   waitFlags
	dryRun dryRunFlag
	print  *genericclioptions.PrintFlags
}

func (p *plugin) publishCommand() *cobra.Command {
	o := &publish{plugin: p}
	cmd := &cobra.Command{
		Use:        "publish TASK [--branch BRANCH] | --checkpoint CHECKPOINT --branch BRANCH",
		SuggestFor: []string{"push"},
		Short:      "Push a task's work to a branch of its repository",
		Long: `Push a task's work to a branch of its repository, and wait until it is there. A pod of
its own does it, with the repository's credentials, which the agent never sees. What
the agent left uncommitted becomes one commit on top of its own.

The newest checkpoint is published once the task is completed, or as --when says;
until then, the command does not wait. A task that was rewound and waits for a resume is
not completed: name its checkpoint with --checkpoint. The command sets spec.publish of the
Task, of which everything stays that no flag changes. Repeat it to try again what was not
published.

With --when called, a supervisor's agent publishes by its tool, its own work or that of a
child, and nothing is published by itself. The command then sets that and waits for
nothing. If spec.publish.when is Called already, name a checkpoint with --checkpoint, or
set another moment with --when: there would be nothing to wait for.

With --checkpoint, that checkpoint is published at once, whatever state the task is in,
as a branch of the Checkpoint, which --branch has to name; the Task is not changed. It
asks first if the task has published a newer checkpoint as that branch.`,
		Example: `  # Publish the work of a completed task
  kubectl clew publish fix-login --branch clew/fix-login

  # That of a suspended one, for review in Gerrit
  kubectl clew publish fix-login --branch refs/for/main --when suspended

  # Have a supervisor's agent publish when it decides to
  kubectl clew publish lead --branch clew/port-to-go --when called

  # Of such a supervisor, or of one of its children: the latest checkpoint, now
  kubectl clew publish lead --checkpoint latest --branch clew/port-to-go

  # The seventh checkpoint, now
  kubectl clew publish fix-login --checkpoint 7 --branch clew/before-the-refactoring

  # After a review of the protected files that the work changes
  kubectl clew publish fix-login --approve "$(kubectl get task fix-login -o jsonpath='{.status.publish.heldCommit}')"`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.branch, "branch", "", "Branch of the repository. Without --checkpoint, it defaults to that of the task's spec.publish.")
	cmd.Flags().StringVar(&o.when, "when", "", "When to publish: completed, suspended (or completed), checkpoint (the newest, also while the agent works), or called (by the tool of a supervisor's agent).")
	cmd.Flags().StringVar(&o.approve, "approve", "", "Commit to publish although it changes protected files: you have reviewed them. status.publish.heldCommit says which is held.")
	_ = cmd.RegisterFlagCompletionFunc("branch", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("when", cobra.FixedCompletions(publishMoments(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&o.checkpoint, "checkpoint", "", "Checkpoint to publish at once, as the branch that --branch names: its number, latest, or the name of its object.")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "With --checkpoint: do not ask for confirmation.")
	cmd.Flags().StringVar(&o.onDiverged, "on-diverged", "", "What to do if others have pushed to the branch: fail, or force-with-lease to discard theirs. Defaults to what the spec says.")
	_ = cmd.RegisterFlagCompletionFunc("checkpoint", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("on-diverged", cobra.FixedCompletions(divergences(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("approve", cobra.NoFileCompletions)
	o.wait.add(cmd, "the work is published")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

// publishMoments are the values of --when.
func publishMoments() []string { return []string{"completed", "suspended", "checkpoint", "called"} }

func (o *publish) run(ctx context.Context, taskName string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, taskName)
	if err != nil {
		return err
	}
	if o.checkpoint != "" {
		return o.runCheckpoint(ctx, s, task)
	}
	patch, err := o.patch(task)
	if err == nil {
		err = o.everPublished(task)
	}
	if err != nil {
		return err
	}
	n := len(task.Status.Attempts)
	o.runs = n > 0 && task.Status.Attempts[n-1].Outcome == ""
	if err := o.dryRun.merge(ctx, s.client, task, patch); err != nil {
		return s.explain(err, "task", taskName)
	}
	if o.wait.wait && o.dryRun.changes() && o.when != "called" {
		if task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, o.judge); err != nil {
			return err
		}
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", taskName, o.outcome(task), o.dryRun.suffix())
	return nil
}

// patch returns the change of spec.publish. A new id makes Clew try again.
func (o *publish) patch(task *v1alpha1.Task) ([]byte, error) {
	id, err := o.newID()
	if err != nil {
		return nil, err
	}
	spec := map[string]any{"id": id}
	switch {
	case o.branch != "":
		spec["branch"] = o.branch
	case task.Spec.Publish == nil:
		return nil, fmt.Errorf("task %s has no spec.publish: name a branch of its repository with --branch", task.Name)
	}
	if o.when != "" {
		moments := []v1alpha1.PublishWhen{v1alpha1.PublishCompleted, v1alpha1.PublishSuspended, v1alpha1.PublishCheckpoint, v1alpha1.PublishCalled}
		i := slices.Index(publishMoments(), o.when)
		if i < 0 {
			return nil, fmt.Errorf("--when must be one of %s, not %q", strings.Join(publishMoments(), ", "), o.when)
		}
		spec["when"] = moments[i]
	}
	if o.onDiverged != "" {
		if spec["onDiverged"], err = o.divergence(); err != nil {
			return nil, err
		}
	}
	if o.approve != "" {
		held := ptr.Deref(task.Status.Publish, v1alpha1.PublishStatus{})
		if spec["approvedCommit"], err = approved(o.approve, held.HeldCommit, held.Checkpoint); err != nil {
			return nil, err
		}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": task.UID}, "spec": map[string]any{"publish": spec},
	})
}

// everPublished fails if what the task waits for is not going to happen by itself.
func (o *publish) everPublished(task *v1alpha1.Task) error {
	called := task.Spec.Publish != nil && task.Spec.Publish.When == v1alpha1.PublishCalled
	switch {
	case o.when == "called" && task.Spec.Tools != nil && !slices.Contains(task.Spec.Tools, v1alpha1.ToolPublish):
		return fmt.Errorf("the agent of task %s has no tool publish, since spec.tools does not name it, so that nothing would be published: add publish to spec.tools, or choose another --when", task.Name)
	case o.when == "" && called:
		return fmt.Errorf("the agent of task %s publishes by its tool, and nothing else is published (spec.publish.when is Called), so that this would never end: publish a checkpoint with `%s`, or add --when completed, which publishes the task's own work once it has completed",
			task.Name, o.publishNow(task))
	case !o.waitsForResume(task):
		return nil
	}
	return fmt.Errorf("%s, or add --when checkpoint, which publishes each newer checkpoint, too", o.publishAsItIs(task))
}

// waitsForResume reports whether the task's work is not published before somebody resumes it: a task
// that was rewound is neither suspended nor completed, and does not continue by itself.
func (o *publish) waitsForResume(task *v1alpha1.Task) bool {
	always := o.when == "called" || o.when == "checkpoint" || o.when == "" && task.Spec.Publish != nil && task.Spec.Publish.When == v1alpha1.PublishCheckpoint
	return !always && isRewound(task)
}

// publishAsItIs says how to publish the work of a task that waits for a resume.
func (o *publish) publishAsItIs(task *v1alpha1.Task) string {
	return fmt.Sprintf("task %s was rewound and waits for a resume, so that its work would not be published: publish it as it is now with `%s`",
		task.Name, o.publishNow(task))
}

// publishNow returns the command that publishes the task's newest checkpoint at once.
func (o *publish) publishNow(task *v1alpha1.Task) string {
	checkpoint := "NUMBER"
	if latest := task.Status.LatestCheckpoint; latest != nil {
		checkpoint = strconv.FormatInt(latest.Number, 10)
	}
	branch := o.branch
	if branch == "" {
		branch = task.Spec.Publish.Branch
	}
	return fmt.Sprintf("kubectl clew publish %s --checkpoint %s --branch %s -n %s", task.Name, checkpoint, branch, task.Namespace)
}

// isRewound reports whether the task was rewound and waits for a resume.
func isRewound(task *v1alpha1.Task) bool {
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	return c != nil && c.Reason == v1alpha1.ReasonRewound
}

// divergences are the values of --on-diverged.
func divergences() []string { return []string{"fail", "force-with-lease"} }

// divergence returns the API's value of --on-diverged.
func (o *publish) divergence() (v1alpha1.OnDiverged, error) {
	i := slices.Index(divergences(), o.onDiverged)
	if i < 0 {
		return "", fmt.Errorf("--on-diverged must be one of %s, not %q", strings.Join(divergences(), ", "), o.onDiverged)
	}
	return []v1alpha1.OnDiverged{v1alpha1.DivergedFail, v1alpha1.DivergedForceWithLease}[i], nil
}

// approved returns the commit that is held, if the user means that one: what they have not
// seen they do not approve.
func approved(commit, held string, checkpoint int64) (string, error) {
	switch {
	case held == "":
		return "", errors.New("nothing waits for an approval: leave --approve out")
	case len(commit) < minAbbreviation || !strings.HasPrefix(held, commit):
		return "", fmt.Errorf("what waits for an approval is not %s but %s, of checkpoint %d: review that, and approve it with --approve %[2]s", oneLine(commit), held, checkpoint)
	}
	return held, nil
}

// minAbbreviation is the length from which a part of a commit's id names it.
const minAbbreviation = 7

// judge is done once the work is published, or if that has to wait for the task.
func (o *publish) judge(task *v1alpha1.Task) verdict {
	c, p := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskPublished), task.Status.Publish
	switch {
	case c == nil || c.ObservedGeneration < task.Generation:
		return verdict{state: "publishing was requested"}
	case c.Reason == v1alpha1.ReasonPublishPending:
		return verdict{done: true}
	case c.Status == metav1.ConditionTrue:
		return verdict{done: true}
	case c.Status == metav1.ConditionFalse && (p == nil || p.RetryTime == nil):
		return verdict{err: fmt.Errorf("the work was not published: %s (%s)", oneLine(c.Message), c.Reason)}
	}
	return verdict{state: c.Message}
}

// outcome says what is known of publishing.
func (o *publish) outcome(task *v1alpha1.Task) string {
	switch {
	case o.when == "called" && o.runs:
		return "is published whenever its agent calls the tool publish; if it was started without that tool, it has it from its next start on: suspend and resume the task"
	case o.when == "called":
		return "is published whenever its agent calls the tool publish"
	}
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskPublished)
	if !o.dryRun.changes() || !o.wait.wait || c == nil {
		return "publishing requested"
	}
	if c.Reason == v1alpha1.ReasonPublished {
		return "published: " + oneLine(c.Message)
	}
	return "publishing requested: " + oneLine(c.Message)
}
