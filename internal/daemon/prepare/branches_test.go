package prepare_test

import (
	"context"
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
	"github.com/clew-dev/clew/internal/worktree"
)

// branchFrom returns what prepare is told of the branch of a checkpoint.
func branchFrom(number int64, name string) daemonapi.Branch {
	return daemonapi.Branch{Name: name, Checkpoint: number}
}

const (
	made       = daemonapi.OutcomeMade
	present    = daemonapi.OutcomePresent
	taken      = daemonapi.OutcomeTaken
	conflicts  = daemonapi.OutcomeConflicts
	unsuited   = daemonapi.OutcomeUnsuitedRepository
	notFetched = daemonapi.OutcomeNotFetched
	givenUp    = daemonapi.OutcomeGivenUp
)

// withBranches is prepare's configuration of a pod that looks after branches.
func withBranches(w *daemontest.World, n int64, op *daemonapi.Operation, checkout *daemonapi.Checkout, branches ...daemonapi.Branch) prepare.Config {
	cfg := w.PrepareConfig(n, op)
	cfg.Pod.Branches, cfg.Pod.Checkout = branches, checkout
	return cfg
}

// prepareBranches runs prepare, and expects it to succeed and to say what became of the branches.
func prepareBranches(t *testing.T, cfg prepare.Config, outcomes ...daemonapi.BranchOutcome) daemonapi.PrepareResult {
	t.Helper()
	r := prepare.Run(t.Context(), cfg)
	expect(t, "reason", r.Reason+r.Message, "Prepared")
	var got []daemonapi.BranchOutcome
	for _, b := range r.Branches {
		got = append(got, b.Outcome)
	}
	expect(t, "branches", got, outcomes)
	return r
}

// agentGit runs git in the worktree as the agent does.
func agentGit(t *testing.T, w *daemontest.World, args ...string) string {
	t.Helper()
	return strings.TrimSpace(w.Git.Run(t, w.Path(""), args...))
}

// TestTheAgentFindsBranchesOfCheckpoints: as they are published, without what git ignores; its own
// are left as they are, and what it moved on stays.
func TestTheAgentFindsBranchesOfCheckpoints(t *testing.T) {
	t.Parallel()
	w := three(t)
	one, own := branchFrom(2, "try/one"), branchFrom(2, "own")
	below, long, gone := branchFrom(1, "own-2/below"), branchFrom(4, "refs/heads/long"), branchFrom(99, "gone")
	agentGit(t, w, "branch", "own")
	agentGit(t, w, "branch", "own-2")
	head, files := agentGit(t, w, "rev-parse", "own"), w.Tree()
	r := prepareBranches(t, withBranches(w, 2, nil, nil, one, own, below, long, gone), made, taken, conflicts, made, notFetched)
	expect(t, "the branch", agentGit(t, w, "rev-parse", "try/one"), r.Branches[0].Commit)
	expect(t, "a file of it", agentGit(t, w, "show", "try/one:a.txt"), "changed by 2")
	expect(t, "its parent", agentGit(t, w, "rev-parse", "try/one^"), head)
	expect(t, "what another one adds", agentGit(t, w, "diff", "--name-only", head, "long"), "a.txt\ndir/b.txt\none.txt")
	expect(t, "the agent's own", agentGit(t, w, "rev-parse", "own"), head)
	expect(t, "files", w.Tree(), files)
	agentGit(t, w, "fsck", "--full", "--strict")

	again := prepareBranches(t, withBranches(w, 3, nil, nil, one), present)
	expect(t, "the commit", again.Branches[0], daemonapi.BranchResult{Outcome: present, Commit: r.Branches[0].Commit})
	agentGit(t, w, "branch", "--force", "try/one", head)
	prepareBranches(t, withBranches(w, 4, nil, nil, one), taken)
}

