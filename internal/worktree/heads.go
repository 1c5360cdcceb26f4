package worktree

import (
	"compress/zlib"
	"context"
	"crypto/sha1"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/refname"
)

// HeadRequest names one of the agent's own commits.
type HeadRequest struct {
	TaskUID string
	// Commit is the commit that HEAD of the agent's repository was at a checkpoint.
	Commit string
	// State is that checkpoint's state commit.
	State string
}

// Bounds of what one commit of the agent may add to the repository. Variables, since a test
// cannot reach them otherwise.
var (
	maxHeadObjects = 200_000
	maxHeadBytes   = int64(1 << 30)
)

// StoreHead stores one of the agent's own commits with everything that it reaches, and
// creates its ref; see refname.Head. Unlike the checkpoints, which hold the agent's
// repository as plain files, the ref can be pushed as a branch.
//
// The agent's repository is not read: a checkpoint's state has its objects, as they were at
// one moment. They are data of somebody untrusted, so they are unpacked beside this
// repository, checked, and only what the commit needs is added. What a checkpoint leaves out,
// a commit may not bring in either: files above Config.MaxFileBytes, and secrets. Nor may it
// bring in what only states reach: whoever may read code may read the commit, and states hold
// conversations.
//
// Errors: HeadNotStored, StorageFull, MemoryExceeded, GitFailed, CheckpointNotFound and
// CheckpointCorrupted (the state).
func (r *Repo) StoreHead(ctx context.Context, req HeadRequest) error {
	ref := refname.Head(req.TaskUID, req.Commit)
	if err := checkRefName(ref); err != nil || !isCommitID(req.Commit) || strings.Contains(req.TaskUID, "/") {
		return fail(InvalidReference, err, "%q is not a valid name for a commit of the agent", ref)
	}
	r.packs.RLock()
	defer r.packs.RUnlock()
	known, err := r.codeTips(ctx, req.State)
	if err != nil {
		return err
	}
	more, err := r.reached(ctx, req.Commit, known, nil)
	if len(more) > 0 || err != nil && ReasonOf(err) == "" && ctx.Err() == nil {
		err = r.importHead(ctx, req, known)
	}
	if err != nil {
		return err
	}
	if _, err := r.git(ctx, gitCall{args: []string{"update-ref", "--end-of-options", ref, req.Commit}}); err != nil {
		return failGit(err, "create %s", ref)
	}
	return failIO(r.syncRefs(ref), "make %s durable", ref)
}

