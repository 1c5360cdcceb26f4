package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// timeline holds the flags of `timeline`.
type timeline struct {
	*plugin
	output    *enumFlag
	types     []string
	since     string
	contract  string
	limit     int
	noHeaders bool
	follows   bool
}

// eventTypes lists the types of historyv1.TimelineEvent.
func eventTypes() []string {
	return []string{"task", "chat", "checkpoint", "rewind", "fork", "file", "access", "imported"}
}

func (p *plugin) timelineCommand() *cobra.Command {
	o := &timeline{plugin: p}
	cmd := &cobra.Command{
		Use:   "timeline [TASK]",
		Short: "Print the events of a task, or of the namespace",
		Long: `Print the events of a task, of a contract, or of all tasks of the namespace, oldest first. If
there are more than --limit, the newest are printed.

With --follow, events are printed as they come, until Ctrl-C. They come in the order in which
they are recorded: one may have an earlier time than the one before it. A lost connection
is made again, and what has come meanwhile is printed then. To follow, one needs the
right to watch timelines of the namespace, which the role view has.`,
		Example: `  # The events of a task
  kubectl clew timeline fix-login

  # The events of all tasks of a contract
  kubectl clew timeline --contract port-to-go

  # The same as they come, after the last ten
  kubectl clew timeline --contract port-to-go --follow --limit 10

  # The checkpoints and rewinds of the last two hours in the namespace
  kubectl clew timeline --type checkpoint,rewind --since 2h`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			task := ""
			if len(args) > 0 {
				task = args[0]
			}
			if task != "" && o.contract != "" {
				return errors.New("name either a task or a contract: with --contract, the events of all its tasks are printed")
			}
			return o.run(cmd.Context(), task)
		},
	}
	o.output = formatFlag(cmd, "table", "json", "yaml")
	cmd.Flags().StringSliceVar(&o.types, "type", nil, "Only events of these types: "+strings.Join(eventTypes(), ", ")+".")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(eventTypes(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&o.contract, "contract", "", "Only events of the tasks of this contract.")
	cmd.Flags().StringVar(&o.since, "since", "", "Only events after this: a duration before now such as 90m or 2d, or a time such as 2026-11-21T08:00:00Z.")
	cmd.Flags().IntVar(&o.limit, "limit", 100, "Print only this many of the newest events; 0 prints all.")
	cmd.Flags().BoolVarP(&o.follows, "follow", "f", false, "Print new events as they come.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Do not print column headers.")
	return cmd
}

func (o *timeline) run(ctx context.Context, task string) error {
	params, err := o.params()
	if err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.follows {
		return o.follow(ctx, s, task, params)
	}
	list, err := o.read(ctx, s, task, params, o.limit)
	if err != nil {
		return err
	}
	if o.output.value != "table" {
		return o.printRaw(o.output.value, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(o.ErrOut, "No events match these filters.")
		return nil
	}
	slices.Reverse(list.Items)
	if err := o.table(list.Items, task == ""); err != nil {
		return err
	}
	if list.Continue != "" {
		fmt.Fprintln(o.ErrOut, "There are earlier events; raise --limit, or print all with --limit 0.")
	}
	return nil
}

// params returns the filters as the history API expects them.
func (o *timeline) params() (url.Values, error) {
	params := url.Values{}
	if o.limit < 0 {
		return nil, fmt.Errorf("--limit is %d; it must be 0 or more", o.limit)
	}
	if o.follows && o.output.value == "yaml" {
		return nil, errors.New("--follow prints a table or, with -o json, one event after another: leave out -o yaml")
	}
	if len(o.types) > 0 {
		params.Set("type", strings.Join(o.types, ","))
	}
	if o.contract != "" {
		params.Set("contract", o.contract)
	}
	if o.since != "" {
		since, err := o.parseMoment("--since", o.since)
		if err != nil {
			return nil, err
		}
		params.Set("since", since.UTC().Format(time.RFC3339))
	}
	return params, nil
}

// parseMoment parses a point in time: a duration before now, optionally in days, a
// time with its zone, or a time in the user's zone as the plugin prints it.
func (p *plugin) parseMoment(flag, text string) (time.Time, error) {
	now := p.clock()
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, p.location); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 36500 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if back, err := time.ParseDuration(text); err == nil && back >= 0 {
		return now.Add(-back), nil
	}
	return time.Time{}, fmt.Errorf("%s is %q; it must be a duration such as 90m or 2d, or a time with its date, such as 2026-11-21T08:00:00Z, %q or 2026-11-21", flag, text, "2026-11-21 08:00:00")
}

// read reads pages, newest first, until the limit; all of them if that is 0.
func (o *timeline) read(ctx context.Context, s *session, task string, params url.Values, limit int) (*historyv1.TimelineEventList, error) {
	params = maps.Clone(params)
	path := []string{"timelines"}
	if task != "" {
		path = []string{"tasks", task, "timeline"}
	}
	all := &historyv1.TimelineEventList{}
	for {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(all.Items))
		}
		params.Set("limit", strconv.Itoa(size))
		page := &historyv1.TimelineEventList{}
		if err := s.historyGet(ctx, path, params, page); err != nil {
			return nil, err
		}
		all.TypeMeta, all.ListMeta = page.TypeMeta, page.ListMeta
		all.Items = append(all.Items, page.Items...)
		if page.Continue == "" || (limit > 0 && len(all.Items) >= limit) {
			withType(&all.TypeMeta, "TimelineEventList")
			return all, nil
		}
		params.Set("continue", page.Continue)
	}
}

func (o *timeline) table(events []historyv1.TimelineEvent, withTask bool) error {
	return table(o.Out, o.header(withTask), o.rows(events, withTask))
}

// header returns the header of the table, with the column of the task or without; nil if it is not printed.
func (o *timeline) header(withTask bool) []string {
	header := []string{"TIME", "TYPE", "REASON", "ATTEMPT", "CHECKPOINT", "BY", "MESSAGE"}
	switch {
	case o.noHeaders:
		return nil
	case withTask:
		return slices.Insert(header, 1, "TASK")
	}
	return header
}

// rows returns the rows of the table.
func (o *timeline) rows(events []historyv1.TimelineEvent, withTask bool) [][]string {
	rows := make([][]string, 0, len(events))
	for _, e := range events {
		row := []string{
			o.stamp(e.Time.Time), oneLine(e.Type), oneLine(e.Reason), numberOrDash(e.Attempt),
			numberOrDash(e.Checkpoint), cmp.Or(clip.Runes(oneLine(actorOf(e)), 30), "-"), o.fit(oneLine(e.Message)),
		}
		if withTask {
			row = slices.Insert(row, 1, oneLine(e.Task))
		}
		rows = append(rows, row)
	}
	return rows
}

// fit shortens a message to what probably fits on a line of the terminal.
func (o *timeline) fit(text string) string {
	if w := width(o.Out); w > 0 {
		return clip.Runes(text, max(30, w-80))
	}
	return text
}

// numberOrDash formats a number, or returns - for zero.
func numberOrDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// actorOf returns who caused an event. It marks the actors of imported events, which
// nobody has verified.
func actorOf(e historyv1.TimelineEvent) string {
	if e.ImportedBy == "" {
		return e.Actor
	}
	return strings.TrimSpace(e.Actor + " (imported)")
}
