package worktree

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Reaches reports whether this repository has a commit, given by its full id, that local refs
// with one of the prefixes reach, or the origin's branches and tags as they were when the
// worktree was created.
func (r *Repo) Reaches(ctx context.Context, commit string, prefixes ...string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isCommitID(commit) {
		return false, fail(InvalidReference, nil, "%q is not a commit id of 40 hexadecimal digits", commit)
	}
	// The object with this id, not the commit that a tag with it points to.
	switch id, err := r.resolve(ctx, commit); {
	case ReasonOf(err) == CheckpointNotFound, err == nil && id.String() != commit:
		return false, nil
	case err != nil:
		return false, err
	}
	tips, err := r.tips(ctx, prefixes)
	if err != nil || len(tips) == 0 {
		return false, err
	}
	var ask strings.Builder
	fmt.Fprintln(&ask, commit)
	for _, tip := range tips {
		fmt.Fprintln(&ask, "^"+tip)
	}
	left, err := r.git(ctx, gitCall{args: []string{"rev-list", "--max-count=1", "--stdin"}, stdin: strings.NewReader(ask.String())})
	if err != nil {
		return false, r.failCorrupt(err, "look for the commit %s in the history of the checkpoints", commit)
	}
	return strings.TrimSpace(string(left)) == "", nil
}

// tips returns the commits of the refs with one of the prefixes, and of the origin's refs: the
// parents of the pristine commit. That commit and those of states hold no files of the task.
func (r *Repo) tips(ctx context.Context, prefixes []string) ([]string, error) {
	tips := map[string]bool{}
	for _, prefix := range prefixes {
		refs, err := r.Refs(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for _, id := range refs {
			tips[id] = true
		}
	}
	if r.pristine != nil {
		id, err := parseOID(r.pristine.Commit)
		if err != nil {
			return nil, failIO(err, "read the pristine commit of %s", r.cfg.GitDir)
		}
		c, err := r.readCommit(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, parent := range c.parents {
			tips[parent.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(tips)), nil
}
