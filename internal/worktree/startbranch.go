package worktree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/refname"
)

// maxBranchNumber is the largest number that StartBranch appends to a name.
const maxBranchNumber = 100

// StartBranch makes the agent's repository continue on a new branch, as `git switch -c`
// does: the branch begins at HEAD, files and index stay. It writes files and runs no git
// there. If numbered is set and the name is in use, it appends the first number from 2 that
// makes the name unused; if a branch has the name of one of its folders, it uses a name
// without folders, for example clew-try in place of clew/try. It returns the branch; "" if
// the agent has no repository of its own that keeps refs in files, which is then left alone.
//
// It may be killed at any instant. Called again, it may find the branch that it made and
// HEAD elsewhere: restore the checkpoint first, which removes that branch.
//
// Errors: InvalidReference, ReferenceExists, WorktreeMissing, StorageFull.
func (r *Repo) StartBranch(_ context.Context, name string, numbered bool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := refname.CheckBranch(name); err != nil {
		return "", fail(InvalidReference, err, "%q is not a valid branch name", name)
	}
	work, err := openBeneath(r.cfg.Worktree)
	if err != nil {
		return "", fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	defer work.close()
	if !refsInFiles(work) {
		return "", nil
	}
	at := agentHead(work)
	branch, err := freeBranch(work, name, numbered)
	if err != nil {
		return "", err
	}
	if at.Head != "" { // an unborn branch has no ref
		if err := writeAgentFile(work, "refs/heads/"+branch, at.Head); err != nil {
			return "", err
		}
	}
	if err := writeAgentFile(work, "HEAD", "ref: refs/heads/"+branch); err != nil {
		return "", err
	}
	return branch, failIO(work.sync(), "make %s durable", work.path)
}

// refsInFiles reports whether the agent has a repository whose refs are files below .git.
func refsInFiles(work *beneath) bool {
	git, err := work.lstat(gitName)
	if err != nil || git.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	if _, err := work.lstat(gitName + "/HEAD"); err != nil {
		return false
	}
	_, err = work.lstat(gitName + "/reftable")
	return err != nil
}

// freeBranch returns the name, or with numbered set one made from it, that no branch of the
// agent's repository has or conflicts with.
func freeBranch(work *beneath, name string, numbered bool) (string, error) {
	if numbered && folderTaken(work, name) {
		name = strings.ReplaceAll(name, "/", "-")
	}
	for n := 1; n <= maxBranchNumber; n++ {
		candidate := name
		if n > 1 {
			candidate = fmt.Sprintf("%s-%d", name, n)
		}
		found := conflictingRef(work, "refs/heads/"+candidate)
		if found == "" {
			return candidate, nil
		}
		if !numbered {
			return "", fail(ReferenceExists, nil, "the source's repository has a branch %q already, or one that conflicts with it: start a new task on a branch of another name", name)
		}
	}
	return "", fail(ReferenceExists, nil, "the source's repository has the branch %q and those with the numbers 2 to %d already: start a new task on a branch of another name", name, maxBranchNumber)
}

// folderTaken reports whether a branch has the name of a folder of the given name, so that no
// branch can be made below it.
func folderTaken(work *beneath, name string) bool {
	for end, c := range name {
		if c == '/' && agentRef(work, "refs/heads/"+name[:end]) != "" {
			return true
		}
	}
	return false
}

// writeAgentFile replaces a small file of the agent's repository.
func writeAgentFile(work *beneath, name, line string) error {
	err := putAgentFile(work, name, line)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return fail(ReferenceExists, err, "%s cannot be written in the agent's repository, since another branch is in the way: start a new task on a branch of another name", name)
	}
	return failIO(err, "write %s/%s in %s", gitName, name, work.path)
}

// putAgentFile is writeAgentFile with the errors of the file system.
func putAgentFile(work *beneath, name, line string) error {
	path := gitName + "/" + name
	parent, _ := splitPath(path)
	if err := work.makeFolders(parent); err != nil {
		return err
	}
	return work.replace(path, 0o644, func(f *os.File) error {
		_, err := f.WriteString(line + "\n")
		return err
	})
}
