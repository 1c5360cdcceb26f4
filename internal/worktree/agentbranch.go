package worktree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/refname"
)

// AgentBranch is a branch that the agent's repository is to have.
type AgentBranch struct {
	// Name is without refs/heads/.
	Name   string
	Commit string
}

// FindAgentBranches reports for each of some branches whether the agent's repository has it, at its
// commit. If it does not and the branch cannot be made, the error says why:
//
//   - BranchMoved: the repository has something else of that name;
//   - ReferenceExists: git can have no such branch beside another one, or would take another ref for
//     it;
//   - InvalidReference: git accepts no such name;
//   - RepositoryUnsuited: the repository is not one in which branches can be made.
//
// It only reads. Other errors: WorktreeMissing, GitFailed, and that of ctx.
func (r *Repo) FindAgentBranches(ctx context.Context, branches []AgentBranch) []AgentBranchFound {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make([]AgentBranchFound, len(branches))
	work, err := r.openAgentRepository()
	if err != nil {
		for i := range found {
			found[i].Err = err
		}
		return found
	}
	defer work.close()
	packed := packedOf(work, branches)
	for i, b := range branches {
		if found[i].Err = ctx.Err(); found[i].Err == nil {
			found[i].There, found[i].Err = findAgentBranch(work, b, packed)
		}
	}
	return found
}

// AgentBranchFound is what is known of a branch in the agent's repository.
type AgentBranchFound struct {
	There bool
	Err   error
}

// packedOf reads what packed-refs says of branches and of what may be in their way.
func packedOf(work *beneath, branches []AgentBranch) packedRefs {
	var refs []string
	for _, b := range branches {
		refs = append(refs, conflictsWith("refs/heads/"+b.Name)...)
		refs = append(refs, preferred(b.Name)...)
	}
	return readPacked(work, refs...)
}

// preferred returns the refs that git, or a person, would take for a branch if they existed.
func preferred(branch string) []string {
	return []string{"refs/" + branch, "refs/tags/" + branch, "refs/remotes/" + branch, "refs/remotes/" + branch + "/HEAD"}
}

// findAgentBranch is FindAgentBranches in an open worktree.
func findAgentBranch(work *beneath, b AgentBranch, packed packedRefs) (there bool, err error) {
	if err := refname.CheckBranch(b.Name); err != nil {
		return false, fail(InvalidReference, err, "%q is not a valid branch name", b.Name)
	}
	ref := "refs/heads/" + b.Name
	at := packed.ids[ref]
	if info, err := work.lstat(gitName + "/" + ref); err == nil && info.Mode&unix.S_IFMT != unix.S_IFDIR {
		raw, _ := work.readFile(gitName+"/"+ref, 4<<10) // nothing of a link
		at = commitID(strings.TrimSpace(string(raw)))
	}
	switch {
	case at == b.Commit:
		return true, nil
	case at != "":
		return false, fail(BranchMoved, nil, "the agent's repository has a branch %q at another commit, %s, which is left as it is", b.Name, at)
	case headLeadsTo(work, ref):
		return false, fail(BranchMoved, nil, "the agent is on a branch %q that has no commit yet, which is left as it is", b.Name)
	}
	switch found := packed.conflicting(work, ref); {
	case found == ref:
		return false, fail(BranchMoved, nil, "the agent's repository has something named %q that is at no commit, which is left as it is", ref)
	case found != "":
		return false, fail(ReferenceExists, nil, "the agent's repository cannot have a branch %q beside %s", b.Name, found)
	}
	for _, other := range preferred(b.Name) {
		if info, err := work.lstat(gitName + "/" + other); packed.ids[other] != "" || err == nil && info.Mode&unix.S_IFMT != unix.S_IFDIR {
			return false, fail(ReferenceExists, nil, "the agent's repository has %s, for which git would take a branch %q, or the other way round", other, b.Name)
		}
	}
	if _, err := work.lstat(gitName + "/" + ref); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, unsuited(err, "write %s", ref)
	}
	return false, nil
}

// headLeadsTo reports whether the agent's HEAD is symbolic and leads to a ref, which need not
// exist: HEAD would be elsewhere if somebody made it.
func headLeadsTo(work *beneath, ref string) bool {
	at := "HEAD"
	for range 5 { // as many symbolic refs as git follows
		raw, err := work.readFile(gitName+"/"+at, 4<<10)
		if err != nil {
			target, err := work.readLink(gitName + "/" + at)
			if err != nil {
				return false
			}
			raw = []byte("ref: " + target)
		}
		next, symbolic := strings.CutPrefix(strings.TrimSpace(string(raw)), "ref:")
		if at = strings.TrimSpace(next); !symbolic || checkRefName(at) != nil {
			return false
		}
		if at == ref {
			return true
		}
	}
	return false
}

