package worktree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// CheckpointRequest describes a checkpoint to take.
type CheckpointRequest struct {
	// TaskUID and Number determine the names of the refs.
	TaskUID string
	Number  int64
	// Parent is the parent of the new code commit: the previous checkpoint's code
	// commit, or Origin.Base; "" if there is none.
	Parent string
	// Message is the message of both commits; it may contain trailers.
	Message string
	// Time is the time of both commits; zero means now.
	Time time.Time
	// Annotations are stored in the state commit; see Meta.
	Annotations map[string]string
	// ListNested adds to the message of the code commit which folders are nested repositories.
	ListNested bool
	// Brief makes the checkpoint fail with TooMuchChanged if so much has changed that
	// reading it would take more than some tenths of a second. Call Warm while the
	// agent is running, then try again.
	Brief bool
}

// Action is the kind of a FileChange.
type Action string

// The possible actions of a FileChange.
const (
	Added    Action = "Added"
	Modified Action = "Modified"
	Deleted  Action = "Deleted"
)

// FileChange is one file that differs. Paths in results are valid UTF-8: names
// that are not, or that contain control characters, are in git's quoted form.
type FileChange struct {
	Path   string
	Action Action
	Mode   string // of the new file, or of the old one if it was deleted; for example "100644"
	// Added and Removed count lines. Both are 0 for a binary file and, in a
	// checkpoint, for a file over 1 MiB.
	Added, Removed int64
	Binary         bool
}

// Skipped is a file that a checkpoint does not contain.
type Skipped struct {
	Path   string     `json:"path"`
	Reason SkipReason `json:"reason"`
	Bytes  int64      `json:"bytes,omitempty"`
}

// Checkpoint is the result of a checkpoint that was taken. Commits and trees are
// ids of 40 hexadecimal digits.
type Checkpoint struct {
	Number            int64
	CodeRef, StateRef string
	Code, Tree        string
	Parent            string // "" for a first checkpoint without a base
	State             string

	Files                    []FileChange // relative to Parent, sorted by path, at most Config.MaxListed
	FilesChanged             int
	LinesAdded, LinesRemoved int64 // in Files only
	BinaryFiles              int

	Agent                  AgentGit
	Skipped                []Skipped // at most Config.MaxListed
	SkippedCount           int
	TotalFiles, TotalBytes int64 // of the worktree, without .git
	StateFiles             int
	Took                   time.Duration
}

