package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// shownFiles is how many files the preview of a rewind lists.
const shownFiles = 15

// rewindEffect is what a rewind would do, as the history API says; nil, and why, if it
// cannot say.
type rewindEffect struct {
	*historyv1.RewindPreview
	unknown string
	// discards is set if files that are known to have drifted are discarded first.
	discards bool
}

// params returns the parameters of the request for the effect of a rewind.
func (o *rewind) params(target *rewindTarget, id string) url.Values {
	params := url.Values{"id": {id}, "preserve": {o.preserve.value}, "whenRunning": {o.whenRunning.value},
		"path": o.paths, "limit": {strconv.Itoa(shownFiles)}}
	if o.scope != nil {
		params.Set("scope", o.scope.value)
	}
	if o.branch != "" {
		params.Set("branch", o.branch)
	}
	setOnDrift(params, o.onDrift)
	switch {
	case !target.named:
		params.Set(target.field, fmt.Sprint(target.value))
	case target.checkpoint.Name == "":
		params.Set("checkpointNumber", strconv.FormatInt(target.checkpoint.Status.Number, 10))
	default:
		params.Set("checkpointRef", target.checkpoint.Name)
	}
	return params
}

// setOnDrift adds what is done about drift, unless it is the default.
func setOnDrift(params url.Values, onDrift *enumFlag) {
	if onDrift.value != string(v1alpha1.OnDriftFail) {
		params.Set("onDrift", onDrift.value)
	}
}

// effectOf asks what a rewind would do. It is an error if the rewind would be refused. A user
// who may rewind a task need not be allowed to read its history; the preview is less detailed
// then.
func (s *session) effectOf(ctx context.Context, task *v1alpha1.Task, params url.Values) (rewindEffect, error) {
	request, err := s.historyRequest("GET", []string{"tasks", task.Name, "diff", "rewind"}, params)
	if err != nil {
		return rewindEffect{}, err
	}
	defer s.progressIfSlow("waiting for a preview of the rewind")()
	result := request.Do(ctx)
	if err := result.Error(); apierrors.IsBadRequest(err) {
		return rewindEffect{}, errors.New(message(err))
	}
	effect := &historyv1.RewindPreview{}
	if err := s.answer(result, effect); err != nil {
		return rewindEffect{unknown: oneLine(err.Error())}, nil
	}
	discards := params.Get("onDrift") == string(v1alpha1.OnDriftOverride) && task.Status.UndecidedDrift() != nil
	return rewindEffect{RewindPreview: effect, discards: discards}, nil
}

// conversation returns the rows about the messages that go; none if none are known to go.
func (e rewindEffect) conversation() [][]string {
	if e.RewindPreview == nil || e.Conversation == nil {
		return nil
	}
	c := e.Conversation
	text := fmt.Sprintf("keeps %d of %s", c.FromPosition-c.Dropped, plural(c.FromPosition, "message"))
	if c.Restored > 0 {
		text += fmt.Sprintf("; %s %s back", plural(c.Restored, "earlier message"), verb(c.Restored, "comes", "come"))
	}
	if c.Dropped > 0 && c.Restored == 0 {
		text += fmt.Sprintf("; %d %s, with %s, %s tokens in and %s out", c.Dropped, verb(c.Dropped, "goes", "go"), plural(c.ToolCalls, "tool call"), count(c.InputTokens), count(c.OutputTokens))
	}
	rows := [][]string{{"  conversation", text}}
	if c.First != nil {
		rows = append(rows, []string{"  first to go", entryLine(c.First)})
	}
	if c.Last != nil && c.Dropped > 1 {
		rows = append(rows, []string{"  last to go", entryLine(c.Last)})
	}
	return rows
}

// movedBack returns the row about a conversation that keeps fewer messages than the checkpoint has,
// which end in a call without a result.
func (e rewindEffect) movedBack(checkpoint *v1alpha1.Checkpoint) [][]string {
	if e.RewindPreview == nil || e.Conversation == nil || checkpoint == nil || checkpoint.Status.Conversation == nil ||
		e.Conversation.ToPosition >= checkpoint.Status.Conversation.Position {
		return nil
	}
	return [][]string{{"  moved back", endOfTurn(e.Conversation.ToPosition)}}
}

