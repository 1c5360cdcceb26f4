package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// taskAndPaths requires the name of a task, and allows paths after --.
func taskAndPaths(cmd *cobra.Command, args []string) error {
	named := args
	if at := cmd.ArgsLenAtDash(); at >= 0 {
		named = args[:at]
	}
	if len(named) > 1 {
		return fmt.Errorf("unexpected argument %q; write -- before paths; usage: %s", named[1], cmd.UseLine())
	}
	return exactly("TASK")(cmd, named)
}

// fullCommit is the id of a commit, as git rev-parse prints it.
var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// checkFiles checks what rewinds only files: paths, and a commit. They set the scope, unless the
// user has.
func (o *rewind) checkFiles(cmd *cobra.Command) error {
	if cmd.Flags().Changed("to-commit") && !fullCommit.MatchString(o.toCommit) {
		return fmt.Errorf("--to-commit is %q; it must be the full id of a commit: 40 hexadecimal digits, as git rev-parse prints them", o.toCommit)
	}
	atCommit := o.toCommit != "" || o.to == historyv1.WordBase
	if len(o.paths) == 0 && !atCommit {
		return nil
	}
	if _, err := pathmatch.New(o.paths); err != nil {
		return err
	}
	switch {
	case !o.scopeGiven(cmd), o.scope.value == string(v1alpha1.RewindCode):
	case atCommit:
		return errors.New("a commit, such as base, holds only files: use --code with it, or rewind to a checkpoint")
	default:
		return errors.New("paths select files: use --code with them, or leave the paths out")
	}
	o.scope.value = string(v1alpha1.RewindCode)
	return nil
}

// toCommit is the target of a rewind to a commit.
func toCommit(id string) *rewindTarget {
	return &rewindTarget{field: "commit", value: id, text: "commit " + clip.Bytes(id, 12)}
}

// toBase is the target of a rewind to the commit that the task started from.
func (s *session) toBase(ctx context.Context, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*rewindTarget, error) {
	known, base := false, ""
	for i := range list.Items {
		if c := &list.Items[i]; c.Status.Number > 0 && c.Status.TaskUID == string(task.UID) {
			known, base = true, c.Status.Base
		}
	}
	if !known {
		page := &historyv1.CheckpointList{}
		params := url.Values{"uid": {string(task.UID)}, "limit": {"1"}}
		if err := s.historyGet(ctx, []string{"tasks", task.Name, "checkpoints"}, params, page); err != nil {
			return nil, fmt.Errorf("no Checkpoint object says what task %s started from: %w", task.Name, err)
		}
		if len(page.Items) == 0 {
			return nil, fmt.Errorf("task %s has no checkpoint yet, so it is not known what it started from", task.Name)
		}
		base = page.Items[0].Base
	}
	if base == "" {
		return nil, fmt.Errorf("task %s started with an empty repository, which has no commit: rewind it to a checkpoint", task.Name)
	}
	t := toCommit(base)
	t.text = "base (" + t.text + ")"
	return t, nil
}

// ownStart returns the row about the start of a task that continues another one's work, which is
// not its base; none for other tasks.
func ownStart(task *v1alpha1.Task) [][]string {
	from, at := task.Spec.StartFrom, task.Status.Source
	if from == nil || len(from.CopyFiles) > 0 || at == nil {
		return nil
	}
	return [][]string{{"  its own start", fmt.Sprintf("was checkpoint %d of task %s: --to-commit %s leads to those files", at.Checkpoint, from.TaskRef.Name, at.Commit)}}
}

// scopeGiven reports whether a flag says what to rewind.
func (o *rewind) scopeGiven(cmd *cobra.Command) bool {
	for _, set := range o.only {
		if *set {
			return true
		}
	}
	return cmd.Flags().Changed("scope")
}

// pathsPatch returns the value of spec.rewind.paths.
func (o *rewind) pathsPatch() any {
	if len(o.paths) == 0 {
		return nil
	}
	return o.paths
}

// filesAt describes the files that are rewound.
func filesAt(paths []string) string {
	if len(paths) == 0 || slices.Equal(paths, []string{pathmatch.Everything}) {
		return "the files"
	}
	return fmt.Sprintf("only the files at %s", clip.Runes(oneLine(strings.Join(paths, " ")), 100))
}

// scopePatch returns the value of spec.rewind.scope. An undo has none.
func (o *rewind) scopePatch() any {
	if o.scope == nil {
		return nil
	}
	return o.scope.value
}

// subject names what was rewound, in a sentence that begins with it; "" for the task.
func (o *rewind) subject() string {
	if len(o.paths) == 0 {
		return ""
	}
	return plural(int64(len(o.paths)), "path") + " "
}
