package family

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/quote"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// maxPatch bounds a patch, in bytes.
	maxPatch = 40 << 10
	// maxFiles is how many files a patch may have, and maxLeftOut how many of those are named that are
	// not in it.
	maxFiles, maxLeftOut = 200, 50
	// maxPath bounds a path, in bytes.
	maxPath = 4096
	// maxNotStored is how many newest checkpoints may be missing from the gitstore.
	maxNotStored = 50
)

// moment is what is compared: a checkpoint, or what a task started from.
type moment struct{ point, commit, name string }

// diff compares two checkpoints of a task, or one with what it started from.
func (f *Family) diff(ctx context.Context, supervisor history.Task, in toolcall.DiffInput) (reply, error) {
	of, _, err := f.of(supervisor)
	if err != nil {
		return reply{}, err
	}
	t, err := of.begun(in.Task)
	if err != nil {
		return reply{}, err
	}
	paths, err := pathsOf(in.Path)
	if err != nil {
		return reply{}, err
	}
	task := history.Task{Namespace: t.Namespace, Name: of.nameOf(t), UID: string(t.UID)}
	from, to, base, err := f.moments(ctx, task, in)
	if err != nil {
		return reply{}, err
	}
	found, err := f.code.Diff(ctx, task.Namespace, task.UID, gitstoreapi.DiffQuery{
		From: from.point, FromCommit: from.commit, To: to.point, ToCommit: to.commit, Base: base, Paths: paths,
		Limit: maxFiles, Format: gitstoreapi.DiffPatch,
	})
	if err != nil {
		return reply{}, diffRefusal(ctx, err, from, to)
	}
	return patchReply(found, from, to, in.Path), nil
}

// pathsOf returns the paths of a query that is limited to one; nil for all files.
func pathsOf(given string) ([]string, error) {
	clean := given
	if rest, ok := strings.CutPrefix(given, daemonapi.WorktreePath); ok && (rest == "" || rest[0] == '/') {
		clean = strings.TrimLeft(rest, "/")
	}
	clean = path.Clean(clean)
	switch {
	case clean == ".":
		return nil, nil
	case len(given) > maxPath || clean == ".." || strings.HasPrefix(clean, "../") || strings.HasPrefix(clean, "/") || strings.ContainsRune(given, 0):
		return nil, refuse("path must name a file or a folder of the task's worktree, relative to its root, such as src/main.go.")
	}
	return []string{clean}, nil
}

// moments returns what a call compares, and the commit that the task started from.
func (f *Family) moments(ctx context.Context, task history.Task, in toolcall.DiffInput) (from, to moment, base string, err error) {
	newest, err := f.store.CheckpointsBefore(ctx, task.Key(), 0, maxNotStored)
	if err != nil {
		return from, to, "", err
	}
	if len(newest) == 0 {
		return from, to, "", refuse("The task %s has no checkpoint yet, so that nothing can be compared. task_list says how it stands.", task.Name)
	}
	base = newest[0].Base
	from = moment{gitstoreapi.PointBase, base, "what " + task.Name + " started from"}
	if base != "" {
		from.point = gitstoreapi.PointCommit + base
	}
	if in.From != nil && *in.From != 0 {
		if from, err = f.checkpoint(ctx, task, *in.From, newest[0].Number); err != nil {
			return from, to, "", err
		}
	}
	if in.To != nil {
		to, err = f.checkpoint(ctx, task, *in.To, newest[0].Number)
		return from, to, base, err
	}
	for _, c := range newest {
		if c.Durable {
			return from, momentOf(c), base, nil
		}
	}
	return from, to, "", notStored(newest[0])
}

// checkpoint returns a checkpoint of a task, whose newest one is given.
func (f *Family) checkpoint(ctx context.Context, task history.Task, number, newest int64) (moment, error) {
	found, err := f.store.Checkpoint(ctx, task.Key(), number)
	switch {
	case errors.Is(err, history.ErrNotFound):
		return moment{}, refuse("The task %s has no checkpoint %d: its newest one is %d.", task.Name, number, newest)
	case err != nil:
		return moment{}, err
	case !found.Durable:
		return moment{}, notStored(found)
	}
	return momentOf(found), nil
}

