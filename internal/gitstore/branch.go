package gitstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// serveBranch serves PUT and DELETE /{namespace}/tasks/{uid}/branch for Clew's manager: it makes
// a branch of a checkpoint, or removes one. No pod of the task need run. Both may be repeated.
func (h *Handler) serveBranch(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "branch")
	defer func() {
		h.metrics.requests.WithLabelValues("branch", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	branch, refused := h.branch(c, namespace, uid)
	h.answerJSON(w, c, branch, refused)
}

// branch checks a request for a branch and carries it out.
func (h *Handler) branch(c *call, namespace, uid string) (gitstoreapi.Branch, *gitstoreapi.Refusal) {
	var none gitstoreapi.Branch
	if refused := h.authenticateManager(c); refused != nil {
		return none, refused
	}
	b, refused := newBranching(c.request, namespace, uid)
	if refused != nil {
		return none, refused
	}
	repository, err := h.store.repositoryOf(namespace, uid)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		return none, refusal
	}
	if err != nil {
		return none, h.unavailable(c, err)
	}
	c.repository = *repository
	if c.request.Method == http.MethodPut {
		if c.caller.NamespaceUID, err = h.store.namespaceOf(namespace, uid); err != nil {
			return none, h.unavailable(c, err)
		}
		if refused := h.checkSpace(c); refused != nil {
			return none, refused
		}
	}
	// The manager does not wait here: it serves others meanwhile, and asks again.
	freeSlot, refused := h.slotNow(h.pushes, namespace)
	if refused != nil {
		return none, refused
	}
	defer freeSlot()
	b.repository, b.git = *repository, h.store.gitFor(*repository)
	made, err := b.carryOut(h.store)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		return none, refusal
	}
	if err != nil {
		c.log.Error(err, "a branch could not be made or removed", "branch", b.ref)
		return none, h.storageRefusal(err, "the branch could not be made or removed; try again, and see the gitstore's log")
	}
	c.log.Info("made or removed a branch", "branch", b.ref, "method", c.request.Method, "commit", made.Commit)
	return made, nil
}

// branching is the state of one request for a branch.
type branching struct {
	ctx        context.Context
	git        git
	repository Repository
	task       Task
	ref        string
	remove     bool
	number     int64
	// commit is where the branch to be removed must be; head and base are those of
	// gitstoreapi.BranchQuery.
	commit, head, base string
}

// newBranching reads a request.
func newBranching(r *http.Request, namespace, uid string) (*branching, *gitstoreapi.Refusal) {
	query := r.URL.Query()
	b := &branching{ctx: r.Context(), task: Task{Namespace: namespace, Name: query.Get("task"), UID: uid}, remove: r.Method == http.MethodDelete,
		commit: query.Get("commit"), head: query.Get("head"), base: query.Get("base")}
	name := query.Get("branch")
	b.ref = refname.Branch(b.task.Name, name)
	number, err := strconv.ParseInt(query.Get("checkpoint"), 10, 32)
	b.number = number
	switch {
	case r.Method != http.MethodPut && !b.remove:
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be PUT or DELETE")
	case !taskName.MatchString(b.task.Name):
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "%q is not a valid task name", clip.Marked(b.task.Name, maxShown))
	case refname.CheckBranch(name) != nil || refNameProblem(b.ref) != "":
		return nil, gitstoreapi.New(gitstoreapi.RefNotAllowed, "%q is not a valid branch name; choose another name", clip.Marked(name, maxShown))
	case !b.remove && (err != nil || number < 1):
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "checkpoint must be the number of a checkpoint")
	case b.remove && !isObjectID(b.commit):
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "commit must be the id of the commit at which the branch was made")
	}
	for _, id := range []string{b.head, b.base} {
		if id != "" && !isObjectID(id) {
			return nil, gitstoreapi.New(gitstoreapi.BadRequest, "%q is not the id of a commit", clip.Marked(id, maxShown))
		}
	}
	return b, nil
}

// carryOut makes or removes the branch. Until it is done, neither is the task deleted nor the
// repository purged.
func (b *branching) carryOut(store *Store) (gitstoreapi.Branch, error) {
	var none gitstoreapi.Branch
	fences, err := store.fences(b.task.Namespace)
	if err != nil {
		return none, err
	}
	waiting, cancel := context.WithTimeout(b.ctx, raiseTimeout)
	defer cancel()
	fence, err := openLocked(waiting, fences.lock(b.task.UID), syscall.LOCK_SH)
	if err != nil {
		return none, err
	}
	used, err := b.repository.use(b.ctx)
	if err != nil {
		return none, errors.Join(err, fence.Close())
	}
	defer closeAll([]*os.File{fence, used})
	switch _, err := fences.newest(b.task.UID); {
	case errors.Is(err, errTaskDeleted):
		return none, taskDeleted(b.task)
	case errors.Is(err, errMadeRoom) && b.remove: // another namespace's branch is at another commit
	case errors.Is(err, errMadeRoom):
		return none, gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	case err != nil:
		return none, err
	}
	if b.remove {
		err = b.delete()
	} else {
		err = b.create()
	}
	if err != nil {
		return none, err
	}
	return gitstoreapi.Branch{Ref: b.ref, Commit: b.commit}, b.makeDurable()
}

// makeDurable makes the branch, and the commit that may have been made for it, survive a crash.
func (b *branching) makeDurable() error {
	err := durable.SyncFolder(filepath.Join(b.repository.Path, "objects", b.commit[:2]))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.repository.makeDurable(b.task)
}

