package worktree

import (
	"context"
	"io"
	"iter"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitignore"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// A restore onto a checkpoint replaces some of its files. Its target is computed as a whole
// tree: that checkpoint, with those files replaced. The restore itself then works as any
// other, and what must stay is compared and, after a kill, completed like what changes.

// onto returns the target of a restore of another target's files onto a checkpoint.
func (r *Repo) onto(ctx context.Context, req RestoreRequest, from *target) (*target, error) {
	m, err := r.newMixer(ctx, req, from)
	if err != nil {
		return nil, err
	}
	t, err := r.readTarget(ctx, req.Onto)
	if err != nil {
		return nil, err
	}
	whole := t.codeTree
	t.work = m.mix(t.work, from.work)
	if err := m.blockedError(); err != nil {
		return nil, err
	}
	switch t.codeTree = rootTree(t.work); t.codeTree {
	case whole: // nothing changes
	case from.codeTree:
		t.code = from.code
	default:
		t.code = noOID // no commit has these files
	}
	t.trees = nil // no longer those of one commit
	return t, nil
}

// CheckPaths returns the error with which Restore would refuse a request because of its
// paths, if the worktree stays as it is: PathNotFound if one of them selects nothing, and
// PathBlocked if files that must stay are in the way. Onto may be left out.
func (r *Repo) CheckPaths(ctx context.Context, req RestoreRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, err := r.readTarget(ctx, req.Target)
	if err != nil {
		return err
	}
	m, err := r.newMixer(ctx, req, from)
	if err != nil {
		return err
	}
	work, home, err := r.openRoots()
	if err != nil {
		return err
	}
	defer closeRoots(work, home)
	now, err := r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return err
	}
	if err := m.allFound(req.Paths, now.work, from.work); err != nil {
		return err
	}
	m.mix(now.work, from.work)
	return m.blockedError()
}

// allFound returns an error about the paths that select nothing of two trees.
func (m *mixer) allFound(paths []string, trees ...*dir) error {
	missing := map[string]pathmatch.Set{}
	for _, p := range paths {
		set, err := pathmatch.New([]string{p})
		if err != nil {
			return fail(PathNotFound, nil, "%v", err)
		}
		missing[p] = set
	}
	var visit func(at string, d *dir)
	visit = func(at string, d *dir) {
		for i := range d.entries {
			e := &d.entries[i]
			if len(missing) == 0 || e.hidden || m.untouched(e) {
				continue
			}
			p := joinPath(at, e.name)
			for text, set := range missing {
				if set.Match(p) {
					delete(missing, text)
				}
			}
			if e.dir != nil {
				visit(p, e.dir)
			}
		}
	}
	for _, tree := range trees {
		visit("", tree)
	}
	for _, p := range paths { // the first one, in the user's order
		if _, ok := missing[p]; ok {
			return fail(PathNotFound, nil, "the path %q selects nothing: neither the target nor the worktree has such a file, apart from files that checkpoints skip", clip.Marked(p, 100))
		}
	}
	return nil
}

// mixer replaces files of one tree by those of another.
type mixer struct {
	paths pathmatch.Set
	// attributes is set if the new files come with permission bits and empty folders.
	attributes bool
	// knowsPipes is set if they come with named pipes.
	knowsPipes bool
	// foreign is set if the new files are those of a commit that is not Clew's: it lacks
	// the files that ignores name, and those of nested repositories.
	foreign bool
	ignores map[string]*gitignore.File // by folder
	// overlay is set if files are only added and replaced: what the new ones lack stays.
	overlay bool
	blocked []string
}