// TestABranchWithAllFilesIsTheOneInTheGitstore: the two differ only if git ignores files.
func TestABranchWithAllFilesIsTheOneInTheGitstore(t *testing.T) {
	t.Parallel()
	w := three(t)
	store, code := filepath.Join(w.Git.Dir, "store.git"), refname.Code(w.UID, 2)
	inStore := func(args ...string) string { return strings.TrimSpace(w.Git.Run(t, store, args...)) }
	who := "Clew <noreply@clew.dev> " + inStore("show", "--no-patch", "--format=%ct", code) + " +0000"
	r := prepareBranches(t, withBranches(w, 2, nil, nil, branchFrom(2, "one")), made)
	expect(t, "its commit", agentGit(t, w, "cat-file", "commit", r.Branches[0].Commit), fmt.Sprintf(
		"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nCheckpoint 2\n\nClew-Task: %s/%s\nClew-Checkpoint: 2",
		inStore("rev-parse", code+"^{tree}"), state(t, w).Base, who, who, w.Pod(1, nil).Namespace, w.Pod(1, nil).Task))
}

// TestABranchThatWasMadeIsTheAgents: it is neither moved back nor made again, until a rewind
// replaces the branches of the agent's repository, also one in a pod that only prepares.
func TestABranchThatWasMadeIsTheAgents(t *testing.T) {
	t.Parallel()
	w := three(t)
	one, two := branchFrom(2, "one"), branchFrom(2, "two")
	commit := prepareBranches(t, withBranches(w, 2, nil, nil, one, two), made, made).Branches[0].Commit
	one.Made, two.Made = true, true
	agentGit(t, w, "branch", "--force", "one", "HEAD")
	agentGit(t, w, "branch", "--delete", "--force", "two")
	r := prepareBranches(t, withBranches(w, 3, nil, nil, one, two), present, present)
	expect(t, "what is known of it", r.Branches[0].Commit, "")
	expect(t, "the branches", agentGit(t, w, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/one", "refs/heads/two"), "refs/heads/one "+agentGit(t, w, "rev-parse", "HEAD"))

	rewind := withBranches(w, 4, rewindTo(1, "Both", "Discard"), nil, one, two)
	rewind.Pod.PrepareOnly = true
	prepareBranches(t, rewind)
	r = prepareBranches(t, withBranches(w, 5, nil, nil, one, two), made, made)
	expect(t, "its commit", r.Branches[0].Commit, commit)
	expect(t, "the branch", agentGit(t, w, "rev-parse", "one"), commit)
	agentGit(t, w, "fsck", "--full", "--strict")
	agentGit(t, w, "branch", "--delete", "--force", "one")
	prepareBranches(t, withBranches(w, 6, nil, nil, one, two), present, present)
}

// TestNoBranchKeepsTheAgentFromStarting: neither a gitstore that is down, nor what the agent has
// made of its repository, nor a pod that only prepares.
func TestNoBranchKeepsTheAgentFromStarting(t *testing.T) {
	t.Parallel()
	w := three(t)
	one := branchFrom(2, "one")
	checkout := &daemonapi.Checkout{ID: "c", Branch: one}
	w.Git.SetDown(true)
	away := branchFrom(99, "one")
	r := prepareBranches(t, withBranches(w, 2, nil, &daemonapi.Checkout{ID: "c", Branch: away}, away), notFetched)
	expect(t, "the checkout", r.Checkout, nil)
	w.Git.SetDown(false)
	only := withBranches(w, 3, nil, checkout, one)
	only.Pod.PrepareOnly = true
	r = prepareBranches(t, only)
	expect(t, "the checkout of a pod that only prepares", r.Checkout, nil)

	for n, name := range []string{".git/objects/pack", ".git"} { // the agent puts a link there
		path := w.Path(name)
		if err := errors.Join(os.Rename(path, path+"-elsewhere"), os.Symlink(path+"-elsewhere", path)); err != nil {
			t.Fatal(err)
		}
		resume := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: fmt.Sprint("r", n), OnDrift: "Preserve"}
		checkout.ID = name
		r = prepareBranches(t, withBranches(w, int64(4+n), resume, checkout, one), unsuited)
		expect(t, "the reason with a link "+name, r.Checkout.Reason, "RepositoryUnsuited")
	}
}

func (c *crashing) PublishCommit(ctx context.Context, r worktree.PublishRequest) (worktree.Publication, error) {
	c.look("publish " + r.Target.Code)
	return c.Repo.PublishCommit(ctx, r)
}

// TestABranchInWhoseMakingContainersAreKilledIsGivenUp, with the branches of no other checkpoint: for
// example one for whose files the memory does not suffice.
func TestABranchInWhoseMakingContainersAreKilledIsGivenUp(t *testing.T) {
	t.Parallel()
	w := three(t)
	one, large, larger := branchFrom(2, "one"), branchFrom(4, "large"), branchFrom(4, "larger")
	checkout := checkoutOf("c", large)
	killer := func() *crashing {
		return &crashing{fine: true, when: "publish " + checkpointRecord(w, 4).GetCommit()}
	}
	for n := int64(2); n <= 3; n++ {
		c := killer()
		if _, killed := c.run(t.Context(), withBranches(w, n, nil, checkout, one, large, larger), c); !killed {
			t.Fatalf("attempt %d was not killed", n)
		}
		expect(t, fmt.Sprintf("whether the other branch is made in attempt %d", n), agentHas(w, "one"), n == 3)
	}
	c := killer()
	r, _ := c.run(t.Context(), withBranches(w, 4, nil, checkout, one, large, larger), c)
	expect(t, "reason", r.Reason+r.Message, "Prepared")
	expect(t, "the checkout", r.Checkout.Reason, "InvalidState")
	prepareBranches(t, withBranches(w, 5, nil, nil, one, large, larger, branchFrom(1, "last")), present, givenUp, givenUp, made)
}

// TestTheOnlyBranchInWhoseMakingContainersAreKilledIsGivenUp, and each of two.
func TestTheOnlyBranchInWhoseMakingContainersAreKilledIsGivenUp(t *testing.T) {
	t.Parallel()
	w := three(t)
	one, other := branchFrom(4, "one"), branchFrom(2, "other")
	killed := func(n int64, at int64, branches ...daemonapi.Branch) {
		t.Helper()
		c := &crashing{fine: true, when: "publish " + checkpointRecord(w, at).GetCommit()}
		if _, killed := c.run(t.Context(), withBranches(w, n, nil, nil, branches...), c); !killed {
			t.Fatalf("attempt %d was not killed", n)
		}
	}
	killed(2, 4, one)
	killed(3, 4, one)
	prepareBranches(t, withBranches(w, 4, nil, nil, one), givenUp)

	w = three(t)
	killed(2, 4, one, other)
	killed(3, 4, one, other)
	killed(4, 2, one, other)
	prepareBranches(t, withBranches(w, 5, nil, nil, one, other), givenUp, givenUp)
}

// TestAStartThatIsToldToStopIsNoTryOfABranch: it was not the branch that ended it.
func TestAStartThatIsToldToStopIsNoTryOfABranch(t *testing.T) {
	t.Parallel()
	w := three(t)
	b := branchFrom(4, "one")
	for n := int64(2); n <= 4; n++ {
		ctx, stop := context.WithCancel(t.Context())
		c := &crashing{}
		c.each = func() {
			if c.log[len(c.log)-1] == "before commits for the agent" {
				stop()
			}
		}
		r, _ := c.run(ctx, withBranches(w, n, nil, nil, b), c)
		if ctx.Err() == nil || r.Reason == "Prepared" {
			t.Fatalf("attempt %d was not told to stop: it ended with %q", n, r.Reason)
		}
	}
	prepareBranches(t, withBranches(w, 5, nil, nil, b), made)
}