// Meta is the metadata that a state commit contains, as meta.json.
type Meta struct {
	Version int    `json:"version"`
	Number  int64  `json:"number"`
	Code    string `json:"code"`
	// Tree, Parent and the counts of changes describe the code commit, as in
	// Checkpoint. Earlier versions of the daemon did not write them.
	Tree         string    `json:"tree,omitempty"`
	Parent       string    `json:"parent,omitempty"`
	FilesChanged int       `json:"filesChanged,omitempty"`
	LinesAdded   int64     `json:"linesAdded,omitempty"`
	LinesRemoved int64     `json:"linesRemoved,omitempty"`
	Agent        AgentGit  `json:"agent"`
	Origin       Origin    `json:"origin"`
	Skipped      []Skipped `json:"skipped,omitempty"`
	SkippedCount int       `json:"skippedCount,omitempty"`
	TotalFiles   int64     `json:"totalFiles"`
	TotalBytes   int64     `json:"totalBytes"`
	// Annotations are copied from the CheckpointRequest.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Checkpoint returns the checkpoint that m describes. The list of changes, the refs
// and the state commit are not in m and stay empty.
func (m *Meta) Checkpoint() Checkpoint {
	return Checkpoint{
		Number: m.Number, Code: m.Code, Tree: m.Tree, Parent: m.Parent,
		FilesChanged: m.FilesChanged, LinesAdded: m.LinesAdded, LinesRemoved: m.LinesRemoved,
		Agent: m.Agent, Skipped: m.Skipped, SkippedCount: m.SkippedCount, TotalFiles: m.TotalFiles, TotalBytes: m.TotalBytes,
	}
}

// keepBytes bounds the changed content that a checkpoint keeps in memory between
// hashing and sending; the rest is read a second time.
const keepBytes = 64 << 20

// Checkpoint records the worktree, the agent's repository and the session state
// in two commits and their refs. When it returns they are durable. A process that
// is killed before that leaves at most unreferenced objects, or refs of a number
// that was never reported; calling Checkpoint again with the same number replaces
// them.
//
// Errors: TooManyFiles, StorageFull, WorktreeMissing, CheckpointNotFound (the
// parent), TooMuchChanged, GitFailed.
func (r *Repo) Checkpoint(ctx context.Context, req CheckpointRequest) (Checkpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := time.Now()
	if req.Time.IsZero() {
		req.Time = begin
	}
	if err := req.check(); err != nil {
		return Checkpoint{}, err
	}
	if r.pristine == nil {
		return Checkpoint{}, fail(WorktreeMissing, nil, "the worktree %s was not created by this repository; clone it or restore a checkpoint first", r.cfg.Worktree)
	}
	if req.Brief && r.cache.work == nil {
		return Checkpoint{}, errTooMuchChanged
	}
	refs := refPair{refname.Code(req.TaskUID, req.Number), refname.State(req.TaskUID, req.Number)}
	t, err := r.checkpoint(ctx, &req, refs, true)
	if err != nil && ReasonOf(err) == GitFailed && ctx.Err() == nil {
		// The objects that the quick path relied on may be damaged or missing.
		// The full path reads and sends everything again.
		var fullErr error
		if t, fullErr = r.checkpoint(ctx, &req, refs, false); fullErr == nil {
			err = nil
		}
	}
	if err != nil {
		return Checkpoint{}, err
	}
	r.ahead = nil
	t.result.Took = time.Since(begin)
	return t.result, nil
}

// refPair holds the names of the refs of a checkpoint.
type refPair struct{ code, state string }

// check validates the request.
func (q *CheckpointRequest) check() error {
	for _, ref := range []string{refname.Code(q.TaskUID, q.Number), refname.State(q.TaskUID, q.Number)} {
		if err := checkRefName(ref); err != nil || strings.Contains(q.TaskUID, "/") || q.Number < 1 {
			return fail(InvalidReference, err, "%q is not a valid name for a checkpoint", ref)
		}
	}
	if q.Parent != "" && !isCommitID(q.Parent) {
		return fail(InvalidReference, nil, "the parent %q is not a commit id of 40 hexadecimal digits", q.Parent)
	}
	return nil
}

// checkpoint takes a checkpoint; quick allows it to build on the trees of the
// previous one.
func (r *Repo) checkpoint(ctx context.Context, req *CheckpointRequest, refs refPair, quick bool) (*taking, error) {
	count, err := r.countReplaced()
	if err != nil {
		return nil, err
	}
	im, err := r.startImport(ctx)
	if err != nil {
		return nil, err
	}
	t := &taking{r: r, ctx: ctx, req: req, im: im, quick: quick, code: refs.code, state: refs.state}
	if err := t.scan(); err != nil {
		im.abort()
		return nil, err
	}
	t.commitCode()
	t.commitState()
	if t.err != nil {
		im.abort()
		return nil, t.err
	}
	if err := im.finish(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, failGit(err, "write checkpoint %d of %s", req.Number, r.cfg.Worktree)
	}
	count()
	if want := rootTree(t.snap.work); t.codeTree != want {
		return nil, fail(GitFailed, nil, "checkpoint %d has the tree %s, but the worktree is %s; the repository %s may be damaged", req.Number, t.codeTree, want, r.cfg.GitDir)
	}
	if err := r.syncRefs(t.code, t.state); err != nil {
		return nil, failIO(err, "make checkpoint %d durable", req.Number)
	}
	r.remember(t.snap, baseline{
		code: t.result.Code, state: t.result.State, codeTree: t.codeTree, stateTree: t.stateTree,
		summary: &stateSummary{agent: t.result.Agent, meta: t.meta},
	})
	return t, nil
}

// syncRefs makes the names of new packs and refs durable; git has already synced
// their contents. The folders are synced concurrently, so that the file system can
// commit them in one journal transaction. The parents of a ref's folder are synced
// only once.
func (r *Repo) syncRefs(refs ...string) error {
	folders := []string{"objects/pack"}
	for _, ref := range refs {
		for dir := filepath.Dir(ref); dir != "."; dir = filepath.Dir(dir) {
			_, known := r.synced.LoadOrStore(dir, true)
			if !slices.Contains(folders, dir) && (!known || dir == filepath.Dir(ref)) {
				folders = append(folders, dir)
			}
		}
	}
	errs := make([]error, len(folders))
	var wg sync.WaitGroup
	for i, dir := range folders {
		wg.Go(func() { errs[i] = durable.SyncFolder(filepath.Join(r.cfg.GitDir, dir)) })
	}
	wg.Wait()
	for i, err := range errs {
		// A folder may be gone because its refs are in packed-refs.
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.synced.Delete(folders[i])
			return err
		}
	}
	return nil
}

