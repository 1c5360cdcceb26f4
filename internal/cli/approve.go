package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// approve holds the flags of `approve` and `deny`.
type approve struct {
	*plugin
	answer v1alpha1.Answer
	reason string
	wait   waitFlags
	dryRun dryRunFlag
	print  *genericclioptions.PrintFlags
}

func (p *plugin) approveCommand() *cobra.Command {
	o := &approve{plugin: p, answer: v1alpha1.AnswerApprove}
	return o.command(&cobra.Command{
		Use:   "approve TASK [REQUEST]",
		Short: "Let a tool call run that waits for an answer",
		Long: `Let a tool call run that waits for an answer, since a rule of the task has a person
asked about it (spec.checkpointPolicy.beforeRiskyTools with the action Ask). The request
can be left out if only one call waits; if several do, the command lists them. An answer
counts once. You need the verb approve on the Task.`,
		Example: `  # The only call that waits
  kubectl clew approve fix-login --reason "checked the diff"

  # One of several, by the beginning of its id
  kubectl clew approve fix-login 3-9f86`,
	})
}

func (p *plugin) denyCommand() *cobra.Command {
	o := &approve{plugin: p, answer: v1alpha1.AnswerDeny}
	return o.command(&cobra.Command{
		Use:        "deny TASK [REQUEST]",
		SuggestFor: []string{"reject", "refuse"},
		Short:      "Refuse a tool call that waits for an answer",
		Long: `Refuse a tool call that waits for an answer, since a rule of the task has a person
asked about it (spec.checkpointPolicy.beforeRiskyTools with the action Ask). The agent is
told the reason, and goes on. The request can be left out if only one call waits; if
several do, the command lists them. You need the verb approve on the Task.`,
		Example: `  # Say what to do in its place
  kubectl clew deny fix-login --reason "push to a branch of your own"`,
	})
}

func (o *approve) command(cmd *cobra.Command) *cobra.Command {
	cmd.Args = theFirst("TASK", "REQUEST")
	cmd.ValidArgsFunction = o.completeRequest
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) }
	cmd.Flags().StringVar(&o.reason, "reason", "", "Why, for the agent and the timeline.")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.NoFileCompletions)
	o.wait.add(cmd, "the answer is taken")
	o.dryRun.add(cmd)
	o.print = o.printFlags(cmd)
	return cmd
}

