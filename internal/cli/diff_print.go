package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// printNames prints the paths of the files.
func (o *diff) printNames(ctx context.Context, s *session, task string, params url.Values) error {
	return o.pages(ctx, s, task, params, "none", func(page *historyv1.Diff) error {
		for _, f := range page.Items {
			fmt.Fprintln(o.Out, plain(f.Path))
		}
		return nil
	})
}

// printStat prints each file with its lines, and the totals.
func (o *diff) printStat(ctx context.Context, s *session, task string, params url.Values) error {
	style := styleFor(o.Out)
	var rows [][]string
	var last *historyv1.Diff
	verdict := o.pages(ctx, s, task, params, "none", func(page *historyv1.Diff) error {
		last = page
		for _, f := range page.Items {
			rows = append(rows, []string{" " + change(f), lines(f, style)})
		}
		return nil
	})
	if verdict != nil && !errors.Is(verdict, errDiffers) {
		return verdict
	}
	if err := table(o.Out, nil, rows); err != nil {
		return err
	}
	fmt.Fprintln(o.Out, totalsOf(last.Totals, style))
	o.tellIgnored()
	if c := last.Conversation; c != nil && (c.FromPosition != c.SharedPosition || c.ToPosition != c.SharedPosition) {
		fmt.Fprintln(o.ErrOut, conversationText(last))
	}
	return verdict
}

// change names a file and what became of it, unless it was modified.
func change(f historyv1.FileDiff) string {
	name := oneLine(f.Path)
	if f.OldPath != "" {
		name = oneLine(f.OldPath) + " → " + name
	}
	var notes []string
	switch {
	case f.Action == "Added", f.Action == "Deleted":
		notes = append(notes, strings.ToLower(f.Action))
	case f.OldMode != f.NewMode:
		notes = append(notes, kindOf(f.OldMode)+" → "+kindOf(f.NewMode))
	}
	if len(notes) > 0 {
		name += " (" + strings.Join(notes, ", ") + ")"
	}
	return name
}

// kindOf names git's mode of a file.
func kindOf(mode string) string {
	return cmp.Or(map[string]string{
		"100644": "file", "100755": "executable", "120000": "symbolic link", "160000": "nested repository",
	}[mode], mode)
}

// lines formats how much of a file changed.
func lines(f historyv1.FileDiff, style style) string {
	if f.Binary {
		return fmt.Sprintf("binary, %s → %s", humanBytes(f.OldBytes), humanBytes(f.NewBytes))
	}
	return style.green("+"+strconv.FormatInt(f.LinesAdded, 10)) + " " + style.red("-"+strconv.FormatInt(f.LinesRemoved, 10))
}

// totalsOf formats the totals of a difference.
func totalsOf(t historyv1.DiffTotals, style style) string {
	if t.Files == 0 {
		return "no files differ"
	}
	text := " " + plural(t.Files, "file") + " changed"
	if t.UncountedFiles > 0 {
		return text + "; too many to count their lines"
	}
	text += ", " + style.green("+"+strconv.FormatInt(t.LinesAdded, 10)) + " " + style.red("-"+strconv.FormatInt(t.LinesRemoved, 10))
	if t.BinaryFiles > 0 {
		text += fmt.Sprintf(", %d of them binary", t.BinaryFiles)
	}
	return text
}

// conversationText says what was said between two moments; of two branches of a conversation, or of
// two tasks, what each has beyond those that they have in common: the one does not follow the other.
func conversationText(d *historyv1.Diff) string {
	c := *d.Conversation
	if oneBranch(d.From, d.To) {
		return conversationTotals(c)
	}
	tasks := d.From.TaskUID != d.To.TaskUID
	return fmt.Sprintf("%s in common; %s only %s; %s only %s", plural(c.SharedPosition, "message"),
		plural(c.FromPosition-c.SharedPosition, "message"), momentText(d.From, tasks),
		plural(c.ToPosition-c.SharedPosition, "message"), momentText(d.To, tasks))
}

// conversationTotals formats what was said and used.
func conversationTotals(c historyv1.ConversationDiff) string {
	text := fmt.Sprintf("%s, %s, %s tokens in and %s out", plural(c.Messages, "message"), plural(c.ToolCalls, "tool call"), count(c.InputTokens), count(c.OutputTokens))
	if c.CostMicroUSD != 0 {
		text += ", " + dollars(c.CostMicroUSD)
	}
	return text
}

// printPatch prints the patches of the files: on a terminal for people, otherwise for git.
func (o *diff) printPatch(ctx context.Context, s *session, task string, params url.Values) error {
	if isTerminal(o.Out) {
		return o.showPatch(ctx, s, task, params)
	}
	// A patch that ends early could be applied as if it were whole.
	var whole strings.Builder
	var missing []string
	verdict := o.pages(ctx, s, task, params, "patch", func(page *historyv1.Diff) error {
		for _, f := range page.Items {
			if f.CutBytes > 0 {
				missing = append(missing, oneLine(f.Path))
			}
			whole.WriteString(patchOf(f))
		}
		return nil
	})
	switch {
	case verdict != nil && !errors.Is(verdict, errDiffers):
		return verdict
	case len(missing) > 0:
		return fmt.Errorf("nothing is printed, since a patch would lack %s too large to compare: %s; name the other files after --, or use --stat",
			plural(int64(len(missing)), "file"), strings.Join(missing, ", "))
	}
	if _, err := io.WriteString(o.Out, whole.String()); err != nil {
		return err
	}
	return verdict
}

// showPatch shows the patches on a terminal. A pager is started for the first page.
func (o *diff) showPatch(ctx context.Context, s *session, task string, params url.Values) error {
	style := styleFor(o.Out)
	var pager *pager
	verdict := o.pages(ctx, s, task, params, "patch", func(page *historyv1.Diff) error {
		if pager == nil && !o.exitCodes {
			pager = startPager(o.Out, o.ErrOut, os.Getenv("PAGER"), hasEnv("PAGER"))
			o.silent.Store(pager.started())
		}
		for _, f := range page.Items {
			if _, err := io.WriteString(pager.to(o.Out), paintPatch(f, style)); err != nil {
				return err
			}
		}
		return nil
	})
	pager.wait()
	o.silent.Store(false)
	o.tellIgnored()
	if errors.Is(verdict, errPagerLeft) {
		return nil
	}
	return verdict
}

// patchOf returns the bytes of a patch.
func patchOf(f historyv1.FileDiff) string {
	if len(f.PatchBytes) > 0 {
		return string(f.PatchBytes)
	}
	return f.Patch
}

// paintPatch returns a patch for a terminal. Its content, which an agent wrote, cannot
// control the terminal.
func paintPatch(f historyv1.FileDiff, style style) string {
	if f.CutBytes > 0 {
		return style.bold(oneLine(f.Path)) + style.faint(fmt.Sprintf(": too large to compare (%s)", humanBytes(f.CutBytes))) + "\n"
	}
	var b strings.Builder
	inHunk := false
	for line := range strings.Lines(patchOf(f)) {
		text := plain(strings.TrimSuffix(line, "\n"))
		switch {
		case strings.HasPrefix(line, "diff --git "):
			inHunk = false
			text = style.bold(text)
		case strings.HasPrefix(line, "@@"):
			inHunk = true
			text = style.cyan(text)
		case !inHunk:
			text = style.bold(text)
		case strings.HasPrefix(line, "+"):
			text = style.green(text)
		case strings.HasPrefix(line, "-"):
			text = style.red(text)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}
