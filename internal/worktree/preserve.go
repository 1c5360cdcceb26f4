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

// PreserveMode says how the state before a rewind is kept in the agent's
// repository.
type PreserveMode string

// The modes of a Preserve.
const (
	PreserveBranch PreserveMode = "Branch"
	PreserveStash  PreserveMode = "Stash"
)

// PreserveRequest asks for what a worktree was to be kept in the agent's
// repository.
type PreserveRequest struct {
	Mode PreserveMode
	// Name is the branch, without refs/heads/; for a stash it is any id.
	Name string
	// From is the checkpoint taken before the rewind.
	From    Target
	Message string
	// Time is the time of the commit; zero means that of From.
	Time time.Time
}

// Preserved says what Preserve made.
type Preserved struct {
	Ref    string // refs/heads/… or refs/stash
	Commit string
}

// Preserve makes a branch or a stash entry in the agent's repository that holds
// the worktree of a checkpoint, on top of the commit that was HEAD then. It
// writes files and runs no git there. The same request made twice has the
// effect of one. Call it after Restore, which brings the refs of its target.
//
// Errors: InvalidReference (no branch can have this name), ReferenceExists
// (another one has it, or is in the way), CheckpointNotFound,
// CheckpointCorrupted, StorageFull, GitFailed.
func (r *Repo) Preserve(ctx context.Context, req PreserveRequest) (Preserved, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &preserving{r: r, ctx: ctx, req: &req}
	ref := "refs/stash"
	if req.Mode == PreserveBranch {
		ref = "refs/heads/" + req.Name
		if err := refname.CheckBranch(req.Name); err != nil {
			return Preserved{}, fail(InvalidReference, err, "%q cannot be the name of a branch", req.Name)
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
	if err := p.point(ref, id); err != nil {
		return Preserved{}, err
	}
	return Preserved{Ref: ref, Commit: id.String()}, failIO(p.work.sync(), "make %s durable", p.work.path)
}

// CheckBranch reports why Preserve could not make a branch of this name as the
// agent's repository is now. Errors: InvalidReference, ReferenceExists,
// WorktreeMissing.
func (r *Repo) CheckBranch(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := refname.CheckBranch(name); err != nil {
		return fail(InvalidReference, err, "%q cannot be the name of a branch", name)
	}
	work, err := openBeneath(r.cfg.Worktree)
	if err != nil {
		return fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	defer work.close()
	return branchFree(work, name)
}

// branchFree reports the branch that is in the way of a new one.
func branchFree(work *beneath, name string) error {
	const heads = "refs/heads/"
	switch found := refInTheWay(work, heads+name); found {
	case "":
		return nil
	case heads + name:
		return fail(ReferenceExists, nil, "the agent's repository has a branch %q already: choose another name, and give the rewind a new id", name)
	default:
		return fail(ReferenceExists, nil, "the agent's repository cannot have a branch %q beside %q: choose another name, and give the rewind a new id", name, strings.TrimPrefix(found, heads))
	}
}

// preserving is one Preserve on its way.
type preserving struct {
	r      *Repo
	ctx    context.Context
	req    *PreserveRequest
	work   *beneath
	tree   oid
	head   oid // zero if there was none
	branch string
	state  oid
	made   []oid // objects that are new to the agent's repository
}

// read finds out what the checkpoint holds.
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

// commit makes the commits and returns the one that the ref will name.
func (p *preserving) commit() (oid, error) {
	message := strings.TrimSpace(p.req.Message)
	if p.req.Mode == PreserveBranch {
		return p.write(p.tree, message, p.head)
	}
	on := p.branchName()
	head := p.head
	var err error
	if head.isZero() {
		// A stash is on top of a commit; an unborn branch has none.
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

func (p *preserving) makeEmptyTree() error {
	_, err := p.r.git(p.ctx, gitCall{args: []string{"hash-object", "-t", "tree", "-w", "--stdin"}, stdin: strings.NewReader("")})
	p.made = append(p.made, emptyTree)
	return failGit(err, "write to %s", p.r.cfg.GitDir)
}

// write makes a commit object.
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

// headTree is the tree of the commit that was HEAD, so that the stash says
// that nothing was staged. If it cannot be found out, it is the stash's own.
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

// pack brings what the commits need into the agent's object store: a pack of
// what the origin has not, and the agent's own objects of that checkpoint, in
// case they are gone.
func (p *preserving) pack() error {
	r := p.r
	have := map[oid]bool{}
	note := func(d *dir, trees []oid) (ids []oid) {
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
		for _, id := range note(d, trees) {
			have[id] = true
		}
	}
	d, trees, err := r.listTree(p.ctx, p.tree)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, id := range append(note(d, trees), p.made...) {
		if !have[id] && !id.isZero() {
			have[id] = true
			list.WriteString(id.String() + "\n")
		}
	}
	scratch, err := os.MkdirTemp(r.own(""), "tmp_packs_")
	if err != nil {
		return failIO(err, "make a folder in %s", r.own(""))
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

func (r *Repo) originBase() string {
	if r.pristine == nil {
		return ""
	}
	return r.pristine.Origin.Base
}

// addObjects writes the files of the agent's object store that the checkpoint
// holds and that are not there.
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

// point writes the ref, and for a stash the reflog by which git lists it.
func (p *preserving) point(ref string, id oid) error {
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
		return fail(ReferenceExists, err, "the name of the branch %q collides with that of another branch in the agent's repository: choose another name, and give the rewind a new id", p.req.Name)
	}
	return failIO(err, "write %s in %s", path, p.work.path)
}

// logStash adds the stash to its log, once.
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

func (p *preserving) branchName() string {
	if p.branch == "" {
		return "(no branch)"
	}
	return p.branch
}