// newMixer returns the mixer that takes files from a target.
func (r *Repo) newMixer(ctx context.Context, req RestoreRequest, from *target) (*mixer, error) {
	m := &mixer{attributes: !from.state.isZero(), knowsPipes: from.knowsPipes}
	var err error
	if m.paths, err = pathmatch.New(req.Paths); err != nil {
		return nil, fail(PathNotFound, nil, "%v", err)
	}
	if m.attributes {
		return m, nil
	}
	c, err := r.readCommit(ctx, from.code)
	if err == nil && !c.ours {
		m.foreign = true
		m.ignores, err = r.readIgnores(ctx, from.work)
	}
	return m, err
}

// maxNamedPath, in bytes, is how much of a path an error names. The agent chooses it, and what to do
// about it is said behind it.
const maxNamedPath = 400

// blockedError returns the error about the paths that cannot be created.
func (m *mixer) blockedError() error {
	if len(m.blocked) == 0 {
		return nil
	}
	return fail(PathBlocked, nil, "the target has %s where the worktree has something that has to stay: move it elsewhere, or name it in the paths, too", gitpath.Quote(clip.Marked(m.blocked[0], maxNamedPath)))
}

// spot is a place in both trees.
type spot struct {
	path     string
	selected bool // by a path that selects this folder
	ignored  bool // with this folder
	rules    *gitignore.Rules
}

func (m *mixer) mix(old, next *dir) *dir {
	return m.folder(spot{selected: m.paths.All()}, old, next)
}

// folder mixes the entries of two folders, either of which may be nil.
func (m *mixer) folder(at spot, old, next *dir) *dir {
	if f := m.ignores[at.path]; f != nil && next != nil {
		at.rules = at.rules.With(at.path, f)
	}
	out := &dir{}
	for o, n := range pairs(old, next) {
		if n != nil && (n.hidden || gitRefuses(n.name, n.mode == modeLink)) {
			n = nil // a repository is not part of the files
		}
		if o == nil && n == nil {
			continue
		}
		child := m.child(at, pick(o, n))
		e := o
		switch {
		case o != nil && m.untouched(o) && m.overlay:
			m.block(child, n)
			e = nil // the restore finds it there, and leaves it alone
		case o != nil && (o.hidden || m.untouched(o)):
			m.block(child, n)
		case child.selected:
			e = m.replace(child, o, n)
		default:
			e = m.descend(child, o, n)
		}
		if e != nil {
			out.entries = append(out.entries, *e)
		}
	}
	return out
}

// untouched reports whether e is something that a checkpoint skips and no restore changes.
func (m *mixer) untouched(e *entry) bool {
	return e.skip != "" && !(e.isPipe() && m.knowsPipes)
}

func (m *mixer) child(at spot, e *entry) spot {
	at.path = joinPath(at.path, e.name)
	at.selected = at.selected || m.paths.Match(at.path)
	at.ignored = at.ignored || m.foreign && at.rules.Match(at.path, e.dir != nil)
	return at
}

// block notes that n, if it is selected, cannot be created where it belongs.
func (m *mixer) block(at spot, n *entry) {
	if n != nil && (at.selected || n.dir != nil && len(m.folder(at, nil, n.dir).entries) > 0) {
		m.blocked = append(m.blocked, at.path)
	}
}

// descend returns an entry that is not selected itself, with what is selected in it; nil if
// there is none.
func (m *mixer) descend(at spot, o, n *entry) *entry {
	var old, next *dir
	if o != nil {
		old = o.dir
	}
	if n != nil {
		next = n.dir
	}
	switch {
	case old == nil && next == nil:
		return o
	case old != nil:
		return withDir(o, m.folder(at, old, next))
	}
	made := m.folder(at, nil, next)
	switch {
	case len(made.entries) == 0:
		return o
	case o != nil:
		m.blocked = append(m.blocked, at.path)
		return o
	}
	return withDir(n, made)
}

