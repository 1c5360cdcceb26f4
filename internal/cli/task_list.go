package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// taskList holds the flags of `task list`.
type taskList struct {
	*plugin
	output             *enumFlag
	sort               *enumFlag
	name, state, tool  string
	since, until       string
	minTokens, minCost string
	limit              int
	noHeaders          bool
}

// taskSorts maps the values of --sort to the history API's names.
func taskSorts() map[string]string {
	return map[string]string{
		"newest": "created", "updated": "updated", "cost": "cost", "tokens": "tokens", "messages": "messages", "name": "name",
	}
}

func (p *plugin) taskListCommand() *cobra.Command {
	o := &taskList{plugin: p}
	cmd := &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"get"},
		Aliases:    []string{"ls"},
		Short:      "List the tasks of the namespace, including deleted ones",
		Long: `List the tasks in the history of the namespace, including those whose Task object
is deleted, with their usage and the first words of their prompts. BUDGET is how much is
spent of the limits that a task has, the one of which most is; -o wide prints all of them
with figures. A contract's budget is listed with its supervisor.`,
		Example: `  # The newest tasks
  kubectl clew task list

  # The most expensive tasks of the last 30 days
  kubectl clew task list --since 30d --min-cost 0.50 --sort cost

  # What is spent of budgets, in figures
  kubectl clew task list -o wide

  # Failed tasks that called Bash, with their UIDs
  kubectl clew task list --state Failed --tool Bash -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.output = formatFlag(cmd, "table", "wide", "name", "json", "yaml")
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "Only tasks whose name starts with this.")
	flags.StringVar(&o.state, "state", "", "Only tasks in this state: Waiting, Queued, Running, Suspended, Completed, Failed, Rewound, DriftDetected, BudgetExceeded or Deleted.")
	flags.StringVar(&o.tool, "tool", "", "Only tasks whose agent has called this tool.")
	flags.StringVar(&o.minTokens, "min-tokens", "", "Only tasks that used at least this many tokens, such as 20000 or 20k.")
	flags.StringVar(&o.minCost, "min-cost", "", "Only tasks that cost at least this many US dollars, such as 0.50.")
	flags.StringVar(&o.since, "since", "", "Only tasks that started after this: a duration before now such as 90m or 2d, or a time such as 2026-11-21T08:00:00Z.")
	flags.StringVar(&o.until, "until", "", "Only tasks that started before this: a duration or a time, as in --since.")
	o.sort = enum(cmd, "sort", "newest", "Sort order.", "newest", "updated", "cost", "tokens", "messages", "name")
	flags.IntVar(&o.limit, "limit", 50, "Maximum number of tasks to print; 0 prints all.")
	flags.BoolVar(&o.noHeaders, "no-headers", false, "Do not print column headers.")
	_ = cmd.RegisterFlagCompletionFunc("name", p.completeHistoryFlag)
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(
		[]string{"Waiting", "Queued", "Running", "Suspended", "Rewound", "DriftDetected", "BudgetExceeded", "Completed", "Failed", "Deleted"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// params returns the filters as the history API expects them.
func (o *taskList) params() (url.Values, error) {
	params := url.Values{"sort": {taskSorts()[o.sort.value]}}
	if o.limit < 0 {
		return nil, fmt.Errorf("--limit is %d; it must be 0 or more", o.limit)
	}
	for name, value := range map[string]string{"name": o.name, "state": o.state, "tool": o.tool} {
		if value != "" {
			params.Set(name, value)
		}
	}
	if o.minTokens != "" {
		n, err := parseCount("--min-tokens", o.minTokens)
		if err != nil {
			return nil, err
		}
		params.Set("minTokens", strconv.FormatInt(n, 10))
	}
	if o.minCost != "" {
		text := strings.TrimPrefix(o.minCost, "$")
		if n, err := strconv.ParseFloat(text, 64); err != nil || n < 0 {
			return nil, fmt.Errorf("--min-cost is %q; it must be an amount of US dollars such as 0.50", o.minCost)
		}
		params.Set("minCost", text)
	}
	for name, value := range map[string]string{"since": o.since, "until": o.until} {
		if value == "" {
			continue
		}
		at, err := o.parseMoment("--"+name, value)
		if err != nil {
			return nil, err
		}
		params.Set(name, at.UTC().Format(time.RFC3339))
	}
	return params, nil
}

// parseCount parses a number such as 1500, 20k or 1.5M.
func parseCount(flag, text string) (int64, error) {
	number, factor := text, 1.0
	for suffix, f := range map[string]float64{"k": 1e3, "K": 1e3, "M": 1e6} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, factor = rest, f
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0 && n*factor <= 1e15) {
		return 0, fmt.Errorf("%s is %q; it must be a number such as 1500 or 20k", flag, text)
	}
	return int64(n * factor), nil
}

func (o *taskList) run(ctx context.Context) error {
	params, err := o.params()
	if err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	list, err := s.taskHistories(ctx, params, o.limit)
	if err != nil {
		return err
	}
	switch {
	case o.output.value == "json" || o.output.value == "yaml":
		return o.printRaw(o.output.value, list)
	case o.output.value == "name":
		for _, task := range list.Items {
			fmt.Fprintf(o.Out, "taskhistory.%s/%s\n", historyv1.Group, task.Name)
		}
	case len(list.Items) == 0:
		fmt.Fprintf(o.ErrOut, "No tasks in the history of namespace %s match these filters.\n", s.namespace)
		return nil
	default:
		if err := o.table(list.Items, s.markGone(ctx, list.Items)); err != nil {
			return err
		}
	}
	if list.Continue != "" {
		fmt.Fprintln(o.ErrOut, "There are more tasks; raise --limit, or print all with --limit 0.")
	}
	return nil
}

// taskHistories reads pages until the limit; 0 means no limit.
func (s *session) taskHistories(ctx context.Context, params url.Values, limit int) (*historyv1.TaskHistoryList, error) {
	all := &historyv1.TaskHistoryList{}
	for {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(all.Items))
		}
		params.Set("limit", strconv.Itoa(size))
		page := &historyv1.TaskHistoryList{}
		if err := s.historyGet(ctx, []string{"taskhistories"}, params, page); err != nil {
			return nil, err
		}
		all.TypeMeta, all.ListMeta = page.TypeMeta, page.ListMeta
		all.Items = append(all.Items, page.Items...)
		if page.Continue == "" || limit > 0 && len(all.Items) >= limit {
			withType(&all.TypeMeta, "TaskHistoryList")
			return all, nil
		}
		params.Set("continue", page.Continue)
	}
}

// markGone corrects the states of the tasks that have no object: the last entry of one that was
// deleted while it started may say that it runs. It returns the objects by UID. A user who may not list
// them sees the states that the history has.
func (s *session) markGone(ctx context.Context, tasks []historyv1.TaskHistory) map[types.UID]*v1alpha1.Task {
	list, objects := &v1alpha1.TaskList{}, map[types.UID]*v1alpha1.Task{}
	if s.client.List(ctx, list, client.InNamespace(s.namespace)) != nil {
		return objects
	}
	for i := range list.Items {
		objects[list.Items[i].UID] = &list.Items[i]
	}
	for i := range tasks {
		if objects[tasks[i].UID] == nil {
			tasks[i].State = stateOfGone(tasks[i].State)
		}
	}
	return objects
}

func (o *taskList) table(tasks []historyv1.TaskHistory, objects map[types.UID]*v1alpha1.Task) error {
	wide := o.output.value == "wide"
	header := []string{"NAME", "STATE", "MESSAGES", "TOKENS", "COST", "BUDGET", "CHECKPOINTS", "AGE", "FIRST WORDS"}
	if wide {
		header = []string{"NAME", "STATE", "MESSAGES", "TOOL CALLS", "TOKENS", "COST", "BUDGET", "CHECKPOINTS", "AGE", "UPDATED", "UID", "TOOLS", "FIRST WORDS"}
	}
	room := 60
	if w := width(o.Out); w > 0 && !wide {
		room = max(24, w-95)
	}
	rows := make([][]string, 0, len(tasks))
	for _, t := range tasks {
		updated := metav1.NewTime(t.Updated.Time)
		messages, tokens := strconv.FormatInt(t.Messages, 10), count(t.InputTokens+t.OutputTokens)
		state, words := cmp.Or(oneLine(t.State), "-"), clip.Runes(oneLine(t.Preview), room)
		checkpoints, age, budget := strconv.FormatInt(t.Checkpoints, 10), o.age(&t.CreationTimestamp), "-"
		if object := objects[t.UID]; object != nil {
			budget = budgetCell(budgetsOf(object), wide)
		}
		row := []string{oneLine(t.Name), state, messages, tokens, dollars(t.CostMicroUSD), budget, checkpoints, age, words}
		if wide {
			row = []string{
				oneLine(t.Name), state, messages, strconv.FormatInt(t.ToolCalls, 10), tokens, dollars(t.CostMicroUSD), budget, checkpoints, age,
				o.age(&updated), string(t.UID), cmp.Or(clip.Runes(oneLine(strings.Join(t.Tools, ",")), 40), "-"), words,
			}
		}
		rows = append(rows, row)
	}
	header, rows = withoutEmpty(header, rows, "BUDGET")
	if o.noHeaders {
		header = nil
	}
	return table(o.Out, header, rows)
}

// completeHistory completes the first argument with the names of tasks in the history.
func (p *plugin) completeHistory(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.completeHistoryFlag(cmd, args, prefix)
}

// completeHistoryFlag completes a flag with the names of tasks in the history.
func (p *plugin) completeHistoryFlag(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.names(func(ctx context.Context, s *session) ([]string, error) {
		list, err := s.taskHistories(ctx, url.Values{"name": {prefix}, "sort": {"created"}}, pageSize)
		if err != nil {
			return nil, err
		}
		var found []string
		seen := map[string]bool{}
		for _, t := range list.Items {
			if !seen[t.Name] {
				found = append(found, cobra.CompletionWithDesc(t.Name, fmt.Sprintf("%s, %s: %s", cmp.Or(oneLine(t.State), "-"), plural(t.Messages, "message"), clip.Runes(oneLine(t.Preview), 40))))
			}
			seen[t.Name] = true
		}
		return found, nil
	})
}