// reached lists the objects that a commit reaches and the known ones do not. It may list some
// that those do reach. It fails if the commit is no commit, or something that it reaches is
// missing.
func (r *Repo) reached(ctx context.Context, commit string, known, env []string) ([]oid, error) {
	kind, err := r.git(ctx, gitCall{args: []string{"cat-file", "-t", commit}, env: env})
	if err != nil {
		return nil, err
	}
	if string(kind) != "commit\n" {
		return nil, fail(HeadNotStored, nil, "the agent's HEAD %s is a %s, not a commit", commit, strings.TrimSpace(string(kind)))
	}
	ask := strings.NewReader(strings.Join(append([]string{commit}, known...), "\n^") + "\n")
	out, err := r.git(ctx, gitCall{args: []string{"rev-list", "--objects", "--no-object-names", "--stdin"}, env: env, stdin: ask})
	if err != nil {
		return nil, err
	}
	var ids []oid
	for line := range strings.Lines(string(out)) {
		id, err := parseOID(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, failIO(err, "list what %s reaches", commit)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// headImport is the state of one import by StoreHead.
type headImport struct {
	r     *Repo
	ctx   context.Context
	req   HeadRequest
	known []string    // the commits of codeTips
	aside string      // an object folder beside the repository's own
	env   []string    // makes git find the objects in aside as well
	store *dir        // the agent's object folder, as the state has it
	loose []looseFile // its loose objects
	packs bool        // its packs are unpacked
}

// looseFile is a loose object of the agent, and the file that is said to hold it.
type looseFile struct{ id, content oid }

// importHead adds a commit from a checkpoint's state to the repository.
func (r *Repo) importHead(ctx context.Context, req HeadRequest, known []string) error {
	aside, err := os.MkdirTemp(r.own(""), "tmp_head_")
	if err != nil {
		return failIO(err, "create a folder in %s", r.own(""))
	}
	defer os.RemoveAll(aside)
	h := &headImport{r: r, ctx: ctx, req: req, known: known, aside: aside, env: []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + aside}}
	ids, err := h.gather()
	if err == nil {
		ids, err = h.own(ids)
	}
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := h.check(ids); err != nil {
		return err
	}
	_, err = r.git(ctx, gitCall{args: []string{"pack-objects", "--quiet", filepath.Join(r.cfg.GitDir, "objects/pack/pack")}, env: h.env, stdin: strings.NewReader(lines(ids))})
	return failGit(err, "pack the agent's commit %s", req.Commit)
}

// gather unpacks the objects of the state until the commit is whole, and returns those that
// it needs and that are not known to be others' to read.
func (h *headImport) gather() ([]oid, error) {
	state, _, err := h.r.readTree(h.ctx, h.req.State)
	if err != nil {
		return nil, err
	}
	store := state.lookup(stateGit + "/objects")
	if store == nil || store.dir == nil {
		return nil, h.incomplete(nil)
	}
	h.store, h.loose = store.dir, looseFiles(store.dir)
	// What an agent has committed is loose, until somebody packs its repository.
	if err := h.unpackLacking(); err != nil {
		return nil, err
	}
	ids, err := h.r.reached(h.ctx, h.req.Commit, h.known, h.env)
	if err == nil || ReasonOf(err) != "" {
		return ids, err
	}
	if err := h.unpackPacks(); err != nil {
		return nil, err
	}
	ids, err = h.r.reached(h.ctx, h.req.Commit, h.known, h.env)
	if err == nil || ReasonOf(err) != "" {
		return ids, err
	}
	return nil, h.incomplete(err)
}

// incomplete returns the error for a commit that the state does not hold whole.
func (h *headImport) incomplete(err error) error {
	if h.ctx.Err() != nil {
		return h.ctx.Err()
	}
	if err != nil && (interrupted(err) || outOfSpace(stderrOf(err))) {
		return failGit(err, "list what %s reaches", h.req.Commit)
	}
	return fail(HeadNotStored, nil, "the agent's commit %s, or a file in it or in one before it, is not in the checkpoint's copy of the agent's repository: files above %d bytes and files that hold a secret are left out",
		h.req.Commit, h.r.cfg.MaxFileBytes)
}

// looseFiles lists the loose objects of a folder of objects.
func looseFiles(store *dir) (files []looseFile) {
	store.walkFiles("", func(name string, e *entry) {
		id, err := parseOID(strings.Replace(name, "/", "", 1))
		if err == nil && e.mode != modeLink && len(name) == 41 && name[2] == '/' && len(files) < maxHeadObjects {
			files = append(files, looseFile{id: id, content: e.oid})
		}
	})
	return files
}

// unpackLacking copies the loose objects that the repository lacks.
func (h *headImport) unpackLacking() error {
	ids := make([]oid, 0, len(h.loose))
	for _, f := range h.loose {
		ids = append(ids, f.id)
	}
	lacking, err := h.missing(ids, nil)
	if err != nil {
		return err
	}
	return h.unpackLoose(lacking)
}

// unpackLoose copies those of some objects that are loose.
func (h *headImport) unpackLoose(ids []oid) error {
	wanted := map[oid]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	var found, contents []oid
	for _, f := range h.loose {
		if wanted[f.id] {
			found, contents = append(found, f.id), append(contents, f.content)
		}
	}
	left := maxHeadBytes
	return h.r.eachObject(h.ctx, contents, func(i int, _ string, size int64, content io.Reader) error {
		if left -= size; left < 0 {
			_, err := io.Copy(io.Discard, content)
			return err
		}
		return failIO(h.copyLoose(found[i], content), "unpack the agent's commit %s in %s", h.req.Commit, h.r.cfg.GitDir)
	})
}

// copyLoose copies the file of a loose object, unless it is not the object of its name, or one
// that is too large.
func (h *headImport) copyLoose(id oid, content io.Reader) error {
	hex := id.String()
	name := filepath.Join(h.aside, hex[:2], hex[2:])
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	in := io.TeeReader(content, f)
	whole := holdsObject(in, id, h.r.cfg.MaxFileBytes)
	_, err = io.Copy(io.Discard, in)
	if err := errors.Join(err, f.Close()); err != nil || whole {
		return err
	}
	return os.Remove(name)
}

// holdsObject reports whether the content of a loose object's file is the object of this id,
// of a limited size.
func holdsObject(content io.Reader, id oid, limit int64) bool {
	const header = 32 // at most: a type and a size
	plain, err := zlib.NewReader(content)
	if err != nil {
		return false
	}
	hash := sha1.New()
	n, err := io.Copy(hash, io.LimitReader(plain, limit+header+1))
	return err == nil && n <= limit+header && sum(hash) == id
}

// unpackPacks copies the packs of the state, as far as they are packs.
func (h *headImport) unpackPacks() error {
	if h.packs {
		return nil
	}
	h.packs = true
	var packs []oid
	h.store.walkFiles("", func(name string, e *entry) {
		if e.mode != modeLink && path.Dir(name) == "pack" && strings.HasSuffix(name, ".pack") {
			packs = append(packs, e.oid)
		}
	})
	left := maxHeadBytes
	return h.r.eachObject(h.ctx, packs, func(_ int, _ string, size int64, content io.Reader) error {
		if left -= size; left >= 0 {
			env := []string{"GIT_OBJECT_DIRECTORY=" + h.aside, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(h.r.cfg.GitDir, "objects")}
			_, err := h.r.git(h.ctx, gitCall{args: []string{"index-pack", "--stdin"}, env: env, stdin: content})
			if err != nil && (h.ctx.Err() != nil || interrupted(err) || outOfSpace(stderrOf(err))) {
				return failGit(err, "unpack the agent's commit %s", h.req.Commit)
			}
		}
		_, err := io.Copy(io.Discard, content)
		return err
	})
}

// check returns an error if the objects must not get into the repository.
func (h *headImport) check(ids []oid) error {
	if len(ids) > maxHeadObjects {
		return h.tooMuch()
	}
	left := maxHeadBytes
	return h.r.eachObjectIn(h.ctx, h.env, ids, func(_ int, kind string, size int64, content io.Reader) error {
		if left -= size; left < 0 {
			return h.tooMuch()
		}
		if kind == "blob" && size > h.r.cfg.MaxFileBytes {
			return fail(HeadNotStored, nil, "the agent's commit %s, or one before it, has a file of %d bytes, and checkpoints hold files up to %d: raise checkpointPolicy.maxFileBytes, or have the agent take the file out of its history",
				h.req.Commit, size, h.r.cfg.MaxFileBytes)
		}
		return h.checkContent(content)
	})
}

// checkContent returns an error if an object holds a secret.
func (h *headImport) checkContent(content io.Reader) error {
	secrets := h.r.cfg.Secrets
	if secrets == nil {
		_, err := io.Copy(io.Discard, content)
		return err
	}
	_, found, err := secrets.CopySame(io.Discard, content)
	if err == nil && found {
		return fail(HeadNotStored, nil, "the agent's commit %s, or one before it, holds a value of one of the task's Secrets: have the agent take it out of its history", h.req.Commit)
	}
	return err
}

func (h *headImport) tooMuch() error {
	return fail(HeadNotStored, nil, "the agent's commit %s needs more than %d objects or %d bytes that the repository lacks; store large files elsewhere", h.req.Commit, maxHeadObjects, maxHeadBytes)
}
