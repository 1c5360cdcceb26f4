package worktree

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/refname"
)

// PreserveMode selects how the state before a rewind is kept in the agent's
// repository.
type PreserveMode string

// The modes of Preserve.
const (
	// PreserveBranch keeps it as a branch.
	PreserveBranch PreserveMode = "Branch"
	// PreserveStash keeps it as a stash entry.
	PreserveStash PreserveMode = "Stash"
)

// PreserveRequest describes a former state of the worktree that is to be kept in
// the agent's repository.
type PreserveRequest struct {
	Mode PreserveMode
	// Name is the name of the branch, without refs/heads/; for a stash it is any id.
	Name string
	// From is the checkpoint taken before the rewind.
	From    Target
	Message string
	// Time is the time of the commit; zero means the time of From.
	Time time.Time
}

// Preserved is what Preserve created.
type Preserved struct {
	Ref    string // refs/heads/… or refs/stash
	Commit string
}

// Preserve creates a branch or a stash entry in the agent's repository that holds
// the worktree of a checkpoint, on top of the commit that was HEAD then. It
// writes files and runs no git there. It is idempotent. Call it after Restore,
// which replaces the repository's refs by those of its target.
//
// Errors: InvalidReference (the name is not a valid branch name), ReferenceExists
// (the branch exists, or another one conflicts with it), CheckpointNotFound,
// CheckpointCorrupted, StorageFull, GitFailed.
func (r *Repo) Preserve(ctx context.Context, req PreserveRequest) (Preserved, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &preserving{r: r, ctx: ctx, req: &req}
	ref := "refs/stash"
	if req.Mode == PreserveBranch {
		ref = "refs/heads/" + req.Name
		if err := refname.CheckBranch(req.Name); err != nil {
			return Preserved{}, fail(InvalidReference, err, "%q is not a valid branch name", req.Name)
		}
	} else if req.Mode != PreserveStash {
		return Preserved{}, fail(InvalidReference, nil, "the preserve mode %q is neither Branch nor Stash", req.Mode)
	}
	var err error
	if p.work, err = openBeneath(r.cfg.Worktree); err != nil {
		return Preserved{}, fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	defer p.work.close()
	if err := p.read(); err != nil {
		return Preserved{}, err
	}
	id, err := p.commit()
	if err != nil {
		return Preserved{}, err
	}
	if req.Mode == PreserveBranch {
		if agentRef(p.work, ref) != id.String() {
			if err := branchFree(p.work, req.Name); err != nil {
				return Preserved{}, err
			}
		}
	}
	if err := p.pack(); err != nil {
		return Preserved{}, err
	}
	if err := p.writeRef(ref, id); err != nil {
		return Preserved{}, err
	}
	return Preserved{Ref: ref, Commit: id.String()}, failIO(p.work.sync(), "make %s durable", p.work.path)
}

// CheckBranch returns the error with which Preserve would currently refuse a branch
// of this name. Errors: InvalidReference, ReferenceExists, WorktreeMissing.
func (r *Repo) CheckBranch(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := refname.CheckBranch(name); err != nil {
		return fail(InvalidReference, err, "%q is not a valid branch name", name)
	}
	work, err := openBeneath(r.cfg.Worktree)
	if err != nil {
		return fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	defer work.close()
	return branchFree(work, name)
}

// branchFree returns ReferenceExists if the branch exists or another one conflicts
// with it.
func branchFree(work *beneath, name string) error {
	const heads = "refs/heads/"
	switch found := conflictingRef(work, heads+name); found {
	case "":
		return nil
	case heads + name:
		return fail(ReferenceExists, nil, "the agent's repository already has a branch %q: choose another name, and request the rewind again", name)
	default:
		return fail(ReferenceExists, nil, "the agent's repository cannot have both a branch %q and a branch %q: choose another name, and request the rewind again", name, strings.TrimPrefix(found, heads))
	}
}

// preserving is the state of one Preserve in progress.
type preserving struct {
	r      *Repo
	ctx    context.Context
	req    *PreserveRequest
	work   *beneath
	tree   oid
	head   oid // zero if there was none
	branch string
	state  oid
	made   []oid // new objects, which the agent's repository lacks
}

// read reads the checkpoint's commits and metadata.
func (p *preserving) read() error {
	r := p.r
	id, err := r.resolve(p.ctx, p.req.From.Code)
	if err != nil {
		return err
	}
	c, err := r.readCommit(p.ctx, id)
	if err != nil {
		return err
	}
	p.tree = c.tree
	if p.req.Time.IsZero() {
		text, err := r.gitText(p.ctx, "show", "-s", "--format=%ct", "--end-of-options", id.String())
		var seconds int64
		if err == nil {
			_, err = fmt.Sscan(text, &seconds)
		}
		if err != nil {
			return r.failCorrupt(err, "read the commit %s", id)
		}
		p.req.Time = time.Unix(seconds, 0)
	}
	if p.req.From.State == "" {
		return nil
	}
	if p.state, err = r.resolve(p.ctx, p.req.From.State); err != nil {
		return err
	}
	meta, err := r.ReadMeta(p.ctx, p.state.String())
	if err != nil {
		return err
	}
	p.branch = meta.Agent.Branch
	if meta.Agent.Head != "" {
		p.head, err = parseOID(meta.Agent.Head)
	}
	return err
}

// commit creates the commits and returns the one that the ref will point to.
func (p *preserving) commit() (oid, error) {
	message := strings.TrimSpace(p.req.Message)
	if p.req.Mode == PreserveBranch {
		return p.write(p.tree, message, p.head)
	}
	on := p.branchName()
	head := p.head
	var err error
	if head.isZero() {
		// A stash entry needs a commit as its parent, and an unborn branch has none.
		if err := p.makeEmptyTree(); err != nil {
			return noOID, err
		}
		if head, err = p.write(emptyTree, "before the first commit"); err != nil {
			return noOID, err
		}
	}
	index, err := p.write(p.headTree(), "index on "+on, head)
	if err != nil {
		return noOID, err
	}
	return p.write(p.tree, "On "+on+": "+message, head, index)
}

// makeEmptyTree creates the object of the empty tree.
func (p *preserving) makeEmptyTree() error {
	_, err := p.r.git(p.ctx, gitCall{args: []string{"hash-object", "-t", "tree", "-w", "--stdin"}, stdin: strings.NewReader("")})
	p.made = append(p.made, emptyTree)
	return failGit(err, "write to %s", p.r.cfg.GitDir)
}

// write creates a commit object.
func (p *preserving) write(tree oid, message string, parents ...oid) (oid, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, parent := range parents {
		if !parent.isZero() {
			fmt.Fprintf(&b, "parent %s\n", parent)
		}
	}
	when := p.req.Time.Unix()
	fmt.Fprintf(&b, "author %s %d +0000\ncommitter %s %d +0000\n\n%s\n", identity, when, identity, when, message)
	out, err := p.r.git(p.ctx, gitCall{args: []string{"hash-object", "-t", "commit", "-w", "--stdin"}, stdin: strings.NewReader(b.String())})
	if err != nil {
		return noOID, failGit(err, "write a commit to %s", p.r.cfg.GitDir)
	}
	id, err := parseOID(strings.TrimSpace(string(out)))
	if err != nil {
		return noOID, failIO(err, "write a commit to %s", p.r.cfg.GitDir)
	}
	p.made = append(p.made, id)
	return id, nil
}

// headTree returns the tree of the commit that was HEAD, so that the stash entry
// records an index without staged changes. If that tree cannot be determined, it
// returns the tree of the stash entry itself.
func (p *preserving) headTree() oid {
	if p.head.isZero() {
		return emptyTree
	}
	if text, err := p.r.gitText(p.ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", p.head.String()+"^{tree}"); err == nil {
		if id, err := parseOID(text); err == nil {
			return id
		}
	}
	hex := p.head.String()
	raw, err := p.work.readFile(gitName+"/objects/"+hex[:2]+"/"+hex[2:], 1<<20)
	if err != nil {
		return p.tree
	}
	z, err := zlib.NewReader(bytes.NewReader(raw))
	if err != nil {
		return p.tree
	}
	text, err := io.ReadAll(io.LimitReader(z, 1<<20))
	if err != nil {
		return p.tree
	}
	_, body, _ := bytes.Cut(text, []byte{0})
	if hashObject("commit", body) != p.head {
		return p.tree
	}
	c, err := parseCommit(body)
	if err != nil {
		return p.tree
	}
	return c.tree
}

// pack adds the objects that the commits need to the agent's object store: a pack
// with those that the origin lacks, and the agent's own objects of that checkpoint,
// in case they are gone.
func (p *preserving) pack() error {
	r := p.r
	have := map[oid]bool{}
	objects := func(d *dir, trees []oid) (ids []oid) {
		ids = trees
		d.walkFiles("", func(_ string, e *entry) { ids = append(ids, e.oid) })
		return ids
	}
	if base := r.originBase(); base != "" {
		d, tree, err := r.readTree(p.ctx, base)
		if err != nil {
			return err
		}
		_, trees, err := r.listTree(p.ctx, tree)
		if err != nil {
			return err
		}
		for _, id := range objects(d, trees) {
			have[id] = true
		}
	}
	d, trees, err := r.listTree(p.ctx, p.tree)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, id := range append(objects(d, trees), p.made...) {
		if !have[id] && !id.isZero() {
			have[id] = true
			list.WriteString(id.String() + "\n")
		}
	}
	scratch, err := os.MkdirTemp(r.own(""), "tmp_packs_")
	if err != nil {
		return failIO(err, "create a folder in %s", r.own(""))
	}
	defer os.RemoveAll(scratch)
	if list.Len() > 0 {
		_, err = r.git(p.ctx, gitCall{args: []string{"-c", "pack.threads=1", "pack-objects", "-q", filepath.Join(scratch, "pack")}, stdin: strings.NewReader(list.String())})
		if err != nil {
			return r.failCorrupt(err, "pack the tree %s", p.tree)
		}
		if _, err := r.copyPacks(p.work, scratch); err != nil {
			return err
		}
	}
	return p.addObjects()
}

// originBase returns the commit that the worktree was created from, or "".
func (r *Repo) originBase() string {
	if r.pristine == nil {
		return ""
	}
	return r.pristine.Origin.Base
}

// addObjects writes the files that the checkpoint has in the agent's object store
// and that are missing there now.
func (p *preserving) addObjects() error {
	if p.state.isZero() {
		return nil
	}
	view, _, err := p.r.readTree(p.ctx, p.state.String())
	if err != nil {
		return err
	}
	e := view.lookup(stateGit + "/objects")
	if e == nil || e.dir == nil {
		return nil
	}
	var paths []string
	var ids []oid
	e.dir.walkFiles(gitName+"/objects", func(path string, e *entry) {
		if _, err := p.work.lstat(path); errors.Is(err, unix.ENOENT) && e.mode != modeLink {
			paths, ids = append(paths, path), append(ids, e.oid)
		}
	})
	return p.r.eachObject(p.ctx, ids, func(i int, _ string, _ int64, content io.Reader) error {
		parent, _ := splitPath(paths[i])
		err := p.work.makeFolders(parent)
		if err == nil {
			err = p.work.replace(paths[i], 0o444, func(f *os.File) error {
				_, err := io.Copy(f, content)
				return err
			})
		}
		return failIO(err, "write %s in %s", paths[i], p.work.path)
	})
}

// writeRef writes the ref and, for a stash, the reflog from which git lists the
// entries.
func (p *preserving) writeRef(ref string, id oid) error {
	if p.req.Mode == PreserveStash {
		if err := p.logStash(id); err != nil {
			return failIO(err, "write the log of %s in %s", ref, p.work.path)
		}
	}
	path := gitName + "/" + ref
	parent, _ := splitPath(path)
	err := p.work.makeFolders(parent)
	if err == nil {
		err = p.work.replace(path, 0o644, func(f *os.File) error {
			_, err := f.WriteString(id.String() + "\n")
			return err
		})
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return fail(ReferenceExists, err, "the branch name %q conflicts with another branch of the agent's repository: choose another name, and request the rewind again", p.req.Name)
	}
	return failIO(err, "write %s in %s", path, p.work.path)
}

// logStash appends the stash entry to the reflog, unless it is already there.
func (p *preserving) logStash(id oid) error {
	const path = gitName + "/logs/refs/stash"
	old := noOID
	log, err := p.work.readFile(path, maxRefBytes)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for line := range bytes.Lines(log) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		if string(f[1]) == id.String() {
			return nil
		}
		if last, err := parseOID(string(f[1])); err == nil {
			old = last
		}
	}
	message := strings.Join(strings.Fields(p.req.Message), " ")
	line := fmt.Sprintf("%s %s %s %d +0000\tOn %s: %s\n", old, id, identity, p.req.Time.Unix(), p.branchName(), message)
	if err := p.work.makeFolders(gitName + "/logs/refs"); err != nil {
		return err
	}
	return p.work.replace(path, 0o644, func(f *os.File) error {
		_, err := f.Write(append(bytes.Clone(log), line...))
		return err
	})
}

// branchName returns the branch of the checkpoint in git's words.
func (p *preserving) branchName() string {
	if p.branch == "" {
		return "(no branch)"
	}
	return p.branch
}