// remember makes the result of a scan the stat cache. Saving the cache costs as
// much as rereading some dozens of files, so small changes are accumulated.
func (r *Repo) remember(snap *snapshot, base baseline) {
	snap.forget()
	r.cache, r.base = *snap, base
	r.unsaved += snap.read
	if r.unsaved >= 200 {
		_ = r.saveCache() // losing the cache only costs time
	}
}

// taking is the state of one checkpoint in progress.
type taking struct {
	r   *Repo
	ctx context.Context
	req *CheckpointRequest
	im  *importer

	quick               bool   // build on the last checkpoint's trees
	code, state         string // refs
	snap                *snapshot
	codeBase            *dir // the parent's files; changes are reported relative to them
	codeFull            bool // write the whole tree, not only the difference
	warm                *dir // the files of the base tree, if that is not the parent's; see Warm
	stateBase           *dir
	codeTree, stateTree oid
	meta                oid // blob of meta.json
	result              Checkpoint
	err                 error // of reading files; errors of git are in im
}

// scan reads the worktree and determines the trees that the commits are based on.
func (t *taking) scan() error {
	r := t.r
	work, home, err := r.openRoots()
	if err != nil {
		return err
	}
	defer closeRoots(work, home)
	cache, base := r.cache, r.base
	if !t.quick {
		base = baseline{}
	}
	limit := noLimit
	if t.req.Brief {
		limit = briefLimit
	}
	if t.snap, err = r.scanRoots(t.ctx, work, home, keepBytes, limit); err != nil {
		return err
	}
	t.result = Checkpoint{Number: t.req.Number, CodeRef: t.code, StateRef: t.state, Parent: t.req.Parent}
	t.result.Agent = agentHead(work)
	t.result.Agent.Branch = r.cfg.withoutSecrets(t.result.Agent.Branch)
	switch {
	case t.req.Parent == "":
		t.codeBase = &dir{}
	case t.req.Parent == base.code:
		t.codeBase = cache.work
	case t.quick && r.ahead != nil && r.ahead.parent == t.req.Parent && base.code != "":
		t.codeBase, t.warm = r.ahead.files, cache.work
	default:
		tree, id, err := r.readTree(t.ctx, t.req.Parent)
		if err != nil {
			return err
		}
		// Trees in old histories may contain modes that git no longer writes;
		// a difference relative to them would keep those modes.
		t.codeBase, t.codeFull = tree, rootTree(tree) != id || !t.quick
	}
	if base.state != "" {
		t.stateBase = stateView(&cache, r.pristine)
	}
	return nil
}

