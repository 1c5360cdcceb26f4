package worktree

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/gitpath"
)

// Scope selects the part of a checkpoint that is restored.
type Scope string

// The scopes of a restore.
const (
	// ScopeCode is the worktree, including the agent's .git and nested ones.
	ScopeCode Scope = "Code"
	// ScopeConversation is the session state in the agent's home.
	ScopeConversation Scope = "Conversation"
	// ScopeBoth is both.
	ScopeBoth Scope = "Both"
)

func (s Scope) code() bool { return s != ScopeConversation }

func (s Scope) conversation() bool { return s != ScopeCode }

// RestoreRequest describes a restore.
type RestoreRequest struct {
	Target Target
	Scope  Scope // "" means ScopeBoth
	// Onto, if set, is a checkpoint of the worktree as it is now. Only files are then
	// restored: the result is this checkpoint, with its files replaced by the target's.
	// Repositories stay as they are, HEAD and index included, and a target that is no
	// checkpoint leaves the files alone that its .gitignore files name. Scope is ScopeCode.
	Onto Target
	// Paths select the files to restore onto Onto; see package pathmatch. None selects all.
	Paths []string
}

// RestoreResult is the result of a restore.
type RestoreResult struct {
	// Tree is the id of the worktree's tree after the restore. It is the target's,
	// unless there are Conflicts.
	Tree                        string
	Written, Removed, Unchanged int
	// Kept lists files that checkpoints skip and that were therefore left alone. Named
	// pipes are among them only if the checkpoint does not list any: earlier versions of
	// the daemon did not record them.
	Kept []Skipped
	// Conflicts lists paths of the target that could not be created, since a kept
	// file occupies them.
	Conflicts []string
	// Annotations are those of the checkpoint, if its state commit was given.
	Annotations map[string]string
	Took        time.Duration
	// Synced is the part of Took in which the file system wrote to its disk, including what
	// others had written to it.
	Synced time.Duration
}

// Restore restores the worktree, the agent's repository and the session state to a
// checkpoint.
//
// It first reads and hashes every object it needs; if one is missing or damaged,
// nothing is changed. It then writes only what differs, compares the result with
// the checkpoint and makes it durable. Files that a checkpoint skips are neither
// changed nor removed, except for named pipes, which are made again. A restore that is killed at any instant and run again
// produces the exact tree. The agent must not be running.
//
// On an empty worktree it rebuilds the agent's repository as well, even if GitDir
// has nothing but the two fetched commits.
//
// Errors: CheckpointNotFound, CheckpointCorrupted, PathNotFound, PathBlocked (nothing was
// changed), StorageFull, RestoreIncomplete (call it again), GitFailed.
func (r *Repo) Restore(ctx context.Context, req RestoreRequest) (RestoreResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := time.Now()
	if req.Scope == "" {
		req.Scope = ScopeBoth
	}
	if len(req.Paths) > 0 && req.Onto == (Target{}) {
		return RestoreResult{}, fail(CheckpointNotFound, nil, "paths are restored onto a checkpoint, and the request names none")
	}
	t, err := r.readTarget(ctx, req.Target)
	if err == nil && req.Onto != (Target{}) {
		req.Scope = ScopeCode
		t, err = r.onto(ctx, req, t)
	}
	if err != nil {
		return RestoreResult{}, err
	}
	work, home, err := r.openRoots()
	if err != nil {
		return RestoreResult{}, err
	}
	defer closeRoots(work, home)
	s := &restoring{r: r, ctx: ctx, t: t, scope: req.Scope, work: work, home: home}
	if home == nil || t.home == nil {
		s.noHome = true
	}
	res, err := s.run()
	res.Annotations = t.meta.Annotations
	res.Took = time.Since(begin)
	return res, err
}