// delete removes the branch, unless it is at another commit.
func (b *branching) delete() error {
	at, err := b.at(b.ref)
	if err != nil || at != b.commit {
		return err
	}
	_, err = b.run("update-ref", "-d", b.ref, b.commit)
	return err
}

// create makes the branch.
func (b *branching) create() error {
	code, err := b.at(refname.Code(b.task.UID, b.number))
	if err != nil {
		return err
	}
	if code == "" {
		return gitstoreapi.New(gitstoreapi.NotFound, "the gitstore does not have checkpoint %d of the task %s", b.number, b.task.Name)
	}
	if b.commit, err = b.commitOf(code); err != nil {
		return err
	}
	at, err := b.at(b.ref)
	switch {
	case err != nil || at == b.commit:
		return err
	case at != "":
		return gitstoreapi.New(gitstoreapi.RefExists, "the task %s already has a branch %s, at %s; choose another name", b.task.Name, b.ref, shortID(at))
	}
	if err := b.checkCount(); err != nil {
		return err
	}
	if _, err = b.run("update-ref", b.ref, b.commit, strings.Repeat("0", 40)); err != nil && strings.Contains(err.Error(), "exists; cannot create") {
		return gitstoreapi.New(gitstoreapi.RefExists, "the task %s has a branch beside which git can have no branch %s; choose another name", b.task.Name, b.ref)
	}
	return err
}

// checkCount returns a refusal if the task would have too many branches.
func (b *branching) checkCount() error {
	refs, err := b.run("for-each-ref", "--format=x", "--count="+strconv.Itoa(maxBranchesPerTask), refname.BranchesOf(b.task.Name))
	if err != nil {
		return err
	}
	if strings.Count(refs, "x") >= maxBranchesPerTask {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "the task %s has %d branches, and may have no more", b.task.Name, maxBranchesPerTask)
	}
	return nil
}

// commitOf returns the commit that the branch of a checkpoint is at: the agent's own, if it
// holds the checkpoint's files, and otherwise one on top of it that does. If the gitstore does
// not have the agent's, that is on top of what the task started from. It is the same at each
// repetition.
func (b *branching) commitOf(code string) (string, error) {
	parent, err := b.parent(code)
	if err != nil {
		return "", err
	}
	tree, err := b.run("rev-parse", "--verify", "--end-of-options", code+"^{tree}")
	if err != nil {
		return "", err
	}
	args := []string{"commit-tree", strings.TrimSpace(tree)}
	if parent != "" {
		its, err := b.run("rev-parse", "--verify", "--end-of-options", parent+"^{tree}")
		if err != nil {
			return "", err
		}
		if its == tree {
			return parent, nil
		}
		args = append(args, "-p", parent)
	}
	when, err := b.run("show", "--no-patch", "--format=%ct", "--end-of-options", code)
	if err != nil {
		return "", err
	}
	return b.commitTree(args, strings.TrimSpace(when))
}

// parent returns the commit that the branch continues, or "".
func (b *branching) parent(code string) (string, error) {
	if b.head != "" {
		if at, err := b.at(refname.Head(b.task.UID, b.head)); err != nil || at != "" {
			return at, err
		}
	}
	if b.base == "" {
		return "", nil
	}
	// The base must be the checkpoint's own history: the repository has others' commits.
	command := b.git.command(b.ctx, b.repository.Path, "--git-dir=.", "merge-base", "--is-ancestor", b.base, code)
	if err := b.git.start(command); err != nil {
		return "", err
	}
	if b.git.wait(command) != nil {
		return "", b.ctx.Err()
	}
	return b.base, nil
}

// branchCommitter is the address of the commits on branches. It is not that of checkpoints: a task
// that starts from such a branch has its commit for a base.
const branchCommitter = "noreply@clew.dev"

// commitTree makes a commit of Clew's at the given time.
func (b *branching) commitTree(args []string, when string) (string, error) {
	message := fmt.Sprintf("Checkpoint %d\n\nClew-Task: %s/%s\nClew-Checkpoint: %d\n", b.number, b.task.Namespace, b.task.Name, b.number)
	command := b.git.command(b.ctx, b.repository.Path, append([]string{"--git-dir=."}, args...)...)
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		command.Env = append(command.Env, "GIT_"+who+"_NAME=Clew", "GIT_"+who+"_EMAIL="+branchCommitter, "GIT_"+who+"_DATE=@"+when+" +0000")
	}
	command.Stdin = strings.NewReader(message)
	var made, stderr strings.Builder
	command.Stdout, command.Stderr = &made, &stderr
	if err := b.git.start(command); err != nil {
		return "", err
	}
	if err := b.git.wait(command); err != nil {
		return "", fmt.Errorf("git commit-tree: %w: %s", err, stderr.String())
	}
	return strings.TrimSpace(made.String()), nil
}

// at returns the commit that a ref points to, "" if there is no such ref.
func (b *branching) at(ref string) (string, error) {
	out, err := b.run("for-each-ref", "--format=%(objectname) %(refname)", ref)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) { // refs below it are listed, too
		if id, name, _ := strings.Cut(strings.TrimSpace(line), " "); name == ref {
			return id, nil
		}
	}
	return "", nil
}

func (b *branching) run(args ...string) (string, error) {
	return b.git.run(b.ctx, b.repository.Path, append([]string{"--git-dir=."}, args...)...)
}

// authenticateManager refuses every caller but Clew's manager.
func (h *Handler) authenticateManager(c *call) *gitstoreapi.Refusal {
	return h.authenticateAs(c, "manager", h.authenticator.AuthenticateManager)
}