// commitCode sends the worktree's changes to git and commits them.
func (t *taking) commitCode() {
	changes := diffTrees(t.codeBase, t.snap.work)
	lines, contents := changes, changes
	switch {
	case t.warm != nil:
		lines = diffTrees(t.warm, t.snap.work)
		contents = lines
	case t.codeFull:
		lines = diffTrees(nil, t.snap.work)
	}
	if !t.quick {
		contents = lines
	}
	for i := range contents {
		if needsContent(&contents[i]) || !t.quick {
			t.send(contents[i].new, contents[i].path, t.r.cfg.Worktree)
		}
	}
	t.count(changes)
	im := t.im
	message := t.req.Message
	if t.req.ListNested {
		message = gitstoreapi.WithNested(message, nestedRepositories(t.snap.work, "", nil))
	}
	im.commit(t.code, 1, t.req.Time, message)
	if t.req.Parent != "" {
		im.printf("from %s\n", t.req.Parent)
	}
	switch {
	case t.warm != nil:
		im.modify(modeDir, t.r.base.codeTree, "")
	case t.codeFull:
		im.printf("deleteall\n")
	}
	t.write(lines)
	im.endCommit()
	t.codeTree = im.treeOf(1)
	t.result.Code, t.result.Tree = im.markOf(1).String(), t.codeTree.String()
}

// needsContent reports whether the new side of a change has a blob that the old
// side lacks.
func needsContent(c *treeChange) bool {
	return c.new != nil && c.new.dir == nil && (c.old == nil || c.old.dir != nil || c.old.oid != c.new.oid)
}

// write sends the file commands of a commit. Deletions come first: if a file has
// become a folder, a later deletion would remove the folder's files as well.
func (t *taking) write(changes []treeChange) {
	for i := range changes {
		if c := &changes[i]; c.new == nil || (c.new.gone && c.old != nil) {
			t.im.remove(c.path)
		}
	}
	for i := range changes {
		if e := changes[i].new; e != nil && !e.gone {
			t.im.modify(e.gitMode(), e.gitOID(), changes[i].path)
		}
	}
}

// send sends the content of the entry at path below a root to git. Content that was
// not kept in memory is read again; a file that has changed since the scan is
// recorded as it is now.
func (t *taking) send(e *entry, path, rootPath string) {
	if e == nil || e.dir != nil || t.err != nil || t.im.err != nil || t.im.sent[e.oid] {
		return
	}
	if e.data != nil || e.oid == emptyBlob {
		t.im.blobOf(e.oid, e.data)
		return
	}
	if err := t.ctx.Err(); err != nil {
		t.err = err
		return
	}
	root, err := openBeneath(rootPath)
	if err == nil {
		err = t.resend(e, path, root)
		root.close()
	}
	if err != nil {
		t.err = failIO(err, "read %s in %s", gitpath.Quote(path), rootPath)
	}
}

// emptyBlob is the id of an empty file, whose content is nil.
var emptyBlob = hashObject("blob", nil)

// resend reads an entry from disk a second time and sends its content.
func (t *taking) resend(e *entry, path string, root *beneath) error {
	if e.mode == modeLink {
		target, err := root.readLink(path)
		secret := t.r.cfg.Secrets != nil && t.r.cfg.Secrets.Holds([]byte(target))
		if vanished(err) || skipFor(err) != "" || secret {
			e.each(func(e *entry) { e.gone = true })
			return nil
		}
		if err == nil {
			e.resent(t.im.blob([]byte(target)), true)
		}
		return err
	}
	f, st, err := root.openRegular(path)
	if vanished(err) || skipFor(err) != "" {
		e.each(func(e *entry) { e.gone = true })
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	id, whole, err := t.im.file(f, st.Size, t.secretsFor(path))
	if err == nil {
		e.resent(id, whole && statOf(&st) == e.stat)
	}
	return err
}

// secretsFor returns the secrets to mask in the file at path. Files of a git object
// store are exempt: they are compressed, so a match there is a coincidence.
func (t *taking) secretsFor(path string) Secrets {
	if inObjectStore(path) {
		return nil
	}
	return t.r.cfg.Secrets
}

// each calls f for an entry of a view and for its entry in the real tree.
func (e *entry) each(f func(e *entry)) {
	for ; e != nil; e = e.origin {
		f(e)
	}
}

// resent records the id of the content that was sent for an entry; same is false if
// the file has changed since the scan.
func (e *entry) resent(id oid, same bool) {
	e.each(func(e *entry) {
		e.trusted = e.trusted && same && e.oid == id
		e.oid = id
	})
}