func (o *approve) run(ctx context.Context, args []string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	var task *v1alpha1.Task
	var id string
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if task, err = s.task(ctx, args[0]); err != nil {
			return err
		}
		request, err := o.request(task, args[1:])
		if err != nil {
			return err
		}
		id = request.ID
		old := task.DeepCopy()
		o.decide(task, id)
		return o.dryRun.patch(ctx, s.client, task, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you are not allowed to answer: %s; ask an administrator of the namespace, whose role admin has the verb approve on tasks", lowerFirst(message(err)))
	}
	if err != nil {
		return s.explain(err, "task", args[0])
	}
	outcome := "answer requested"
	if o.wait.wait && o.dryRun.changes() {
		judge := func(t *v1alpha1.Task) verdict { return o.judge(t, id) }
		if task, err = await(ctx, s, o.wait, "task", &v1alpha1.TaskList{}, task, judge); err != nil {
			return err
		}
		outcome = o.done()
	}
	if done, err := o.printed(o.print, task); done {
		return err
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s request %s: %s%s\n", task.Name, id, outcome, o.dryRun.suffix())
	return nil
}

// done says what has become of the request.
func (o *approve) done() string {
	if o.answer == v1alpha1.AnswerApprove {
		return "approved"
	}
	return "denied"
}

// decide adds the decision. When there is no room for it, those that were followed leave it.
func (o *approve) decide(task *v1alpha1.Task, id string) {
	if len(task.Spec.Decisions) >= v1alpha1.MaxDecisions {
		task.Spec.Decisions = slices.DeleteFunc(task.Spec.Decisions, func(d v1alpha1.Decision) bool {
			return slices.Contains(task.Status.HandledDecisions, d.RequestID)
		})
	}
	task.Spec.Decisions = append(task.Spec.Decisions, v1alpha1.Decision{RequestID: id, Answer: o.answer, Reason: o.reason})
}

// waitingRequests returns the requests of a task that have no answer.
func waitingRequests(task *v1alpha1.Task) []v1alpha1.ToolRequest {
	return slices.DeleteFunc(slices.Clone(task.Status.Requests), func(r v1alpha1.ToolRequest) bool { return r.Answer != nil })
}

// request returns the request that is named, by its id or the beginning of that, or else the only one
// that waits.
func (o *approve) request(task *v1alpha1.Task, named []string) (v1alpha1.ToolRequest, error) {
	waiting := waitingRequests(task)
	found := waiting
	if len(named) > 0 {
		found = slices.DeleteFunc(slices.Clone(waiting), func(r v1alpha1.ToolRequest) bool { return !strings.HasPrefix(r.ID, named[0]) })
		for _, r := range task.Status.Requests {
			if r.ID == named[0] && r.Answer != nil {
				return r, fmt.Errorf("request %s of task %s has its answer already: %s, by %s", r.ID, task.Name, r.Answer.Answer, oneLine(r.Answer.By))
			}
		}
	}
	switch {
	case len(waiting) == 0:
		return v1alpha1.ToolRequest{}, fmt.Errorf("no tool call of task %s waits for an answer: `kubectl clew timeline %[1]s -n %s` shows what was asked and answered", task.Name, task.Namespace)
	case len(found) == 0:
		return v1alpha1.ToolRequest{}, fmt.Errorf("task %s has no request %q that waits for an answer; those that do are:\n%s", task.Name, oneLine(named[0]), o.listed(waiting))
	case len(found) > 1:
		return v1alpha1.ToolRequest{}, fmt.Errorf("%d tool calls of task %s wait for an answer: name one of these requests\n%s", len(found), task.Name, o.listed(found))
	case slices.ContainsFunc(task.Spec.Decisions, func(d v1alpha1.Decision) bool { return d.RequestID == found[0].ID }):
		return found[0], fmt.Errorf("spec.decisions of task %s names request %s already: either it is about to be followed, or it was added before the call waited, and counts no more: then remove it, and try again", task.Name, found[0].ID)
	}
	return found[0], nil
}

// listed lists requests.
func (o *approve) listed(requests []v1alpha1.ToolRequest) string {
	var rows [][]string
	for _, r := range requests {
		rows = append(rows, []string{oneLine(r.ID), oneLine(r.Tool), o.age(&r.Since), o.stamp(r.Deadline.Time), clip.Runes(oneLine(r.Input), 80)})
	}
	var b strings.Builder
	_ = table(&b, []string{"REQUEST", "TOOL", "WAITS", "DENIED-AT", "INPUT"}, rows)
	return strings.TrimRight(b.String(), "\n")
}

// judge is done once the answer is taken.
func (o *approve) judge(task *v1alpha1.Task, id string) verdict {
	i := slices.IndexFunc(task.Status.Requests, func(r v1alpha1.ToolRequest) bool { return r.ID == id })
	switch {
	case i >= 0 && task.Status.Requests[i].Answer != nil:
		if given := task.Status.Requests[i].Answer; given.Answer != o.answer {
			return verdict{err: fmt.Errorf("request %s had another answer before: %s, by %s", id, given.Answer, oneLine(given.By))}
		}
		return verdict{done: true}
	case slices.Contains(task.Status.HandledDecisions, id) && i < 0:
		return verdict{done: true}
	case i < 0 && task.Status.ObservedGeneration >= task.Generation:
		return verdict{err: fmt.Errorf("request %s waits for an answer no longer: `kubectl clew timeline %s -n %s` shows why", id, task.Name, task.Namespace)}
	}
	return verdict{state: "the answer was sent"}
}

// completeRequest completes the name of a task, and then the id of a request.
func (o *approve) completeRequest(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return o.completeTask(cmd, args, prefix)
	}
	return o.names(func(ctx context.Context, s *session) (found []string, err error) {
		task, err := s.task(ctx, args[0])
		if err != nil {
			return nil, err
		}
		for _, r := range waitingRequests(task) {
			if strings.HasPrefix(r.ID, prefix) {
				found = append(found, cobra.CompletionWithDesc(r.ID, clip.Runes(oneLine(r.Tool+" "+r.Input), 60)))
			}
		}
		return found, nil
	})
}