func momentOf(c history.Checkpoint) moment {
	return moment{gitstoreapi.PointCheckpoint + strconv.FormatInt(c.Number, 10), c.Commit, fmt.Sprintf("checkpoint %d", c.Number)}
}

// notStored says why the gitstore does not have a checkpoint.
func notStored(c history.Checkpoint) error {
	switch {
	case c.Lost:
		return refuse("Checkpoint %d is lost: compare another one.", c.Number)
	case c.Refused != "":
		return refuse("Checkpoint %d is only on the task's volume, since Clew's gitstore refuses it, and cannot be compared: compare another one.", c.Number)
	}
	return refuse("Checkpoint %d is still being stored: try again in some seconds.", c.Number)
}

// diffRefusal says why two moments cannot be compared.
func diffRefusal(ctx context.Context, err error, from, to moment) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return refuse("Comparing takes too long: there is too much that differs. Name a file or a folder in path.")
	}
	var refused *gitstoreapi.Refusal
	if !errors.As(err, &refused) {
		return refuse("Clew's gitstore cannot be reached at the moment. Nothing is lost: try again in a minute.")
	}
	switch refused.Reason {
	case gitstoreapi.NotFound, gitstoreapi.Ambiguous, gitstoreapi.Forbidden:
		return refuse("%s cannot be compared with %s: Clew's gitstore does not have both in one repository.", capital(from.name), to.name)
	case gitstoreapi.Moved:
		return refuse("The task has just moved on: try again.")
	case gitstoreapi.BadRequest:
		return refuse("Clew's gitstore cannot compare that: %s.", strings.TrimSuffix(refused.Message, "."))
	case gitstoreapi.Damaged:
		return refuse("%s or %s is damaged in Clew's gitstore, which is told to whoever runs it. Compare other checkpoints.", capital(from.name), to.name)
	}
	return refuse("Clew's gitstore cannot compare at the moment (%s): try again in a minute.", strings.TrimSuffix(refused.Message, "."))
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// patchReply formats a difference, as much of it as an answer may have.
func patchReply(found gitstoreapi.Diff, from, to moment, of string) reply {
	where := ""
	if of != "" {
		where = " in " + of
	}
	sums := found.Totals
	data := map[string]any{
		"from": from.name, "to": to.name, "files": sums.Files, "linesAdded": sums.LinesAdded, "linesRemoved": sums.LinesRemoved,
	}
	if sums.Files == 0 {
		return reply{text: fmt.Sprintf("Nothing differs%s between %s and %s.", where, from.name, to.name), data: data}
	}
	patch, leftOut := patchOf(found.Files)
	more := sums.Files - int64(len(found.Files)) + int64(max(len(leftOut)-maxLeftOut, 0))
	data["patch"], data["more"] = patch, len(leftOut) > 0 || more > 0
	text := fmt.Sprintf("From %s to %s%s, %s changed, +%d -%d lines.", from.name, to.name, where, counted(sums.Files, "file"), sums.LinesAdded, sums.LinesRemoved)
	if patch != "" {
		text += " " + quote.Notice + "\n\n" + quote.Lines(patch) + "\n"
	}
	if len(leftOut) > 0 || more > 0 {
		text += "\n[Left out, since the patch would be too long: " + quote.Line(strings.Join(leftOut[:min(len(leftOut), maxLeftOut)], ", "))
		if more > 0 {
			text += fmt.Sprintf(" and %s more", counted(more, "file"))
		}
		text += ". Name a file or a folder in path to see it.]"
	}
	return reply{text: text, data: data}
}

// patchOf joins the patches of files as long as they fit when they are quoted, and returns the paths of the
// others.
func patchOf(files []gitstoreapi.DiffFile) (patch string, leftOut []string) {
	var b strings.Builder
	size := 0
	for _, file := range files {
		text := string(file.Patch)
		if text == "" {
			text = fmt.Sprintf("%s %s, which has no lines to show\n", file.Action, quote.Line(file.Path))
		}
		quoted := len(quote.Lines(text)) + 1
		if file.Cut > 0 || size+quoted > maxPatch {
			leftOut = append(leftOut, file.Path)
			continue
		}
		b.WriteString(text)
		size += quoted
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD"), leftOut
}
