package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
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
	if c := last.Conversation; c != nil && c.Messages != 0 {
		fmt.Fprintln(o.ErrOut, conversationTotals(*c))
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

// conversationTotals formats what was said and used.
func conversationTotals(c historyv1.ConversationDiff) string {
	text := fmt.Sprintf("%s, %s, %s tokens in and %s out", plural(c.Messages, "message"), plural(c.ToolCalls, "tool call"), count(c.InputTokens), count(c.OutputTokens))
	if c.CostMicroUSD != 0 {
		text += ", " + dollars(c.CostMicroUSD)
	}
	return text
}

// printConversation prints the messages between the two moments.
func (o *diff) printConversation(ctx context.Context, s *session, task string, params url.Values) error {
	params.Set("limit", "1")
	var found *historyv1.Diff
	err := s.historyGet(ctx, []string{"tasks", task, "diff"}, params, &found)
	switch {
	case err != nil:
		return err
	case found.Conversation == nil:
		return errors.New("the two moments are of different tasks, whose conversations cannot be compared; print each with `kubectl clew task history`")
	}
	c := *found.Conversation
	if c.FromPosition > c.ToPosition {
		c.FromPosition, c.ToPosition = c.ToPosition, c.FromPosition
	}
	chat := newChat(o.Out, o.location, false)
	at := url.Values{"uid": {found.To.TaskUID}}
	for after := c.FromPosition; after < c.ToPosition; {
		at.Set("after", strconv.FormatInt(after, 10))
		at.Set("limit", strconv.FormatInt(min(pageSize, c.ToPosition-after), 10))
		page := &historyv1.ConversationList{}
		if err := s.historyGet(ctx, []string{"tasks", task, "conversation"}, at, page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			break // the conversation was rewound since
		}
		for _, entry := range page.Items {
			if err := chat.print(entry); err != nil {
				return err
			}
			after = entry.Position
		}
	}
	fmt.Fprintln(o.ErrOut, conversationTotals(*found.Conversation))
	return o.verdict(c.FromPosition != c.ToPosition)
}

// printPatch prints the patches of the files: on a terminal for people, otherwise for git.
func (o *diff) printPatch(ctx context.Context, s *session, task string, params url.Values) error {
	write, end := o.patchWriter(ctx)
	var left []string
	verdict := o.pages(ctx, s, task, params, "patch", func(page *historyv1.Diff) error {
		for _, f := range page.Items {
			if f.CutBytes > 0 {
				left = append(left, f.Path)
			}
			if err := write(f); err != nil {
				return err
			}
		}
		return nil
	})
	if err := end(); err != nil && verdict == nil {
		verdict = err
	}
	if errors.Is(verdict, errPagerLeft) {
		return nil
	}
	if len(left) > 0 && (verdict == nil || errors.Is(verdict, errDiffers)) {
		return fmt.Errorf("the patch lacks %s, whose content is too large to compare: %s", plural(int64(len(left)), "file"), plain(strings.Join(left, ", ")))
	}
	return verdict
}

// patchWriter returns a function that writes the patch of one file, and one that ends it.
func (o *diff) patchWriter(ctx context.Context) (write func(historyv1.FileDiff) error, end func() error) {
	if !isTerminal(o.Out) {
		return func(f historyv1.FileDiff) error {
			_, err := io.WriteString(o.Out, patchOf(f))
			return err
		}, func() error { return nil }
	}
	style := styleFor(o.Out)
	out, end := o.pager(ctx)
	return func(f historyv1.FileDiff) error {
		_, err := io.WriteString(out, paintPatch(f, style))
		return err
	}, end
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

// pager starts the user's pager, and returns its input and a function that waits until the
// user has left it. Without one, it returns standard output.
func (o *diff) pager(ctx context.Context) (io.Writer, func() error) {
	words := strings.Fields(cmp.Or(os.Getenv("PAGER"), "less"))
	path, err := exec.LookPath(words[0])
	if err != nil || words[0] == "cat" {
		return o.Out, func() error { return nil }
	}
	command := exec.CommandContext(ctx, path, words[1:]...)
	command.Stdout, command.Stderr = o.Out, o.ErrOut
	command.Env = os.Environ()
	if os.Getenv("LESS") == "" {
		command.Env = append(command.Env, "LESS=FRX")
	}
	in, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return o.Out, func() error { return nil }
	}
	return quitting{in}, func() error {
		_ = in.Close() // the pager may have ended
		return command.Wait()
	}
}

// quitting is the input of a pager that the user may leave early.
type quitting struct{ in io.Writer }

// Write implements io.Writer.
func (q quitting) Write(p []byte) (int, error) {
	n, err := q.in.Write(p)
	if err != nil {
		return n, errPagerLeft
	}
	return n, nil
}

// errPagerLeft ends a command whose pager the user has left.
var errPagerLeft = errors.New("the pager was left")
