package prepare_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
)

// madeBranch makes the branch of a checkpoint in the gitstore, as the gitstore itself does.
func madeBranch(t *testing.T, w *daemontest.World, number int64, name string) daemonapi.Branch {
	t.Helper()
	store := filepath.Join(w.Git.Dir, "store.git")
	code, base := refname.Code(w.UID, number), state(t, w).Base
	commit := strings.TrimSpace(w.Git.Run(t, store, "-c", "user.name=Clew", "-c", "user.email=noreply@clew.dev", "commit-tree", "-m", "Checkpoint", "-p", base, code+"^{tree}"))
	b := daemonapi.Branch{Name: name, Commit: commit}
	w.Git.Run(t, store, "update-ref", b.Ref("task"), commit)
	return b
}

// withBranches is prepare's configuration of a pod that looks after branches.
func withBranches(w *daemontest.World, n int64, op *daemonapi.Operation, checkout *daemonapi.Checkout, branches ...daemonapi.Branch) prepare.Config {
	cfg := w.PrepareConfig(n, op)
	cfg.Pod.Branches, cfg.Pod.Checkout = branches, checkout
	return cfg
}

// prepareBranches runs prepare, and expects it to succeed and to say what became of the branches.
func prepareBranches(t *testing.T, cfg prepare.Config, letters string) daemonapi.PrepareResult {
	t.Helper()
	r := prepare.Run(t.Context(), cfg)
	expect(t, "reason", r.Reason+r.Message, "Prepared")
	expect(t, "branches", r.Branches, letters)
	return r
}

// agentGit runs git in the worktree as the agent does.
func agentGit(t *testing.T, w *daemontest.World, args ...string) string {
	t.Helper()
	return strings.TrimSpace(w.Git.Run(t, w.Path(""), args...))
}

// TestTheAgentFindsBranchesOfCheckpoints: at the commit of the gitstore, with all files; its own
// are left as they are, and what it moved on stays.
func TestTheAgentFindsBranchesOfCheckpoints(t *testing.T) {
	t.Parallel()
	w := three(t)
	one, own := madeBranch(t, w, 2, "try/one"), madeBranch(t, w, 2, "own")
	below, long, gone := madeBranch(t, w, 1, "own-2/below"), madeBranch(t, w, 3, "refs/heads/long"), daemonapi.Branch{Name: "gone", Commit: one.Commit}
	agentGit(t, w, "branch", "own")
	agentGit(t, w, "branch", "own-2")
	head, files := agentGit(t, w, "rev-parse", "own"), w.Tree()
	prepareBranches(t, withBranches(w, 2, nil, nil, one, own, below, long, gone), "MKBMF")
	expect(t, "the branch", agentGit(t, w, "rev-parse", "try/one"), one.Commit)
	expect(t, "a file of it", agentGit(t, w, "show", "try/one:a.txt"), "changed by 2")
	expect(t, "an ignored file", agentGit(t, w, "show", "long:three/ignored"), "3")
	expect(t, "the agent's own", agentGit(t, w, "rev-parse", "own"), head)
	expect(t, "files", w.Tree(), files)
	agentGit(t, w, "fsck", "--full", "--strict")

	prepareBranches(t, withBranches(w, 3, nil, nil, one), "T")
	agentGit(t, w, "branch", "--force", "try/one", head)
	prepareBranches(t, withBranches(w, 4, nil, nil, one), "K")
}

// TestBranchesAreMadeAgainAfterARewind: it replaces the refs of the agent's repository.
func TestBranchesAreMadeAgainAfterARewind(t *testing.T) {
	t.Parallel()
	w := three(t)
	one := madeBranch(t, w, 2, "one")
	prepareBranches(t, withBranches(w, 2, nil, nil, one), "M")
	prepareBranches(t, withBranches(w, 3, rewindTo(1, "Both", "Discard"), nil, one), "M")
	expect(t, "the branch", agentGit(t, w, "rev-parse", "one"), one.Commit)
	agentGit(t, w, "fsck", "--full", "--strict")
}

// TestNoBranchKeepsTheAgentFromStarting: neither a gitstore that is down, nor what the agent has
// made of its repository, nor a pod that only prepares.
func TestNoBranchKeepsTheAgentFromStarting(t *testing.T) {
	t.Parallel()
	w := three(t)
	one := madeBranch(t, w, 2, "one")
	checkout := &daemonapi.Checkout{ID: "c", Branch: one, Checkpoint: 2}
	w.Git.SetDown(true)
	r := prepareBranches(t, withBranches(w, 2, nil, checkout, one), "F")
	expect(t, "the checkout", r.Checkout, nil)
	w.Git.SetDown(false)
	only := withBranches(w, 3, nil, checkout, one)
	only.Pod.PrepareOnly = true
	r = prepareBranches(t, only, "")
	expect(t, "the checkout of a pod that only prepares", r.Checkout, nil)

	for n, name := range []string{".git/objects/pack", ".git"} { // the agent puts a link there
		path := w.Path(name)
		if err := errors.Join(os.Rename(path, path+"-elsewhere"), os.Symlink(path+"-elsewhere", path)); err != nil {
			t.Fatal(err)
		}
		resume := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: fmt.Sprint("r", n), OnDrift: "Preserve"}
		checkout.ID = name
		r = prepareBranches(t, withBranches(w, int64(4+n), resume, checkout, one), "U")
		expect(t, "the reason with a link "+name, r.Checkout.Reason, "InvalidState")
	}
}