// ClearSession deletes the session state in the agent's home: everything there
// that a checkpoint would hold, as if the agent had never run. The worktree and
// files that a checkpoint skips are left alone. If it is killed, the next call
// deletes the rest. The agent must not be running.
//
// Errors: RestoreIncomplete (call it again).
func (r *Repo) ClearSession(ctx context.Context) (RestoreResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := time.Now()
	work, home, err := r.openRoots()
	if err != nil {
		return RestoreResult{}, err
	}
	defer closeRoots(work, home)
	nothing := &target{work: &dir{}, home: &dir{partial: true}, knowsPipes: true}
	s := &restoring{r: r, ctx: ctx, t: nothing, scope: ScopeConversation, work: work, home: home, noHome: home == nil}
	res, err := s.run()
	res.Took = time.Since(begin)
	return res, err
}

// restoring is the state of one restore in progress.
type restoring struct {
	r          *Repo
	ctx        context.Context
	t          *target
	scope      Scope
	work, home *beneath
	noHome     bool
	before     *snapshot
	result     RestoreResult
}

// run performs the restore.
func (s *restoring) run() (RestoreResult, error) {
	r := s.r
	var err error
	if s.before, err = r.scanRoots(s.ctx, s.work, s.home, 0, noLimit); err != nil {
		return s.result, err
	}
	if s.t.home != nil {
		s.t.home = onlyIncluded(s.t.home, r.cfg.HomeInclude, r.cfg.HomeExclude)
	}
	plans := s.plans(s.before)
	blobs, err := s.verifyContent(plans)
	if err != nil {
		return s.result, err
	}
	for i, p := range plans {
		if p == nil {
			continue
		}
		if err := s.apply(s.root(i), p, blobs); err != nil {
			return s.result, err
		}
		s.result.Written += len(p.writes) + len(p.pipes)
		s.result.Removed += len(p.removes)
		s.result.Unchanged += p.unchanged
	}
	if s.scope.code() && !s.t.state.isZero() {
		if err := s.restorePristine(); err != nil {
			return s.result, err
		}
	}
	return s.result, s.confirm()
}

// plans compares a scan with the target. The first plan is for the worktree, the
// second for the home; a plan is nil if its root is out of scope.
func (s *restoring) plans(snap *snapshot) [2]*plan {
	var plans [2]*plan
	if s.scope.code() {
		plans[0] = makePlan(snap.work, s.t.work, !s.t.state.isZero(), s.t.knowsPipes)
	}
	if s.scope.conversation() && !s.noHome {
		plans[1] = makePlan(snap.home, s.t.home, true, s.t.knowsPipes)
	}
	return plans
}

// root returns the root of the i-th plan.
func (s *restoring) root(i int) *beneath {
	if i == 0 {
		return s.work
	}
	return s.home
}

// confirm scans the result, compares it with the target and makes it durable.
func (s *restoring) confirm() error {
	r := s.r
	r.cache, r.base = *s.before, baseline{}
	after, err := r.scanRoots(s.ctx, s.work, s.home, 0, noLimit)
	if err != nil {
		return err
	}
	for i, p := range s.plans(after) {
		if p == nil {
			continue
		}
		if !p.empty() {
			return fail(RestoreIncomplete, nil, "after the restore %s still differs from the checkpoint (%s); is the agent running? Restore again", s.root(i).path, p.first())
		}
		s.result.Kept = append(s.result.Kept, p.kept...)
		s.result.Conflicts = append(s.result.Conflicts, p.conflicts...)
	}
	diffTrees(s.t.work, after.work)
	tree := rootTree(after.work)
	s.result.Tree = tree.String()
	if s.scope.code() && tree != s.t.codeTree && len(s.result.Conflicts) == 0 && rootTree(s.t.work) == s.t.codeTree {
		return fail(RestoreIncomplete, nil, "after the restore %s is the tree %s, not %s; is the agent running? Restore again", s.work.path, tree, s.t.codeTree)
	}
	if err := s.sync(); err != nil {
		return err
	}
	s.result.Kept = head(s.result.Kept, r.cfg.MaxListed)
	r.remember(after, s.baseline(after, tree))
	r.unsaved++
	_ = r.saveCache() // losing the cache only costs time
	return nil
}

