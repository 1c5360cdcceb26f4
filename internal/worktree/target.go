package worktree

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
)

// Target names a checkpoint by its two commits, or by refs to them.
type Target struct {
	Code string
	// State may be "": then only the worktree's files are known, and the agent's
	// .git and nested ones are ignored.
	State string
}

// target is a checkpoint read from the repository.
type target struct {
	code, state oid // commits; state may be zero
	codeTree    oid
	stateTree   oid
	pristine    oid  // the pristine commit
	work        *dir // the worktree as it must be on disk, .git included
	home        *dir
	knowsPipes  bool // work and home have the named pipes, which only a state commit lists
	trees       []oid
	stateView   *dir // the state tree, with encoded names
	meta        Meta
}

// maxJSON bounds the size of entries.json and meta.json.
const maxJSON = 1 << 30

// readTarget reads the trees of a checkpoint. It verifies every commit and tree that
// it reads, but not the content of files.
func (r *Repo) readTarget(ctx context.Context, want Target) (*target, error) {
	t := &target{}
	var err error
	if t.code, err = r.resolve(ctx, want.Code); err != nil {
		return nil, err
	}
	code, err := r.readCommit(ctx, t.code)
	if err != nil {
		return nil, err
	}
	var trees []oid
	if t.work, trees, err = r.listTree(ctx, code.tree); err != nil {
		return nil, err
	}
	t.codeTree, t.trees = code.tree, trees
	if want.State != "" {
		if err := r.readState(ctx, t, want.State); err != nil {
			return nil, err
		}
	}
	if err := r.checkObjects(ctx, t.trees); err != nil {
		return nil, err
	}
	return t, nil
}

// readState reads the state commit of a target.
func (r *Repo) readState(ctx context.Context, t *target, name string) error {
	var err error
	if t.state, err = r.resolve(ctx, name); err != nil {
		return err
	}
	c, err := r.readCommit(ctx, t.state)
	if err != nil {
		return err
	}
	if len(c.parents) > 0 {
		t.pristine = c.parents[0]
	}
	view, trees, err := r.listTree(ctx, c.tree)
	if err != nil {
		return err
	}
	t.stateTree, t.stateView, t.home = c.tree, view, &dir{partial: true}
	t.trees = append(t.trees, trees...)
	var attrs attributes
	if err := r.readJSON(ctx, view, stateEntries, &attrs); err != nil {
		return err
	}
	if err := r.readJSON(ctx, view, stateMeta, &t.meta); err != nil {
		return err
	}
	t.knowsPipes = attrs.Worktree != nil && attrs.Worktree.Pipes != nil
	if err = fromState(view, t.work, t.home); err == nil {
		if err = attrs.Worktree.apply(t.work); err == nil {
			err = attrs.Home.apply(t.home)
		}
	}
	if err != nil {
		return r.failCorrupt(err, "read the state commit %s", t.state)
	}
	return nil
}

// readJSON decodes a JSON file of the state tree into v.
func (r *Repo) readJSON(ctx context.Context, view *dir, name string, v any) error {
	e := view.find(name)
	if e == nil || e.dir != nil {
		return fail(CheckpointCorrupted, nil, "the state tree has no %s; it was not created by Clew", name)
	}
	text, err := r.readBlob(ctx, e.oid, maxJSON)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return r.failCorrupt(err, "read %s", name)
	}
	return nil
}

// checkObjects reads objects and verifies that each matches its id.
func (r *Repo) checkObjects(ctx context.Context, ids []oid) error {
	return r.eachObject(ctx, ids, func(_ int, _ string, _ int64, content io.Reader) error {
		_, err := io.Copy(io.Discard, content)
		return err
	})
}

// ReadMeta returns the metadata of a state commit, given by its id or a ref.
// Errors: CheckpointNotFound, CheckpointCorrupted.
func (r *Repo) ReadMeta(ctx context.Context, state string) (Meta, error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	var m Meta
	id, err := r.resolve(ctx, state)
	if err != nil {
		return m, err
	}
	out, err := r.git(ctx, gitCall{args: []string{"cat-file", "blob", id.String() + ":" + stateMeta}})
	if err == nil {
		m, err = parseMeta(out)
	}
	if err != nil {
		return m, r.failCorrupt(err, "read %s of the state commit %s", stateMeta, id)
	}
	return m, nil
}

// Verify reads every object of a checkpoint and verifies that it matches its id. It
// changes nothing. Errors: CheckpointNotFound, CheckpointCorrupted, whose message
// names the object.
func (r *Repo) Verify(ctx context.Context, want Target) error {
	r.packs.RLock()
	defer r.packs.RUnlock()
	t, err := r.readTarget(ctx, want)
	if err != nil {
		return err
	}
	seen := map[oid]bool{}
	var ids []oid
	collect := func(_ string, e *entry, _ int) {
		if e.dir == nil && !seen[e.oid] {
			seen[e.oid] = true
			ids = append(ids, e.oid)
		}
	}
	eachReal(t.work, "", nil, collect)
	eachReal(t.home, "", nil, collect)
	if !t.pristine.isZero() {
		ids = append(ids, t.pristine)
	}
	return r.checkObjects(ctx, ids)
}

// onlyIncluded reduces the session state of a checkpoint to what the current
// configuration includes, marking the folders that lead to it as partial.
func onlyIncluded(home *dir, include, exclude []string) *dir {
	out := &dir{partial: true}
	include, _ = expandPaths(include, home.names) // (*dir).names never fails
	for _, path := range include {
		if path == "." {
			home.partial = false
			out = home
			break
		}
		e := home.lookup(path)
		if e == nil {
			continue
		}
		parent, name := splitPath(path)
		at := out
		for part := range strings.SplitSeq(parent, "/") {
			if part == "" {
				break
			}
			next := at.find(part)
			if next == nil {
				next = at.put(entry{name: part, mode: modeDir, perm: 0o755, dir: &dir{partial: true}})
			}
			at = next.dir
		}
		found := *e
		found.name = name
		at.put(found)
	}
	for _, path := range exclude {
		parent, name := splitPath(path)
		at := out
		if parent != "" {
			e := out.lookup(parent)
			if e == nil || e.dir == nil {
				continue
			}
			at = e.dir
		}
		at.entries = slices.DeleteFunc(at.entries, func(e entry) bool { return e.name == name })
	}
	return out
}
