package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// comparedFiles is how many files of each variant `compare` lists for people.
const comparedFiles = 15

// compare holds the flags of `compare`.
type compare struct {
	*plugin
	output  *enumFlag
	patches bool
	ignored bool
}

func (p *plugin) compareCommand() *cobra.Command {
	o := &compare{plugin: p}
	cmd := &cobra.Command{
		Use:   "compare FORK",
		Short: "Set the tasks of a fork side by side",
		Long: `Set the tasks of a fork side by side: their state, the files and lines that each has
changed since the moment of the fork, and the tokens, cost and time that each has used,
up to its latest checkpoint.

Below the table are the files of each task; --diff prints their whole differences.
Tasks that are deleted are compared as well, while their history is kept.`,
		Example: `  # What the ways on from one moment came to
  kubectl clew compare approaches

  # With all that they changed
  kubectl clew compare approaches --diff

  # Two of them with each other
  kubectl clew diff with-oauth latest with-passkeys:latest`,
		Args:              exactly("FORK"),
		ValidArgsFunction: p.completeFork,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = formatFlag(cmd, "table", "json", "yaml")
	cmd.Flags().BoolVar(&o.patches, "diff", false, "Print the differences whole, not only the names of the files.")
	cmd.Flags().BoolVar(&o.ignored, "ignored", false, "Include ignored files.")
	return cmd
}

// comparison is what `compare` prints as JSON.
type comparison struct {
	Fork       string             `json:"fork"`
	Source     string             `json:"source"`
	Checkpoint int64              `json:"checkpoint"`
	Variants   []*comparedVariant `json:"variants"`
}

// comparedVariant is one task of a fork.
type comparedVariant struct {
	Name         string `json:"name"`
	UID          string `json:"uid,omitempty"`
	State        string `json:"state"`
	Exists       bool   `json:"exists"`
	Agent        string `json:"agent,omitempty"`
	Model        string `json:"model,omitempty"`
	Messages     int64  `json:"messages"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	CostMicroUSD int64  `json:"costMicroUSD"`
	RunSeconds   int64  `json:"runSeconds"`
	// Diff is what it changed since the fork; nil if that is not known, and Problem says why.
	Diff    *historyv1.Diff `json:"diff,omitempty"`
	Problem string          `json:"problem,omitempty"`
}

func (o *compare) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	f, err := s.fork(ctx, name)
	if err != nil {
		return err
	}
	if f.Status.Source == nil {
		return fmt.Errorf("fork %s has made no task yet; see `kubectl describe forks.clew.dev %s -n %s`", name, name, s.namespace)
	}
	c := comparison{Fork: f.Name, Source: f.Spec.SourceRef.Name, Checkpoint: f.Status.Source.Checkpoint}
	for _, v := range f.Spec.Variants {
		found, err := o.variant(ctx, s, f, v.Name)
		if err != nil {
			return err
		}
		c.Variants = append(c.Variants, found)
	}
	if o.output.value != "table" {
		return o.printRaw(o.output.value, c)
	}
	return o.show(c)
}

// fork gets a Fork in the session's namespace.
func (s *session) fork(ctx context.Context, name string) (*v1alpha1.Fork, error) {
	f := &v1alpha1.Fork{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, f)
	return f, s.explain(err, "fork", name)
}

// variant gathers what is known of one task of a fork.
func (o *compare) variant(ctx context.Context, s *session, f *v1alpha1.Fork, name string) (*comparedVariant, error) {
	i := slices.IndexFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == name })
	if i < 0 {
		return &comparedVariant{Name: name, State: "Pending", Problem: "the Fork has not made it yet"}, nil
	}
	found := &comparedVariant{Name: name, UID: f.Status.Tasks[i].UID}
	task := &v1alpha1.Task{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task)
	switch {
	case err == nil && string(task.UID) == found.UID:
		found.ofTask(task, o.clock())
	case client.IgnoreNotFound(err) != nil:
		return nil, s.explain(err, "task", name)
	default:
		found.ofHistory(ctx, s)
	}
	o.addDiff(ctx, s, f, found)
	return found, nil
}

// ofTask takes what the object says.
func (v *comparedVariant) ofTask(task *v1alpha1.Task, now time.Time) {
	node := nodeOf(task)
	v.State, v.Exists, v.Agent, v.Model = node.State, true, node.Agent, node.Model
	v.Messages, v.InputTokens, v.OutputTokens, v.CostMicroUSD = node.Messages, node.InputTokens, node.OutputTokens, node.CostMicroUSD
	for _, a := range task.Status.Attempts {
		end := now
		if a.EndTime != nil {
			end = a.EndTime.Time
		}
		if a.StartTime != nil {
			v.RunSeconds += max(0, int64(end.Sub(a.StartTime.Time).Seconds()))
		}
	}
}

// ofHistory takes what the history says of a task whose object is gone.
func (v *comparedVariant) ofHistory(ctx context.Context, s *session) {
	v.State = stateDeleted
	list, err := s.taskHistories(ctx, url.Values{"name": {v.Name}}, pageSize)
	if err != nil {
		v.Problem = err.Error()
		return
	}
	for _, t := range list.Items {
		if string(t.UID) == v.UID {
			v.State = stateOfGone(t.State)
			v.Messages, v.InputTokens, v.OutputTokens, v.CostMicroUSD = t.Messages, t.InputTokens, t.OutputTokens, t.CostMicroUSD
			v.RunSeconds = max(0, int64(t.Updated.Sub(t.CreationTimestamp.Time).Seconds()))
		}
	}
}

// addDiff adds what a task changed since the fork. One that has no checkpoint yet, or whose
// history cannot be read, does not keep the others from being compared.
func (o *compare) addDiff(ctx context.Context, s *session, f *v1alpha1.Fork, v *comparedVariant) {
	params := url.Values{"uid": {v.UID}, "to": {historyv1.WordLatest},
		"from": {f.Spec.SourceRef.Name + ":" + strconv.FormatInt(f.Status.Source.Checkpoint, 10)}}
	if o.ignored {
		params.Set("ignored", "true")
	}
	reader := &diff{plugin: o.plugin}
	err := reader.pages(ctx, s, v.Name, params, o.format(), func(page *historyv1.Diff) error {
		if v.Diff == nil {
			v.Diff = page
			return nil
		}
		v.Diff.Items = append(v.Diff.Items, page.Items...)
		return nil
	})
	if err != nil {
		v.Diff, v.Problem = nil, err.Error()
		return
	}
	if v.Diff.From.TaskUID != f.Status.Source.TaskUID {
		v.Diff, v.Problem = nil, fmt.Sprintf("the source was deleted, and the task that is named %s now is another", f.Spec.SourceRef.Name)
		return
	}
	v.Diff.Continue, v.Diff.RemainingItemCount = "", nil
}

// format is how the differences of files are asked for.
func (o *compare) format() string {
	switch {
	case !o.patches:
		return "none"
	case o.output.value != "table":
		return "hunks"
	}
	return "patch"
}

// show prints the table, and below it the files of each task.
func (o *compare) show(c comparison) error {
	style := styleFor(o.Out)
	rows := make([][]string, 0, len(c.Variants))
	for _, v := range c.Variants {
		files, lines := "-", "-"
		if v.Diff != nil {
			files = strconv.FormatInt(v.Diff.Totals.Files, 10)
			lines = fmt.Sprintf("+%d -%d", v.Diff.Totals.LinesAdded, v.Diff.Totals.LinesRemoved)
		}
		agent := strings.TrimSuffix(oneLine(v.Agent)+"/"+oneLine(v.Model), "/")
		rows = append(rows, []string{oneLine(v.Name), oneLine(v.State), cmp.Or(agent, "-"), files, lines, strconv.FormatInt(v.Messages, 10),
			count(v.InputTokens + v.OutputTokens), dollars(v.CostMicroUSD), (time.Duration(v.RunSeconds) * time.Second).String()})
	}
	if err := table(o.Out, []string{"TASK", "STATE", "AGENT", "FILES", "LINES", "MESSAGES", "TOKENS", "COST", "TIME"}, rows); err != nil {
		return err
	}
	for _, v := range c.Variants {
		if v.Diff == nil {
			continue
		}
		fmt.Fprintf(o.Out, "\n%s\n", style.bold(fmt.Sprintf("%s, since checkpoint %d of %s:", oneLine(v.Name), c.Checkpoint, oneLine(c.Source))))
		if err := o.showFiles(v, style); err != nil {
			return err
		}
	}
	o.showProblems(c)
	return nil
}

// showProblems says of which tasks it is not known what they changed, and why.
func (o *compare) showProblems(c comparison) {
	separator := "\n"
	for _, v := range c.Variants {
		if v.Diff == nil {
			fmt.Fprintf(o.Out, "%s%s: %s\n", separator, oneLine(v.Name), oneLine(cmp.Or(v.Problem, "nothing is known")))
			separator = ""
		}
	}
}

// showFiles prints the files that one task changed.
func (o *compare) showFiles(v *comparedVariant, style style) error {
	if o.patches {
		for _, f := range v.Diff.Items {
			fmt.Fprint(o.Out, paintPatch(f, style))
		}
		return nil
	}
	var rows [][]string
	for _, f := range v.Diff.Items[:min(len(v.Diff.Items), comparedFiles)] {
		rows = append(rows, []string{" " + change(f), lines(f, style)})
	}
	if err := table(o.Out, nil, rows); err != nil {
		return err
	}
	if more := int64(len(v.Diff.Items) - comparedFiles); more > 0 {
		fmt.Fprintf(o.Out, " and %s\n", plural(more, "more file"))
	}
	fmt.Fprintln(o.Out, totalsOf(v.Diff.Totals, style))
	return nil
}