// replace returns what becomes of a selected entry: n, or what has to stay of o; nil for
// nothing.
func (m *mixer) replace(at spot, o, n *entry) *entry {
	switch {
	case o == nil && n.dir == nil:
		return n
	case o == nil:
		return withDir(n, m.folder(at, nil, n.dir))
	case m.overlay && n != nil && n.dir == nil && o.dir != nil:
		m.blocked = append(m.blocked, at.path)
		return o
	case m.keeps(at, o, n):
		return o
	case o.dir == nil && n == nil:
		return nil
	case o.dir == nil && n.dir != nil:
		return m.replace(at, nil, n)
	case o.dir == nil:
		return m.adopt(o, n)
	case n != nil && n.dir != nil:
		return withDir(m.adopt(o, n), m.folder(at, o.dir, n.dir))
	}
	stays := len(o.dir.entries) == 0 && !m.attributes && n == nil // the target cannot know it
	rest := m.folder(at, o.dir, nil)
	switch {
	case len(rest.entries) > 0 && n != nil:
		m.blocked = append(m.blocked, at.path)
		return o
	case len(rest.entries) > 0 || stays:
		return withDir(o, rest)
	}
	return n
}

// keeps reports whether a selected entry o stays as it is, whatever the target has there.
func (m *mixer) keeps(at spot, o, n *entry) bool {
	if n == nil {
		return m.overlay || at.ignored || m.foreign && o.dir.isRepository()
	}
	return m.foreign && n.isSubmodule() && o.dir != nil
}

// adopt returns n with the permission bits of o, if the target does not know its own.
func (m *mixer) adopt(o, n *entry) *entry {
	e := *n
	if !m.attributes && o.mode == n.mode {
		e.perm = o.perm
	}
	return &e
}

// isRepository reports whether the folder is the worktree of a nested repository.
func (d *dir) isRepository() bool {
	e := d.find(gitName)
	return e != nil && e.hidden
}

func withDir(e *entry, d *dir) *entry {
	c := *e
	c.dir = d
	return &c
}

// pairs returns the entries of two folders by name; one of each pair may be nil.
func pairs(a, b *dir) iter.Seq2[*entry, *entry] {
	return func(yield func(*entry, *entry) bool) {
		var x, y []entry
		if a != nil {
			x = a.entries
		}
		if b != nil {
			y = b.entries
		}
		for len(x) > 0 || len(y) > 0 {
			var p, q *entry
			if len(y) == 0 || len(x) > 0 && x[0].name <= y[0].name {
				p = &x[0]
			}
			if len(x) == 0 || len(y) > 0 && y[0].name <= x[0].name {
				q = &y[0]
			}
			if p != nil {
				x = x[1:]
			}
			if q != nil {
				y = y[1:]
			}
			if !yield(p, q) {
				return
			}
		}
	}
}

// maxIgnores bounds the .gitignore files of a commit that are read. Agents write them, and
// they take many times their size in memory. What exceeds it names no file.
const maxIgnores = 1 << 20

// readIgnores reads the .gitignore files of a tree.
func (r *Repo) readIgnores(ctx context.Context, tree *dir) (map[string]*gitignore.File, error) {
	var folders []string
	var ids []oid
	tree.walkFiles("", func(p string, e *entry) {
		if e.name == ".gitignore" && e.mode != modeLink && e.dir == nil { // git follows no link
			folder, _ := splitPath(p)
			folders, ids = append(folders, folder), append(ids, e.oid)
		}
	})
	files, parsed := map[string]*gitignore.File{}, map[oid]*gitignore.File{}
	room := int64(maxIgnores)
	err := r.eachObject(ctx, ids, func(i int, _ string, size int64, content io.Reader) error {
		if f := parsed[ids[i]]; f != nil {
			files[folders[i]] = f
		} else if room -= size; size > gitignore.MaxBytes || room < 0 {
			files[folders[i]] = gitignore.Unreadable()
		} else {
			text, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			parsed[ids[i]] = gitignore.Parse(text)
			files[folders[i]] = parsed[ids[i]]
		}
		_, err := io.Copy(io.Discard, content)
		return err
	})
	return files, err
}
