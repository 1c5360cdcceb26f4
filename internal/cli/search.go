package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

type search struct {
	*plugin
	output            *enumFlag
	task, role, since string
	limit             int
	noHeaders         bool
}

func roles() []string { return []string{"user", "assistant", "system", "tool", "output"} }

func (p *plugin) searchCommand() *cobra.Command {
	o := &search{plugin: p}
	cmd := &cobra.Command{
		Use:   "search WORDS...",
		Short: "Search what was said in the tasks of the namespace",
		Long: `Search what was said in the tasks of the namespace, best first: by users, agents
and tools, in tasks that are gone as well. Words are searched for as search
engines do: all of them, in any order and form; "quoted ones" as a phrase; or
between two for either; and - before one to leave it out.`,
		Example: `  # Where did an agent run into this?
  kubectl clew search connection refused

  # A phrase, in what one task's agent said
  kubectl clew search '"login page"' --task fix-login --role assistant

  # This week, but not of the tests
  kubectl clew search --since 7d -- migration -test

  # Read on from there
  kubectl clew task history fix-login --from 12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(strings.Join(args, " ")) == "" {
				return fmt.Errorf("say what to search for: %s", cmd.UseLine())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), strings.Join(args, " ")) },
	}
	o.output = formatFlag(cmd, "table", "json", "yaml")
	cmd.Flags().StringVar(&o.task, "task", "", "Only in this task.")
	cmd.Flags().StringVar(&o.role, "role", "", "Only what was said by: "+strings.Join(roles(), ", ")+".")
	cmd.Flags().StringVar(&o.since, "since", "", "Only what is younger: a duration such as 90m or 2d, or a time such as 2026-11-21T08:00:00Z.")
	cmd.Flags().IntVar(&o.limit, "limit", 20, "Print so many results at most, the best; 0 prints all.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Leave the table's header out.")
	_ = cmd.RegisterFlagCompletionFunc("task", p.completeHistoryFlag)
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *search) run(ctx context.Context, words string) error {
	params := url.Values{"q": {words}}
	if o.limit < 0 {
		return fmt.Errorf("--limit is %d; it must be 0 or more", o.limit)
	}
	if o.task != "" {
		params.Set("task", o.task)
	}
	if o.role != "" {
		params.Set("role", o.role)
	}
	if o.since != "" {
		since, err := o.parseMoment("--since", o.since)
		if err != nil {
			return err
		}
		params.Set("since", since.UTC().Format(time.RFC3339))
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	list, err := o.read(ctx, s, params)
	if err != nil {
		return err
	}
	if o.output.value != "table" {
		return o.printRaw(o.output.value, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(o.ErrOut, "Nothing was found: try fewer or other words, or fewer filters. What was said in the last moments may not be searchable yet.")
		return nil
	}
	if err := o.table(list.Items); err != nil {
		return err
	}
	if list.Continue != "" {
		fmt.Fprintln(o.ErrOut, "There is more; raise --limit, or set it to 0.")
	}
	return nil
}

// read reads pages, best first, up to the limit.
func (o *search) read(ctx context.Context, s *session, params url.Values) (*historyv1.SearchResultList, error) {
	all := &historyv1.SearchResultList{}
	for {
		size := pageSize
		if o.limit > 0 {
			size = min(size, o.limit-len(all.Items))
		}
		params.Set("limit", strconv.Itoa(size))
		page := &historyv1.SearchResultList{}
		if err := s.historyGet(ctx, []string{"search"}, params, page); err != nil {
			return nil, err
		}
		all.TypeMeta, all.ListMeta = page.TypeMeta, page.ListMeta
		all.Items = append(all.Items, page.Items...)
		if page.Continue == "" || o.limit > 0 && len(all.Items) >= o.limit {
			withType(&all.TypeMeta, "SearchResultList")
			return all, nil
		}
		params.Set("continue", page.Continue)
	}
}

func (o *search) table(results []historyv1.SearchResult) error {
	header := []string{"RANK", "TASK", "POSITION", "WHO", "TIME", "WORDS"}
	if o.noHeaders {
		header = nil
	}
	room := 0
	if w := width(o.Out); w > 0 {
		room = max(40, w-75)
	}
	style := styleFor(o.Out)
	rows := make([][]string, 0, len(results))
	for _, r := range results {
		who := oneLine(r.Role)
		if r.Tool != "" {
			who += " → " + oneLine(r.Tool)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%.3f", float64(r.RankMillionths)/1e6), oneLine(r.Task), strconv.FormatInt(r.Position, 10), clip.Runes(who, 24),
			o.stamp(r.Time.Time), snippet(style, r.Snippet, room),
		})
	}
	return table(o.Out, header, rows)
}

// snippet puts a snippet on one line of at most room letters (0: any number),
// with its matches marked on a terminal.
func snippet(style style, parts []historyv1.SnippetPart, room int) string {
	var b strings.Builder
	left := room
	for i, part := range parts {
		text := squeeze(part.Text, i == 0, i == len(parts)-1)
		if room > 0 {
			if text = clip.Runes(text, left); text == "" || left <= 0 {
				break
			}
			left -= utf8.RuneCountInString(text)
		}
		if part.Match {
			text = style.bold(style.yellow(text))
		}
		b.WriteString(text)
	}
	return b.String()
}

// squeeze is oneLine for a part of a line: it keeps a space at an end where
// another part follows.
func squeeze(text string, first, last bool) string {
	line := oneLine(text)
	if line == "" && text != "" && !first && !last {
		return " "
	}
	if !first && startsWithSpace(text) {
		line = " " + line
	}
	if !last && line != " " && startsWithSpace(reversed(text)) {
		line += " "
	}
	return line
}

func startsWithSpace(text string) bool { return strings.TrimLeft(text, " \t\r\n") != text }

// reversed brings the last byte to the front, which is all that is looked at.
func reversed(text string) string {
	if text == "" {
		return text
	}
	return text[len(text)-1:]
}
