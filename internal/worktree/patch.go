package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Patch returns how the files of two commits of this repository differ, as git prints it: a
// summary, then a patch. An empty commit stands for no files. path, unless empty, is a file or a
// folder; it is not a pattern. At most limit bytes are returned; more says that there are
// more.
//
// Errors: CheckpointNotFound, InvalidReference, GitFailed.
func (r *Repo) Patch(ctx context.Context, from, to, path string, limit int) (text []byte, more bool, err error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	sides := []oid{emptyTree, emptyTree}
	for i, commit := range []string{from, to} {
		if commit == "" {
			continue
		}
		if sides[i], err = r.resolve(ctx, commit); err != nil {
			return nil, false, err
		}
	}
	args := []string{"diff-tree", "-r", "--patch", "--stat=100", "--stat-count=100", "--find-renames", "-l200",
		"--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options", sides[0].String(), sides[1].String(), "--"}
	if path != "" {
		args = append(args, path)
	}
	out := &firstBytes{limit: limit}
	if _, err = r.git(ctx, gitCall{args: args, stdout: out}); err != nil && !out.more {
		return nil, false, failGit(err, "compare %s with %s in %s", from, to, r.cfg.GitDir)
	}
	return out.kept.Bytes(), out.more, nil
}

// errEnough ends a command whose further output is not needed.
var errEnough = errors.New("there is enough output")

// firstBytes keeps the beginning of what is written to it, and then refuses to be written to.
type firstBytes struct {
	kept  bytes.Buffer
	limit int
	more  bool
}

// Write implements io.Writer.
func (f *firstBytes) Write(p []byte) (int, error) {
	n := min(len(p), f.limit-f.kept.Len())
	f.kept.Write(p[:n])
	if n < len(p) {
		f.more = true
		return n, errEnough
	}
	return n, nil
}

// LoggedCommit is a commit in the line of checkpoints that a worktree continues.
type LoggedCommit struct {
	Commit string
	// Parent is its first parent; "" for none.
	Parent  string
	Time    time.Time
	Message string
}

// Line returns the commits that lead to a commit by their first parents, newest first, down to
// but without the commit base, unless that is empty; at most limit.
func (r *Repo) Line(ctx context.Context, commit, base string, limit int) ([]LoggedCommit, error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	id, err := r.resolve(ctx, commit)
	if err != nil {
		return nil, err
	}
	args := []string{"log", "--first-parent", "--no-decorate", "--no-notes", "--no-color", "-z", "--format=%H%n%P%n%ct%n%B", "--max-count=" + strconv.Itoa(limit), id.String()}
	if base != "" {
		until, err := r.resolve(ctx, base)
		if err != nil {
			return nil, err
		}
		args = append(args, "^"+until.String())
	}
	out, err := r.git(ctx, gitCall{args: append(args, "--")})
	if err != nil {
		return nil, failGit(err, "list the commits before %s in %s", commit, r.cfg.GitDir)
	}
	var line []LoggedCommit
	for text := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		if text == "" {
			continue
		}
		c, err := parseLogged(text)
		if err != nil {
			return nil, failGit(err, "list the commits before %s in %s", commit, r.cfg.GitDir)
		}
		line = append(line, c)
	}
	return line, nil
}

func parseLogged(text string) (LoggedCommit, error) {
	parts := strings.SplitN(text, "\n", 4)
	if len(parts) < 4 {
		return LoggedCommit{}, fmt.Errorf("git log printed %q", text)
	}
	seconds, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return LoggedCommit{}, fmt.Errorf("git log printed the time %q", parts[2])
	}
	parent, _, _ := strings.Cut(parts[1], " ")
	return LoggedCommit{Commit: parts[0], Parent: parent, Time: time.Unix(seconds, 0).UTC(), Message: parts[3]}, nil
}
