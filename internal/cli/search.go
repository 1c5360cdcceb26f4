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

// search holds the flags of `search`.
type search struct {
	*plugin
	output            *enumFlag
	task, role, since string
	limit             int
	noHeaders         bool
}

// roles lists the roles of messages.
func roles() []string { return []string{"user", "assistant", "system", "tool", "output"} }

func (p *plugin) searchCommand() *cobra.Command {
	o := &search{plugin: p}
	cmd := &cobra.Command{
		Use:   "search WORDS...",
		Short: "Search the conversations of the namespace",
		Long: `Search the messages of users, agents and tools in the namespace, including those
of deleted tasks, and print the best matches first. The syntax is that of search
engines: a message must contain all words, in any order and form; "quoted words"
match as a phrase; "or" between two words matches either; and a - before a word
excludes messages that contain it.`,
		Example: `  # Where did an agent see this error?
  kubectl clew search connection refused

  # A phrase in the messages of one task's agent
  kubectl clew search '"login page"' --task fix-login --role assistant

  # The last seven days, without messages about tests
  kubectl clew search --since 7d -- migration -test

  # Read the conversation, starting at a match
  kubectl clew task history fix-login --from 12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(strings.Join(args, " ")) == "" {
				return fmt.Errorf("missing words to search for; usage: %s", cmd.UseLine())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), strings.Join(args, " ")) },
	}
	o.output = formatFlag(cmd, "table", "json", "yaml")
	cmd.Flags().StringVar(&o.task, "task", "", "Only messages of this task.")
	cmd.Flags().StringVar(&o.role, "role", "", "Only messages with this role: "+strings.Join(roles(), ", ")+".")
	cmd.Flags().StringVar(&o.since, "since", "", "Only messages after this: a duration before now such as 90m or 2d, or a time such as 2026-11-21T08:00:00Z.")
	cmd.Flags().IntVar(&o.limit, "limit", 20, "Maximum number of results to print, best first; 0 prints all.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Do not print column headers.")
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
		fmt.Fprintln(o.ErrOut, "No messages found. Try fewer or other words, or fewer filters. The latest messages may not be searchable yet.")
		return nil
	}
	if err := o.table(list.Items); err != nil {
		return err
	}
	if list.Continue != "" {
		fmt.Fprintln(o.ErrOut, "There are more results; raise --limit, or print all with --limit 0.")
	}
	return nil
}

// read reads pages, best first, until the limit.
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

// snippet formats a snippet on one line of at most room runes (0: any length), with
// its matches highlighted on a terminal.
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

// squeeze is oneLine for a part of a line: it keeps a space at the ends where other
// parts adjoin.
func squeeze(text string, first, last bool) string {
	line := oneLine(text)
	if line == "" && text != "" && !first && !last {
		return " "
	}
	if !first && startsWithSpace(text) {
		line = " " + line
	}
	if !last && line != " " && endsWithSpace(text) {
		line += " "
	}
	return line
}

func startsWithSpace(text string) bool { return strings.TrimLeft(text, " \t\r\n") != text }

func endsWithSpace(text string) bool { return strings.TrimRight(text, " \t\r\n") != text }
