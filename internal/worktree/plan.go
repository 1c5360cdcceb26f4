package worktree

import (
	"strings"

	"github.com/clew-dev/clew/internal/gitpath"
)

// op is one change that a restore makes below a root.
type op struct {
	path   string
	e      *entry // the target's entry; nil for a removal
	folder bool
}

// plan lists the changes that turn the tree on disk into a target. If it is empty,
// they are equal, apart from the files that are kept.
type plan struct {
	removes   []op // children before their folders
	mkdirs    []op // folders before their children
	writes    []op
	pipes     []op
	chmods    []op // children before their folders
	locked    map[string]uint32
	kept      []Skipped
	conflicts []string
	unchanged int
}

func (p *plan) empty() bool {
	return len(p.removes)+len(p.mkdirs)+len(p.writes)+len(p.pipes)+len(p.chmods) == 0
}

// first lists up to five of the paths that a plan would change.
func (p *plan) first() string {
	var names []string
	for _, list := range [][]op{p.removes, p.mkdirs, p.writes, p.pipes, p.chmods} {
		for _, o := range list {
			if len(names) == 5 {
				return strings.Join(names, ", ") + " and more"
			}
			names = append(names, gitpath.Quote(o.path))
		}
	}
	return strings.Join(names, ", ")
}

// planner compares a scanned tree with a target.
type planner struct {
	plan
	perms       bool // the target has permission bits and the .git entries
	leaveHidden bool // do not touch anything called .git
	knowsPipes  bool // the target has all named pipes; any other is removed
}

// makePlan compares the tree on disk with the target. known is true if the target
// includes its state commit, knowsPipes if that one lists the named pipes.
func makePlan(cur, tgt *dir, known, knowsPipes bool) *plan {
	p := &planner{perms: known, leaveHidden: !known, knowsPipes: knowsPipes}
	p.locked = map[string]uint32{}
	p.folder(place{}, cur, tgt)
	return &p.plan
}

// place is the planner's position in the tree.
type place struct {
	path string
	git  bool   // inside something called .git
	rel  string // path inside that .git
}

func (at place) child(name string, hidden bool) place {
	next := place{path: joinPath(at.path, name), git: at.git || hidden}
	if at.git {
		next.rel = joinPath(at.rel, name)
	}
	return next
}

// keepsExtra reports whether files that the target lacks are kept at this place:
// a restore adds objects to a repository and never removes any.
func (at place) keepsExtra() bool {
	return at.git && inStore(at.rel) && !strings.HasSuffix(at.rel, "objects/info/alternates")
}

// folder compares two folders, either of which may be nil.
func (p *planner) folder(at place, cur, tgt *dir) {
	var a, b []entry
	if cur != nil {
		a = cur.entries
	}
	if tgt != nil {
		b = tgt.entries
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || (len(a) > 0 && a[0].name < b[0].name):
			p.entry(at.child(a[0].name, a[0].hidden), &a[0], nil)
			a = a[1:]
		case len(a) == 0 || b[0].name < a[0].name:
			p.entry(at.child(b[0].name, b[0].hidden), nil, &b[0])
			b = b[1:]
		default:
			p.entry(at.child(a[0].name, a[0].hidden || b[0].hidden), &a[0], &b[0])
			a, b = a[1:], b[1:]
		}
	}
}

// entry compares the current entry c with the target's entry t; one of them may be nil.
func (p *planner) entry(at place, c, t *entry) {
	if c != nil && c.dir != nil && c.perm&0o300 != 0o300 {
		p.locked[at.path] = c.perm
	}
	switch {
	case c != nil && c.hidden && p.leaveHidden:
	case c != nil && c.skip == skipTransient && at.keepsExtra():
	case c != nil && c.skip == skipTransient:
		p.remove(at, c)
		p.create(at, t)
	case c != nil && p.stays(c, t):
		p.keep(at, c)
		p.conflict(at, t)
	case t == nil:
		if !at.keepsExtra() {
			p.remove(at, c)
		} else if c.dir != nil {
			p.folder(at, c.dir, nil)
		}
	case c == nil:
		p.create(at, t)
	case c.dir != nil && t.dir != nil:
		if p.perms && !c.dir.partial && !t.dir.partial && c.perm&0o777 != t.perm&0o777 {
			defer func() { p.chmods = append(p.chmods, op{path: at.path, e: t, folder: true}) }()
		}
		p.folder(at, c.dir, t.dir)
	case c.dir != nil:
		if p.remove(at, c) {
			p.conflict(at, t)
		} else {
			p.create(at, t)
		}
	case t.dir != nil:
		p.remove(at, c)
		p.create(at, t)
	default:
		p.file(at, c, t)
	}
}

// stays reports whether c is something that a restore leaves alone where the target has t,
// which may be nil.
func (p *planner) stays(c, t *entry) bool {
	return c.skip != "" && !(c.isPipe() && (p.knowsPipes || t.isPipe()))
}

// file compares two files, links or named pipes.
func (p *planner) file(at place, c, t *entry) {
	sameKind := (c.mode == modeLink) == (t.mode == modeLink)
	switch {
	case t.isPipe() && !c.isPipe():
		p.remove(at, c)
		p.create(at, t)
	case !sameKind || c.oid != t.oid:
		p.writes = append(p.writes, op{path: at.path, e: t})
	case c.mode == modeLink:
		p.unchanged++
	case c.mode != t.mode || (p.perms && c.perm&0o777 != t.perm&0o777):
		p.chmods = append(p.chmods, op{path: at.path, e: t})
	default:
		p.unchanged++
	}
}

// create plans the creation of t and everything in it.
func (p *planner) create(at place, t *entry) {
	switch {
	case t == nil:
	case t.isPipe():
		p.pipes = append(p.pipes, op{path: at.path, e: t})
		p.chmods = append(p.chmods, op{path: at.path, e: t})
	case t.dir == nil:
		p.writes = append(p.writes, op{path: at.path, e: t})
	default:
		p.mkdirs = append(p.mkdirs, op{path: at.path, e: t, folder: true})
		p.folder(at, nil, t.dir)
		if !t.dir.partial {
			p.chmods = append(p.chmods, op{path: at.path, e: t, folder: true})
		}
	}
}

// remove plans the removal of c and reports whether anything in it is kept.
func (p *planner) remove(at place, c *entry) (stays bool) {
	switch {
	case c.hidden && p.leaveHidden:
		return true
	case c.skip == skipTransient:
	case p.stays(c, nil):
		p.keep(at, c)
		return true
	case c.dir != nil:
		if c.perm&0o300 != 0o300 {
			p.locked[at.path] = c.perm
		}
		for i := range c.dir.entries {
			e := &c.dir.entries[i]
			if p.remove(at.child(e.name, e.hidden), e) {
				stays = true
			}
		}
		if stays || c.dir.partial {
			return true
		}
	}
	p.removes = append(p.removes, op{path: at.path, folder: c.dir != nil})
	return false
}

// keep reports c as a file that the restore leaves alone.
func (p *planner) keep(at place, c *entry) {
	if c.skip != skipExcluded {
		p.kept = append(p.kept, Skipped{Path: gitpath.Quote(at.path), Reason: c.skip, Bytes: c.stat.size})
	}
}

// conflict reports that t cannot be created, since a kept file occupies its path.
func (p *planner) conflict(at place, t *entry) {
	if t != nil {
		p.conflicts = append(p.conflicts, gitpath.Quote(at.path))
	}
}