// endOfTurn says to which message a position is moved back.
func endOfTurn(position int64) string {
	return fmt.Sprintf("to message %d, the end of its turn: after it, a tool call has no result yet", position)
}

// entryLine describes a message on one line.
func entryLine(e *historyv1.ConversationEntry) string {
	return fmt.Sprintf("%d %s: %s", e.Position, oneLine(e.Role), clip.Runes(cmp.Or(entryText(e), "(no text)"), 60))
}

// stopped returns the rows about tool calls that are in progress.
func (e rewindEffect) stopped() [][]string {
	if e.RewindPreview == nil || e.Stops == nil {
		return nil
	}
	var rows [][]string
	for _, c := range e.Stops.ToolCalls {
		rows = append(rows, []string{"  in progress", clip.Runes(oneLine(strings.TrimSpace(c.Name+" "+c.Input)), 80)})
	}
	return rows
}

// changes returns the row about the files.
func (e rewindEffect) changes(style style) [][]string {
	switch {
	case e.RewindPreview == nil:
		return [][]string{{"  changes", "unknown here (" + e.unknown + ")"}}
	case e.Files == nil:
		return nil
	}
	text := strings.TrimSpace(totalsOf(e.Files.Totals, style))
	switch {
	case e.Files.Totals.Files == 0 && e.discards:
		text = "no other file"
	case e.Files.Totals.Files == 0:
		text = "no file"
	case e.discards:
		text += ", when those are discarded"
	}
	if n := e.Files.Totals.IgnoredFiles; n > 0 {
		text += fmt.Sprintf("; %s %s, which the commit ignores or other repositories have", plural(n, "file"), verb(n, "stays", "stay"))
	}
	rows := [][]string{{"  changes", text}}
	if paths := e.Files.UnmatchedPaths; len(paths) > 0 {
		rows = append(rows, []string{"  selects no file", style.yellow(clip.Runes(oneLine(strings.Join(paths, ", ")), 200)) + ": such a rewind fails, unless it is an empty folder"})
	}
	if paths := e.Files.BlockedPaths; len(paths) > 0 {
		text := style.yellow(clip.Runes(oneLine(strings.Join(paths, ", ")), 200)) + ": something there has to stay, so the rewind fails: move it elsewhere"
		if len(e.Paths) > 0 {
			text += ", or name it in the paths, too"
		}
		rows = append(rows, []string{"  in the way", text})
	}
	return rows
}

// fails returns the error with which the rewind is known to end; nil if it may succeed. A path
// that selects no file may be an empty folder, which only the rewind itself finds out: a dry run
// does not promise that it succeeds.
func (e rewindEffect) fails(dryRun bool) error {
	switch {
	case e.RewindPreview == nil:
		return nil
	case e.RewindPreview.Fails != nil:
		return fmt.Errorf("the rewind would fail, and is not requested: %s (%s)", plain(e.Fails.Message), e.Fails.Reason)
	case e.Files == nil:
		return nil
	}
	list := func(paths []string) string { return clip.Runes(oneLine(strings.Join(paths, ", ")), 200) }
	switch {
	case len(e.Files.BlockedPaths) > 0:
		return fmt.Errorf("the rewind would fail, and is not requested: something that has to stay is in the way at %s", list(e.Files.BlockedPaths))
	case dryRun && len(e.Files.UnmatchedPaths) > 0:
		return fmt.Errorf("the rewind would fail, unless these paths are empty folders: %s", list(e.Files.UnmatchedPaths))
	}
	return nil
}

// printFiles prints the first of the files, as the rewind would change them.
func (e rewindEffect) printFiles(w io.Writer, style style) error {
	if e.RewindPreview == nil || e.Files == nil {
		return nil
	}
	files := e.Files.Items[:min(len(e.Files.Items), shownFiles)]
	var rows [][]string
	for _, f := range files {
		text := lines(f, style)
		if e.Files.Totals.UncountedFiles > 0 {
			text = ""
		}
		rows = append(rows, []string{"    " + change(f), text})
	}
	if err := table(w, nil, rows); err != nil {
		return err
	}
	if more := e.Files.Totals.Files - int64(len(files)); more > 0 {
		fmt.Fprintf(w, "    and %s\n", plural(more, "more file"))
	}
	return nil
}