// StoreForAgent adds commits of this repository to the agent's, with everything that they reach.
// What the agent's got when it was cloned is left out, as long as it is there.
//
// Errors: RepositoryUnsuited, WorktreeMissing, CheckpointNotFound (a commit), CheckpointCorrupted,
// StorageFull, GitFailed.
func (r *Repo) StoreForAgent(ctx context.Context, commits []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	work, err := r.openAgentRepository()
	if err != nil {
		return err
	}
	defer work.close()
	ids, err := r.resolveAll(ctx, commits)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(r.own(""), "tmp_packs_")
	if err != nil {
		return failIO(err, "create a folder in %s", r.own(""))
	}
	defer os.RemoveAll(scratch)
	revisions := lines(ids)
	if r.agentHasOrigin(work) {
		revisions += "^" + r.pristine.Commit + "\n"
	}
	// A checkpoint leaves larger files out.
	limit := fmt.Sprintf("--max-pack-size=%d", r.cfg.MaxGitFileBytes)
	args := []string{"-c", "pack.threads=1", "pack-objects", "--revs", "--non-empty", "-q", "--delta-base-offset", limit, filepath.Join(scratch, "pack")}
	_, err = r.git(ctx, gitCall{args: args, stdin: strings.NewReader(revisions)})
	if err != nil {
		return r.failCorrupt(err, "pack the commits %s", strings.Join(commits, ", "))
	}
	if _, err := r.copyPacks(work, scratch); err != nil {
		return unsuited(err, "write to the agent's object store")
	}
	return failIO(work.sync(), "make %s durable", work.path)
}

// agentHasOrigin reports whether the agent's repository still has the packs that it got when it
// was cloned. An agent may have deleted them, if nothing of its own needs them.
func (r *Repo) agentHasOrigin(work *beneath) bool {
	if r.pristine == nil || r.pristine.Commit == "" {
		return false
	}
	for _, f := range r.pristine.Files {
		if st, err := work.lstat(f.Path); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != f.Bytes {
			return false
		}
	}
	return true
}

// MakeAgentBranches makes branches in the agent's repository, which must have their commits. It
// writes files and runs no git there. It may be repeated. There is an error, or nil, for each.
//
// Errors: those of FindAgentBranches, StorageFull.
func (r *Repo) MakeAgentBranches(ctx context.Context, branches []AgentBranch) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := make([]error, len(branches))
	work, err := r.openAgentRepository()
	if err == nil {
		defer work.close()
		packed := packedOf(work, branches)
		for i, b := range branches {
			if errs[i] = ctx.Err(); errs[i] == nil {
				errs[i] = makeAgentBranch(work, b, packed)
			}
		}
		err = failIO(work.sync(), "make %s durable", work.path)
	}
	for i := range errs {
		errs[i] = cmp.Or(errs[i], err)
	}
	return errs
}

// makeAgentBranch makes one branch.
func makeAgentBranch(work *beneath, b AgentBranch, packed packedRefs) error {
	there, err := findAgentBranch(work, b, packed)
	if err != nil || there {
		return err
	}
	return unsuited(putAgentFile(work, "refs/heads/"+b.Name, b.Commit), "make the branch %s", b.Name)
}

// openAgentRepository opens the worktree if the agent's repository is one in which branches can
// be made by writing files.
func (r *Repo) openAgentRepository() (*beneath, error) {
	work, err := openBeneath(r.cfg.Worktree)
	if err != nil {
		return nil, fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	if err := checkAgentRepository(work); err != nil {
		work.close()
		return nil, err
	}
	return work, nil
}

// sha256Repository matches the setting of a repository whose objects have other ids.
var sha256Repository = regexp.MustCompile(`(?i)\bobjectformat\s*=\s*"?sha256`)

// maxConfig bounds the size of the configuration that is read.
const maxConfig = 1 << 20

// checkAgentRepository returns RepositoryUnsuited unless the agent's repository is a plain one:
// its own, with refs in files, and no link in a place that a branch needs.
func checkAgentRepository(work *beneath) error {
	const why = "the agent's repository gets no branches of checkpoints: "
	if !refsInFiles(work) {
		return fail(RepositoryUnsuited, nil, why+"its worktree has no folder .git with refs in files")
	}
	for _, name := range []string{"objects", "refs", "refs/heads"} {
		info, err := work.lstat(gitName + "/" + name)
		missing := errors.Is(err, unix.ENOENT) && name != "objects"
		if !missing && (err != nil || info.Mode&unix.S_IFMT != unix.S_IFDIR) {
			return fail(RepositoryUnsuited, err, why+".git/%s is not a folder", name)
		}
	}
	if info, err := work.lstat(gitName + "/packed-refs"); !errors.Is(err, unix.ENOENT) && (err != nil || info.Mode&unix.S_IFMT != unix.S_IFREG || info.Size > maxRefBytes) {
		return fail(RepositoryUnsuited, err, why+".git/packed-refs is not a file, or too large")
	}
	if _, err := work.lstat(gitName + "/commondir"); !errors.Is(err, unix.ENOENT) {
		return fail(RepositoryUnsuited, err, why+"its refs are in another folder, which .git/commondir names")
	}
	if config, err := work.readFile(gitName+"/config", maxConfig); err == nil && sha256Repository.Match(config) {
		return fail(RepositoryUnsuited, nil, why+"its objects have SHA-256 ids")
	}
	return nil
}

// unsuited returns the error of a write in the agent's repository: RepositoryUnsuited if it is
// what the agent has put there, or forbidden, that is in the way.
func unsuited(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	switch what := fmt.Sprintf(format, args...); {
	case NoSpace(err):
		return failIO(err, "%s", what)
	case vanished(err), skipFor(err) != "", errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EROFS):
		return fail(RepositoryUnsuited, err, "something in the agent's repository is in the way of trying to %s", what)
	default:
		return failIO(err, "%s", what)
	}
}