// sync makes the result durable.
func (s *restoring) sync() error {
	begin := time.Now()
	for i, b := range []*beneath{s.work, s.home} {
		if b != nil && (i == 0 || b.dev != s.work.dev) {
			if err := b.sync(); err != nil {
				return failIO(err, "make %s durable", b.path)
			}
		}
	}
	s.result.Synced = time.Since(begin)
	return nil
}

// baseline returns the commits that the worktree now matches, so that the next
// checkpoint can build on them.
func (s *restoring) baseline(after *snapshot, tree oid) baseline {
	var base baseline
	if tree == s.t.codeTree {
		base.code, base.codeTree = s.t.code.String(), tree
	}
	if s.t.state.isZero() || s.r.pristine == nil || s.r.pristine.Commit != s.t.pristine.String() {
		return base
	}
	want := &dir{}
	for _, e := range s.t.stateView.entries {
		if e.name != stateEntries && e.name != stateMeta {
			want.put(e)
		}
	}
	if rootTree(want) == rootTree(stateView(after, s.r.pristine)) {
		base.state, base.stateTree = s.t.state.String(), s.t.stateTree
	}
	return base
}

// blobStore is the verified content that a restore writes. Blobs that are too large
// to be kept in memory are missing from it and are read again.
type blobStore struct {
	content map[oid][]byte
}

// keepRestored bounds the content that a restore keeps in memory in total, and
// keepRestoredFile that of one file.
const (
	keepRestored     = 128 << 20
	keepRestoredFile = 8 << 20
)

// verifyContent reads and verifies every blob that the plans will write.
func (s *restoring) verifyContent(plans [2]*plan) (*blobStore, error) {
	store := &blobStore{content: map[oid][]byte{}}
	var ids []oid
	seen := map[oid]bool{}
	for _, p := range plans {
		if p == nil {
			continue
		}
		for _, o := range p.writes {
			if !seen[o.e.oid] {
				seen[o.e.oid] = true
				ids = append(ids, o.e.oid)
			}
		}
	}
	room := int64(keepRestored)
	err := s.r.eachObject(s.ctx, ids, func(i int, kind string, size int64, content io.Reader) error {
		if kind != "blob" {
			return &damage{id: ids[i], what: "is a " + kind + ", not a blob"}
		}
		if size > keepRestoredFile || size > room {
			_, err := io.Copy(io.Discard, content)
			return err
		}
		room -= size
		buf := make([]byte, size)
		n, err := readFull(content, buf)
		store.content[ids[i]] = buf[:n]
		return err
	})
	return store, err
}

// apply executes a plan.
func (s *restoring) apply(root *beneath, p *plan, blobs *blobStore) error {
	finals, err := s.unlock(root, p)
	if err != nil {
		return err
	}
	for _, o := range p.removes {
		if err := root.unlink(o.path, o.folder); err != nil {
			return failIO(err, "remove %s in %s", gitpath.Quote(o.path), root.path)
		}
	}
	for _, o := range p.mkdirs {
		if err := root.mkdir(o.path, 0o755); err != nil {
			return failIO(err, "create the folder %s in %s", gitpath.Quote(o.path), root.path)
		}
	}
	for _, o := range p.pipes {
		if err := root.mkfifo(o.path); err != nil {
			return failIO(err, "create the named pipe %s in %s", gitpath.Quote(o.path), root.path)
		}
	}
	if err := s.writeAll(root, p.writes, blobs); err != nil {
		return err
	}
	chmods := slices.Concat(p.chmods, finals)
	slices.SortStableFunc(chmods, func(a, b op) int { return strings.Compare(b.path, a.path) }) // children first
	for _, o := range chmods {
		if err := root.chmod(o.path, o.e.perm); err != nil {
			return failIO(err, "set the permission bits of %s in %s", gitpath.Quote(o.path), root.path)
		}
	}
	return s.ctx.Err()
}

