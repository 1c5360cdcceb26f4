package worktree

import (
	"context"

	"github.com/clew-dev/clew/internal/gitignore"
	"github.com/clew-dev/clew/internal/gitpath"
)

// stager computes the tree that git would commit if everything in the worktree were added,
// from the tree of the agent's commit and the files of a checkpoint.
type stager struct {
	ignores map[string]*gitignore.File // by folder
	exclude *gitignore.Rules           // of .git/info/exclude
	index   map[string]indexEntry      // the agent's index, by path; nil if it cannot be read
	dirty   map[string]bool            // the files that git status lists, by quoted path; nil if not all are known
	skipped map[string]bool            // by quoted path
	// someSkipped is set if not all skipped files are known: then no file counts as deleted.
	someSkipped bool
}

// stage returns the tree that the agent would commit.
func (r *Repo) stage(ctx context.Context, head *dir, t *target) (*dir, error) {
	s := &stager{skipped: map[string]bool{}, someSkipped: t.meta.SkippedCount > len(t.meta.Skipped)}
	for _, skipped := range t.meta.Skipped {
		s.skipped[skipped.Path] = true
	}
	if agent := t.meta.Agent; agent.DirtyCount == len(agent.Dirty) {
		s.dirty = map[string]bool{}
		for _, d := range agent.Dirty {
			s.dirty[d.Path] = true
		}
	}
	var err error
	if s.ignores, err = r.readIgnores(ctx, t.work); err != nil {
		return nil, err
	}
	text, err := r.agentFile(ctx, t, "info/exclude", gitignore.MaxBytes)
	if err != nil {
		return nil, err
	}
	s.exclude = s.exclude.With("", gitignore.Parse(text))
	raw, err := r.agentFile(ctx, t, "index", maxIndexBytes)
	if err != nil {
		return nil, err
	}
	if list, err := parseIndex(raw); err == nil {
		s.index = make(map[string]indexEntry, len(list))
		for _, e := range list {
			s.index[e.path] = e
		}
	}
	return s.folder(spot{rules: s.exclude}, head, t.work), nil
}

// agentFile returns a file of the agent's repository; nothing if there is none or it is too
// large.
func (r *Repo) agentFile(ctx context.Context, t *target, name string, limit int64) ([]byte, error) {
	e := t.work.lookup(gitName + "/" + name)
	if e == nil || e.dir != nil || e.mode == modeLink {
		return nil, nil
	}
	text, err := r.readBlob(ctx, e.oid, limit)
	if err != nil && ReasonOf(err) == "" && ctx.Err() == nil {
		return nil, nil
	}
	return text, err
}

// folder stages the entries of two folders, either of which may be nil.
func (s *stager) folder(at spot, head, now *dir) *dir {
	if f := s.ignores[at.path]; f != nil && now != nil {
		at.rules = at.rules.With(at.path, f)
	}
	out := &dir{}
	for h, n := range pairs(head, now) {
		if n != nil && (!n.stored() || gitRefuses(n.name, n.mode == modeLink)) {
			n = nil
		}
		if h == nil && n == nil {
			continue
		}
		child := spot{path: joinPath(at.path, pick(h, n).name), rules: at.rules}
		child.ignored = at.ignored || at.rules.Match(child.path, n != nil && n.dir != nil)
		if made := s.entry(child, h, n); made != nil {
			out.entries = append(out.entries, *made)
		}
	}
	return out
}

// entry returns what is staged for an entry; nil for nothing.
func (s *stager) entry(at spot, h, n *entry) *entry {
	switch {
	case n == nil:
		return s.missing(at, h)
	case h == nil:
		return s.untracked(at, n)
	case h.isSubmodule() && n.dir != nil, n.dir.isRepository(), s.unchanged(at, h, n):
		return h
	case h.dir == nil && n.dir == nil:
		return n
	case h.dir != nil && n.dir != nil:
		return withDir(n, s.folder(at, h.dir, n.dir))
	}
	if kept := s.missing(at, h); kept != nil {
		return kept
	}
	return s.untracked(at, n)
}

// unchanged reports whether git takes a file for that of the agent's commit: because its
// content differs in line endings only, or because the agent told git not to look.
func (s *stager) unchanged(at spot, h, n *entry) bool {
	x, found := s.index[at.path]
	if !found || h.dir != nil || n.dir != nil {
		return false
	}
	same := x.stage == 0 && x.oid == h.oid && x.mode == h.mode
	return x.ignore || same && s.dirty != nil && !s.dirty[gitpath.Quote(at.path)]
}

// missing returns what stays of a tracked entry that the checkpoint does not have.
func (s *stager) missing(at spot, h *entry) *entry {
	switch {
	case s.someSkipped || s.skipped[gitpath.Quote(at.path)] || s.index[at.path].ignore:
		return h
	case h.dir == nil || h.isSubmodule():
		return nil
	}
	if rest := s.folder(at, h.dir, nil); rest.hasStored() {
		return withDir(h, rest)
	}
	return nil
}

// untracked returns what is added of an entry that the agent's commit does not have. What the
// agent has staged is added although it is ignored.
func (s *stager) untracked(at spot, n *entry) *entry {
	_, staged := s.index[at.path]
	switch {
	case n.dir.isRepository() || n.isSubmodule():
		return nil
	case n.dir == nil && at.ignored && !staged:
		return nil
	case n.dir == nil:
		return n
	}
	return withDir(n, s.folder(at, nil, n.dir))
}
