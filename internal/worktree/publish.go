package worktree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// PublishRequest describes what of a checkpoint is published.
type PublishRequest struct {
	// Target is the checkpoint; its State is required.
	Target Target
	// Uncommitted adds a commit on top of the agent's, with what the agent left uncommitted.
	Uncommitted bool
	// Message and Author are those of that commit. Author has the form "Name <email>".
	Message, AuthorName, AuthorEmail string
}

// Publication is the commit by which a checkpoint is published.
type Publication struct {
	// Commit is what to push; "" if the task has no commit and nothing to commit.
	Commit string
	// Base is the commit that the task started from, "" if there is none.
	Base string
	// OnTop is set if Commit was made for what the agent left uncommitted.
	OnTop bool
}

// Unchanged reports whether there is nothing that the task's base does not have.
func (p Publication) Unchanged() bool { return p.Commit == p.Base }

// PublishCommit returns the commit by which a checkpoint is published: the commit that the
// agent had checked out, or one on top of it with what git would show as changed or
// untracked. The same request for the same checkpoint gives the same commit.
//
// Left as they are in the agent's commit: files that the checkpoint skips, submodules, and
// tracked files below a nested repository. Left out: untracked files that .gitignore names,
// and those of nested repositories. Contents are those of the worktree: git's conversion of
// line endings does not take place.
//
// Errors: CommitMissing, CheckpointNotFound, CheckpointCorrupted, StorageFull, GitFailed.
func (r *Repo) PublishCommit(ctx context.Context, req PublishRequest) (Publication, error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	t, err := r.readTarget(ctx, req.Target)
	if err != nil {
		return Publication{}, err
	}
	out := Publication{Base: t.meta.Origin.Base}
	out.Commit, err = r.agentCommit(ctx, t)
	if err != nil || !req.Uncommitted {
		return out, err
	}
	head := &dir{}
	if out.Commit != "" {
		if head, _, err = r.readTree(ctx, out.Commit); err != nil {
			return Publication{}, err
		}
	}
	wanted, err := r.stage(ctx, head, t)
	if err != nil || rootTree(wanted) == rootTree(head) {
		return out, err
	}
	if out.Commit, err = r.commitOnTop(ctx, req, out.Commit, t.code, head, wanted); err != nil {
		return Publication{}, err
	}
	out.OnTop = true
	return out, nil
}

// agentCommit returns the commit that the agent had checked out, or else the task's base; ""
// if there is neither.
func (r *Repo) agentCommit(ctx context.Context, t *target) (string, error) {
	head := t.meta.Agent.Head
	if head == "" {
		head = t.meta.Origin.Base
	}
	if head == "" {
		return "", nil
	}
	id, err := r.resolve(ctx, head)
	if ReasonOf(err) == CheckpointNotFound || err == nil && id.String() != head {
		return "", fail(CommitMissing, nil, "the commit %s, which the agent had checked out, was not stored with the checkpoint", head)
	}
	return head, err
}

// commitOnTop commits a tree on top of a commit, or of nothing if parent is "". Its time is
// that of the checkpoint.
func (r *Repo) commitOnTop(ctx context.Context, req PublishRequest, parent string, checkpoint oid, head, wanted *dir) (string, error) {
	tree, err := r.writeTree(ctx, parent, head, wanted)
	if err != nil {
		return "", err
	}
	at, err := r.gitText(ctx, "log", "-1", "--format=%ct +0000", "--end-of-options", checkpoint.String())
	if err != nil {
		return "", failGit(err, "read the time of the checkpoint %s", checkpoint)
	}
	args := []string{"-c", "i18n.commitEncoding=UTF-8", "commit-tree"}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	out, err := r.git(ctx, gitCall{args: append(args, tree.String()), stdin: strings.NewReader(req.Message), env: []string{
		"GIT_AUTHOR_NAME=" + req.AuthorName, "GIT_AUTHOR_EMAIL=" + req.AuthorEmail, "GIT_AUTHOR_DATE=" + at,
		"GIT_COMMITTER_NAME=" + req.AuthorName, "GIT_COMMITTER_EMAIL=" + req.AuthorEmail, "GIT_COMMITTER_DATE=" + at,
	}})
	return strings.TrimSpace(string(out)), failGit(err, "commit what the agent left uncommitted")
}

// writeTree stores a tree, given by its difference to a commit's.
func (r *Repo) writeTree(ctx context.Context, parent string, head, wanted *dir) (oid, error) {
	folder, err := os.MkdirTemp(r.own(""), "tmp_index_*")
	if err != nil {
		return noOID, failIO(err, "make a folder in %s", r.cfg.GitDir)
	}
	defer os.RemoveAll(folder)
	env := []string{"GIT_INDEX_FILE=" + folder + "/index"}
	read := []string{"read-tree", "--empty"}
	if parent != "" {
		read = []string{"read-tree", parent}
	}
	var out []byte
	for _, call := range []gitCall{
		{args: read},
		{args: []string{"update-index", "-z", "--index-info"}, stdin: strings.NewReader(indexInfo(diffTrees(head, wanted)))},
		{args: []string{"write-tree"}},
	} {
		call.env = env
		if out, err = r.git(ctx, call); err != nil {
			return noOID, failGit(err, "store what the agent left uncommitted")
		}
	}
	tree, err := parseOID(strings.TrimSpace(string(out)))
	if want := rootTree(wanted); err == nil && tree != want {
		err = fmt.Errorf("git stored the tree %s instead of %s", tree, want)
	}
	return tree, failIO(err, "store what the agent left uncommitted")
}

// indexInfo renders changes for git update-index, deletions first: a file may have become a
// folder.
func indexInfo(changes []treeChange) string {
	var gone, made strings.Builder
	for _, c := range changes {
		if c.new == nil {
			fmt.Fprintf(&gone, "0 %s\t%s\x00", noOID, c.path)
		} else {
			fmt.Fprintf(&made, "%o %s\t%s\x00", c.new.gitMode(), c.new.gitOID(), c.path)
		}
	}
	return gone.String() + made.String()
}

// mergeBase returns the best common ancestor of two commits; the empty tree if there is none.
func (r *Repo) mergeBase(ctx context.Context, a, b string) (string, error) {
	if a == "" {
		return emptyTree.String(), nil
	}
	if _, err := r.resolve(ctx, a); ReasonOf(err) == CheckpointNotFound {
		return emptyTree.String(), nil
	}
	text, err := r.gitText(ctx, "merge-base", "--end-of-options", a, b)
	var e *gitError
	if errors.As(err, &e) && strings.TrimSpace(e.stderr) == "" && !interrupted(err) {
		return emptyTree.String(), nil // unrelated histories
	}
	if err != nil {
		return "", r.failCorrupt(err, "compare the histories of %s and %s", a, b)
	}
	return text, nil
}