// unlock makes the folders writable in which something will change. It returns the
// operations that set their final permission bits afterwards.
func (s *restoring) unlock(root *beneath, p *plan) (finals []op, err error) {
	if len(p.locked) == 0 {
		return nil, nil
	}
	touched := map[string]bool{}
	for _, list := range [][]op{p.removes, p.mkdirs, p.writes, p.pipes} {
		for _, o := range list {
			parent, _ := splitPath(o.path)
			touched[parent] = true
		}
	}
	removed := map[string]bool{}
	for _, o := range p.removes {
		removed[o.path] = true
	}
	chmods := map[string]bool{}
	for _, o := range p.chmods {
		chmods[o.path] = true
	}
	var paths []string
	for path := range p.locked {
		paths = append(paths, path)
	}
	slices.Sort(paths) // folders before what is in them
	for _, path := range paths {
		perm := p.locked[path]
		if !touched[path] && perm&0o100 != 0 {
			continue
		}
		if err := root.chmod(path, perm|0o700); err != nil {
			return nil, failIO(err, "make %s in %s writable", gitpath.Quote(path), root.path)
		}
		if !removed[path] && !chmods[path] {
			finals = append([]op{{path: path, e: &entry{perm: perm}}}, finals...)
		}
	}
	return finals, nil
}

// writeAll writes files and links: first those whose content is in memory, then the
// rest as git delivers it.
func (s *restoring) writeAll(root *beneath, writes []op, blobs *blobStore) error {
	var rest []op
	var ids []oid
	for i, o := range writes {
		if i%64 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		content, ok := blobs.content[o.e.oid]
		if !ok {
			rest, ids = append(rest, o), append(ids, o.e.oid)
			continue
		}
		if err := s.write(root, o, strings.NewReader(string(content))); err != nil {
			return failIO(err, "write %s in %s", gitpath.Quote(o.path), root.path)
		}
	}
	return s.r.eachObject(s.ctx, ids, func(i int, _ string, _ int64, content io.Reader) error {
		if err := s.write(root, rest[i], content); err != nil {
			return failIO(err, "write %s in %s", gitpath.Quote(rest[i].path), root.path)
		}
		return nil
	})
}

// maxLink is longer than any link target that a file system accepts.
const maxLink = 1 << 16

// write creates one file or link.
func (s *restoring) write(root *beneath, o op, content io.Reader) error {
	if o.e.mode == modeLink {
		target, err := io.ReadAll(io.LimitReader(content, maxLink))
		if err != nil {
			return err
		}
		if len(target) == maxLink {
			return fmt.Errorf("the link target is too long")
		}
		return root.replaceLink(o.path, string(target))
	}
	perm := o.e.perm
	return root.replace(o.path, perm, func(f *os.File) error {
		_, err := io.Copy(f, content)
		return err
	})
}

// restorePristine ensures that the agent's repository has the objects that came
// from the origin. If the files with these objects are gone or have changed, it
// recreates them.
func (s *restoring) restorePristine() error {
	r, want := s.r, s.t.pristine.String()
	if s.t.pristine.isZero() {
		return nil
	}
	var intact []pristineFile
	whole := r.pristine != nil && r.pristine.Commit == want
	if r.pristine != nil {
		for _, f := range r.pristine.Files {
			if e := s.before.work.lookup(f.Path); e != nil && e.oid.String() == f.OID {
				intact = append(intact, f)
				continue
			}
			whole = false
			if s.t.work.lookup(f.Path) == nil {
				if err := s.work.unlink(f.Path, false); err != nil && !vanished(err) {
					return failIO(err, "remove %s in %s", f.Path, s.work.path)
				}
			}
		}
	}
	git := s.t.work.find(gitName)
	if whole {
		return nil
	}
	p := &pristine{Commit: want, Origin: s.t.meta.Origin, Files: intact}
	if git != nil && git.dir != nil {
		made, err := r.rebuildPristine(s.ctx, s.work, want)
		if err != nil {
			return err
		}
		for _, f := range made {
			if !slices.ContainsFunc(p.Files, func(g pristineFile) bool { return g.Path == f.Path }) {
				p.Files = append(p.Files, f)
			}
		}
	}
	if _, err := r.git(s.ctx, gitCall{args: []string{"update-ref", "--end-of-options", pristineRef, want}}); err != nil {
		return failGit(err, "record the pristine commit %s", want)
	}
	return r.savePristine(p)
}
