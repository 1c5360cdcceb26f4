package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// drift holds the flags of `drift`.
type drift struct {
	*plugin
	output         *enumFlag
	stat, nameOnly bool
}

func (p *plugin) driftCommand() *cobra.Command {
	o := &drift{plugin: p}
	cmd := &cobra.Command{
		Use:   "drift TASK",
		Short: "Show what was changed while a task was not running",
		Long: `Show which files of a task were changed on its volume while it was not running, and how:
compared with the checkpoint that Clew had left there. They are compared when a pod of the
task starts, so what was changed since then is not shown. A task that finds such a change
when it is resumed or rewound waits for a decision about it, unless the request says what
to do (--on-drift).`,
		Example: `  # What was changed, as a patch, and as a summary
  kubectl clew drift fix-login
  kubectl clew drift fix-login --stat

  # Keep the changes, or discard them
  kubectl clew resume fix-login --on-drift preserve
  kubectl clew resume fix-login --on-drift override`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVar(&o.stat, "stat", false, "Print each file with its lines.")
	cmd.Flags().BoolVar(&o.nameOnly, "name-only", false, "Print only the paths of the files.")
	o.output = formatFlag(cmd, "patch", "json", "yaml")
	return cmd
}

func (o *drift) run(ctx context.Context, name string) error {
	if o.stat && o.nameOnly {
		return errors.New("use only one of --stat and --name-only: each of them says what to print")
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	found := task.Status.Drift
	switch {
	case found == nil:
		fmt.Fprintln(o.ErrOut, nothingFound(task))
		found = &v1alpha1.DriftStatus{}
	case o.output.value == "patch":
		o.summarize(task, found, s.driftKept(ctx, task, found))
	}
	switch {
	case o.output.value != "patch":
		return o.printRaw(o.output.value, found)
	case found.FileCount == 0:
		return nil
	case found.Commit == "":
		return o.list(found)
	}
	return o.compare(ctx, s, task)
}

// driftKept returns the number of the checkpoint that keeps what has drifted; 0 if none does, or its
// object is not there.
func (s *session) driftKept(ctx context.Context, task *v1alpha1.Task, found *v1alpha1.DriftStatus) int64 {
	list, err := s.checkpoints(ctx, task.Name)
	if err != nil {
		return 0
	}
	for _, c := range list.Items {
		if c.Status.Trigger == v1alpha1.TriggerDrift && c.Status.Attempt == found.Attempt && c.Status.TaskUID == string(task.UID) {
			return c.Status.Number
		}
	}
	return 0
}

// summarize says what was found, and what to do. kept is the checkpoint that keeps it; 0 if that is
// not known.
func (o *drift) summarize(task *v1alpha1.Task, found *v1alpha1.DriftStatus, kept int64) {
	w, style := o.ErrOut, styleFor(o.ErrOut)
	if found.FileCount > 0 {
		fmt.Fprintf(w, "%s since checkpoint %d\n", style.bold(plural(found.FileCount, "file")+" of task "+task.Name+" changed while it was not running"), found.Checkpoint)
	}
	if found.Head != nil && found.ExpectedHead != nil {
		fmt.Fprintf(w, "the HEAD of its repository was moved from %s to %s\n", head(found.ExpectedHead), head(found.Head))
	}
	fmt.Fprint(w, decided(task, found, kept))
}

// decided says what became of the drifted files, or how to decide about them.
func decided(task *v1alpha1.Task, found *v1alpha1.DriftStatus, kept int64) string {
	if found.FileCount == 0 {
		return ""
	}
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskDrifted)
	switch {
	case c != nil && c.Reason == v1alpha1.EventDriftOverridden:
		return fmt.Sprintf("attempt %d discarded these changes: they are not kept\n", found.Attempt)
	case c != nil && c.Reason == v1alpha1.EventDriftPreserved && kept > 0:
		return fmt.Sprintf("attempt %d kept these changes as checkpoint %d: `kubectl clew diff %s previous %[2]d -n %[4]s` shows them\n", found.Attempt, kept, task.Name, task.Namespace)
	case c != nil && c.Reason == v1alpha1.EventDriftPreserved:
		return fmt.Sprintf("attempt %d kept these changes as a checkpoint\n", found.Attempt)
	case found.Commit == "" && (c == nil || c.Status != metav1.ConditionTrue):
		return ""
	}
	text := fmt.Sprintf("`kubectl clew resume %s --on-drift preserve` keeps the changes, `--on-drift override` discards them\n", task.Name)
	if task.Status.PromptKeptByDrift(task.Spec.Resume) {
		text += "repeat `--prompt`, too: the agent has not got the prompt of the resume that failed\n"
	}
	return text
}

// nothingFound says since when nothing is known to have drifted.
func nothingFound(task *v1alpha1.Task) string {
	later := "what was changed since then is found when the task next starts"
	if active(task) {
		later = "what is changed while it does not run is found when it next starts"
	}
	for _, a := range slices.Backward(task.Status.Attempts) {
		// Others have not come so far, or nobody knows.
		if a.Memory != "" || a.AgentStartTime != nil || a.Outcome == v1alpha1.AttemptCompleted || a.Outcome == v1alpha1.AttemptAgentFailed || a.Outcome == v1alpha1.AttemptRewound {
			return fmt.Sprintf("nothing of task %s was found changed when attempt %d started; %s", task.Name, a.Number, later)
		}
	}
	return fmt.Sprintf("nothing of task %s is known to have changed while it was not running: that is found when it next starts", task.Name)
}

// head names the commit and the branch of a HEAD.
func head(h *v1alpha1.HeadStatus) string {
	text := "no commit"
	if h.Commit != "" {
		text = "commit " + clip.Bytes(oneLine(h.Commit), 12)
	}
	if h.Branch != "" {
		text += " of branch " + oneLine(h.Branch)
	}
	return text
}

// list prints the files that the status names.
func (o *drift) list(found *v1alpha1.DriftStatus) error {
	for _, f := range found.Files {
		text := oneLine(f.Path)
		if !o.nameOnly {
			text = change(historyv1.FileDiff{Path: f.Path, Action: string(f.Action)})
		}
		if _, err := fmt.Fprintln(o.Out, text); err != nil {
			return err
		}
	}
	if more := found.FileCount - int64(len(found.Files)); more > 0 {
		fmt.Fprintf(o.ErrOut, "and %s\n", plural(more, "more file"))
	}
	return nil
}

// compare prints how the files differ from the checkpoint.
func (o *drift) compare(ctx context.Context, s *session, task *v1alpha1.Task) error {
	d := &diff{plugin: o.plugin, stat: o.stat, nameOnly: o.nameOnly, output: o.output}
	params := url.Values{"from": {historyv1.WordPrevious}, "to": {historyv1.WordDrift}, "ignored": {"true"}, "uid": {string(task.UID)}}
	print := d.printPatch
	switch {
	case o.stat:
		print = d.printStat
	case o.nameOnly:
		print = d.printNames
	}
	err := print(ctx, s, task.Name, params)
	if missing := (*notInHistory)(nil); errors.As(err, &missing) {
		_, _ = io.WriteString(o.ErrOut, "how they differ is not known any more: "+missing.message+"\n")
		return o.list(task.Status.Drift)
	}
	return err
}
