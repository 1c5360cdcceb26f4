package worktree

import (
	"context"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// CopyFiles writes the files of a checkpoint that paths select to the worktree, and returns
// how many those are. Other files stay, whatever the checkpoint has, and so do repositories.
// Like Restore, it verifies every object before it writes the first file, and if it is
// killed, another call completes it. The agent must not be running.
//
// Errors: those of Restore; PathNotFound if a path selects no file of the checkpoint.
func (r *Repo) CopyFiles(ctx context.Context, code string, paths []string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, err := r.readTarget(ctx, Target{Code: code})
	if err != nil {
		return 0, err
	}
	selected, err := selectedFiles(from.work, paths)
	if err != nil {
		return 0, err
	}
	m, err := r.newMixer(ctx, RestoreRequest{Paths: paths}, from)
	if err != nil {
		return 0, err
	}
	m.overlay = true
	work, home, err := r.openRoots()
	if err != nil {
		return 0, err
	}
	defer closeRoots(work, home)
	now, err := r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return 0, err
	}
	t := &target{code: noOID, work: m.mix(now.work, from.work)}
	t.codeTree = rootTree(t.work)
	if len(m.blocked) > 0 {
		return 0, fail(PathBlocked, nil, "the checkpoint has a file %s where the repository has something else: leave it out of the paths", gitpath.Quote(clip.Marked(m.blocked[0], maxNamedPath)))
	}
	s := &restoring{r: r, ctx: ctx, t: t, scope: ScopeCode, work: work, home: home, noHome: true}
	if _, err := s.run(); err != nil {
		return 0, err
	}
	return selected, nil
}

// selectedFiles returns the number of files that paths select. Each of them must select one.
func selectedFiles(tree *dir, paths []string) (int, error) {
	sets := make([]pathmatch.Set, len(paths))
	for i, p := range paths {
		var err error
		if sets[i], err = pathmatch.New([]string{p}); err != nil {
			return 0, fail(PathNotFound, nil, "%v", err)
		}
	}
	used, count := make([]bool, len(paths)), 0
	tree.walkFiles("", func(path string, _ *entry) {
		found := false
		for i, set := range sets {
			if matchesBelow(set, path) {
				found, used[i] = true, true
			}
		}
		if found {
			count++
		}
	})
	for i, p := range paths { // the first one, in the user's order
		if !used[i] {
			return 0, fail(PathNotFound, nil, "the path %q selects no file of the checkpoint", clip.Marked(p, 100))
		}
	}
	return count, nil
}

// matchesBelow reports whether a set selects a file, or a folder that it is in.
func matchesBelow(set pathmatch.Set, path string) bool {
	for end, c := range path {
		if c == '/' && set.Match(path[:end]) {
			return true
		}
	}
	return set.Match(path)
}
