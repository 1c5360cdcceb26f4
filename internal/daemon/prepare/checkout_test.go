package prepare_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

func (c *crashing) StoreForAgent(ctx context.Context, commits []string) error {
	c.tick("before commits for the agent")
	defer c.tick("after commits for the agent")
	return c.Repo.StoreForAgent(ctx, commits)
}

func (c *crashing) MakeAgentBranches(ctx context.Context, b []worktree.AgentBranch) []error {
	c.tick("before branches of the agent")
	defer c.tick("after branches of the agent")
	return c.Repo.MakeAgentBranches(ctx, b)
}

func (c *crashing) CheckOut(ctx context.Context, b worktree.AgentBranch, code string) error {
	c.tick("before checkout")
	defer c.tick("after checkout")
	return c.Repo.CheckOut(ctx, b, code)
}

// checkoutOf returns the request to check out the branch of a checkpoint.
func checkoutOf(id string, b daemonapi.Branch) *daemonapi.Checkout {
	return &daemonapi.Checkout{ID: id, Branch: b}
}

// onBranch expects the agent to be on a branch at a commit, with nothing to commit.
func onBranch(t *testing.T, when string, w *daemontest.World, branch, commit string) {
	t.Helper()
	expect(t, "the branch, "+when, agentGit(t, w, "symbolic-ref", "--short", "HEAD"), branch)
	expect(t, "its commit, "+when, agentGit(t, w, "rev-parse", "HEAD"), commit)
	expect(t, "status, "+when, agentGit(t, w, "status", "--porcelain"), "")
}

// TestABranchIsCheckedOutOnce: with a checkpoint before it, to which a rewind takes it back. The
// same request never does it again, though the agent has moved on; a new one does.
func TestABranchIsCheckedOutOnce(t *testing.T) {
	t.Parallel()
	w := three(t)
	main, head, files := agentGit(t, w, "symbolic-ref", "HEAD"), agentGit(t, w, "rev-parse", "HEAD"), w.Tree()
	b := branchFrom(4, "one")
	r := prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), made)
	commit := r.Branches[0].Commit
	expect(t, "outcome", r.Checkout, &daemonapi.CheckoutResult{ID: "c", FromCheckpoint: 5, ToCheckpoint: 6})
	onBranch(t, "at first", w, "one", commit)
	expect(t, "files", w.Tree(), files)
	expect(t, "the trigger before", checkpointRecord(w, 5).GetTrigger(), "PreCheckout")
	expect(t, "the trigger after", latest(w).GetTrigger(), "CheckedOut")
	expect(t, "the branch recorded", latest(w).GetGitBranch(), "one")
	expect(t, "the commit recorded", latest(w).GetGitHead(), commit)

	agentGit(t, w, "checkout", "--quiet", "--detach")
	agentGit(t, w, "reset", "--quiet", "--soft", head)
	prepareBranches(t, withBranches(w, 3, nil, checkoutOf("c", b), b), present)
	expect(t, "HEAD after the same request", agentGit(t, w, "rev-parse", "HEAD"), head)
	prepareBranches(t, withBranches(w, 4, nil, checkoutOf("d", b), b), present)
	onBranch(t, "after another one", w, "one", commit)

	w.Prepare(5, rewindTo(5, "Code", "Discard"))
	expect(t, "the branch after the rewind", agentGit(t, w, "symbolic-ref", "HEAD"), main)
	expect(t, "HEAD after the rewind", agentGit(t, w, "rev-parse", "HEAD"), head)
	expect(t, "files after the rewind", w.Tree(), files)
}

// TestACheckoutIsRememberedByTheServer: when the volume, and the journal with it, is lost.
func TestACheckoutIsRememberedByTheServer(t *testing.T) {
	t.Parallel()
	w := three(t)
	b := branchFrom(4, "one")
	prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), made)
	attempt(w, 2, func(a *daemontest.Shim) {
		agentGit(t, w, "switch", "--quiet", "--detach")
		step(w, a, "4", "four", "4\n")
	})
	w.LoseVolume()
	r := prepareBranches(t, withBranches(w, 3, nil, checkoutOf("c", b), b), present)
	expect(t, "outcome", r.Checkout, &daemonapi.CheckoutResult{ID: "c"})
	expect(t, "HEAD is", agentGit(t, w, "rev-parse", "--abbrev-ref", "HEAD"), "HEAD")
}

// TestACheckoutChangesNoFile: of a worktree that is not what the checkpoint holds, it is refused,
// once, and a rewind makes it possible.
func TestACheckoutChangesNoFile(t *testing.T) {
	t.Parallel()
	w := three(t)
	main, files := agentGit(t, w, "symbolic-ref", "HEAD"), w.Tree()
	b := branchFrom(1, "one")
	for n := int64(2); n <= 3; n++ {
		r := prepareBranches(t, withBranches(w, n, nil, checkoutOf("c", b), b), []daemonapi.BranchOutcome{"", made, present}[n-1])
		expect(t, "reason", r.Checkout.Reason, "WorktreeDiffers")
		if want := "not what checkpoint 1 holds"; !strings.Contains(r.Checkout.Message, want) || !strings.Contains(r.Checkout.Message, "rewind to it first") {
			t.Errorf("the message is %q", r.Checkout.Message)
		}
		expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), main)
		expect(t, "files", w.Tree(), files)
	}
	expect(t, "the latest checkpoint", latest(w).GetNumber(), 4)
	r := prepareBranches(t, withBranches(w, 4, rewindTo(1, "Code", "Branch"), checkoutOf("d", b), b), made)
	expect(t, "reason after the rewind", r.Checkout.Reason+r.Checkout.Message, "")
	onBranch(t, "after the rewind", w, "one", r.Branches[0].Commit)
}

// TestWhyNothingIsCheckedOut: every reason is a sentence, and nothing has changed.
func TestWhyNothingIsCheckedOut(t *testing.T) {
	t.Parallel()
	three := three(t)
	for name, test := range map[string]struct {
		prepare       func(t *testing.T, w *daemontest.World)
		outcome       daemonapi.BranchOutcome
		reason, words string
	}{
		"a branch of the agent": {func(t *testing.T, w *daemontest.World) { agentGit(t, w, "branch", "one") }, taken, "BranchExists", "left as it is"},
		"a merge": {func(t *testing.T, w *daemontest.World) {
			w.Write(".git/MERGE_HEAD", agentGit(t, w, "rev-parse", "HEAD")+"\n")
		}, made, "UnfinishedWork", "in the middle of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := three.Copy(t)
			b := branchFrom(4, "one")
			test.prepare(t, w)
			head := agentGit(t, w, "symbolic-ref", "HEAD")
			r := prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), test.outcome)
			expect(t, "reason", r.Checkout.Reason, test.reason)
			if !strings.Contains(r.Checkout.Message, test.words) {
				t.Errorf("the message is %q", r.Checkout.Message)
			}
			expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), head)
		})
	}
}

// TestAKilledCheckoutIsFinished: wherever prepare is killed, the next one comes to the same state,
// whether or not it is asked for the checkout again.
func TestAKilledCheckoutIsFinished(t *testing.T) {
	t.Parallel()
	source := three(t)
	b := branchFrom(4, "one")
	for at := 1; ; at += stride(3) {
		w := source.Copy(t)
		cfg := withBranches(w, 2, nil, checkoutOf("c", b), b)
		c := &crashing{at: at, fine: true}
		_, killed := c.run(t.Context(), cfg, c)
		where := fmt.Sprintf("killed %s (%d)", c.log[len(c.log)-1], at)
		again := withBranches(w, 3, nil, checkoutOf("c", b), b)
		begun := state(t, w).Checkout != nil
		if begun {
			again.Pod.Branches, again.Pod.Checkout = nil, nil
		}
		var outcomes []daemonapi.BranchOutcome
		switch {
		case begun:
		case !killed, agentHas(w, "one"):
			outcomes = append(outcomes, present)
		default:
			outcomes = append(outcomes, made)
		}
		prepareBranches(t, again, outcomes...)
		onBranch(t, where, w, "one", agentGit(t, w, "rev-parse", "one"))
		expect(t, "checkpoints, "+where, []int64{latest(w).GetNumber()}, []int64{6})
		expect(t, "the trigger, "+where, latest(w).GetTrigger(), "CheckedOut")
		if s := state(t, w); s.Checkout != nil || s.Clean == nil || s.Clean.Number != 6 {
			t.Errorf("%s: the journal has the checkout %v and the clean checkpoint %v", where, s.Checkout, s.Clean)
		}
		r := prepareBranches(t, withBranches(w, 4, nil, checkoutOf("c", b), b), present)
		expect(t, "the outcome, "+where, r.Checkout, &daemonapi.CheckoutResult{ID: "c", FromCheckpoint: 5, ToCheckpoint: 6})
		if !killed {
			break
		}
	}
}

// TestACheckoutThatNeverEndsIsGivenUp: for example one for which the memory does not suffice.
func TestACheckoutThatNeverEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	w := three(t)
	main, files := agentGit(t, w, "symbolic-ref", "HEAD"), w.Tree()
	b := branchFrom(4, "one")
	for n := int64(2); n <= 3; n++ {
		c := &crashing{when: "before checkout"}
		if _, killed := c.run(t.Context(), withBranches(w, n, nil, checkoutOf("c", b), b), c); !killed {
			t.Fatalf("attempt %d was not killed", n)
		}
	}
	r := prepareBranches(t, withBranches(w, 4, nil, checkoutOf("c", b), b), present)
	if !strings.Contains(r.Checkout.Message, "did not come to its end in 2 starts") {
		t.Errorf("the message is %q", r.Checkout.Message)
	}
	expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), main)
	expect(t, "files", w.Tree(), files)
	expect(t, "the journal's checkout", state(t, w).Checkout, nil)
}

// agentHas reports whether the agent's repository has a branch.
func agentHas(w *daemontest.World, branch string) bool {
	_, err := os.Stat(w.Path(".git/refs/heads/" + branch))
	return err == nil
}

// TestACheckoutIsReportedOnceItOutlivesTheVolume: the volume may be lost right after the report.
func TestACheckoutIsReportedOnceItOutlivesTheVolume(t *testing.T) {
	t.Parallel()
	w := three(t)
	b := branchFrom(4, "one")
	r := prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), made)
	expect(t, "outcome", r.Checkout, &daemonapi.CheckoutResult{ID: "c", FromCheckpoint: 5, ToCheckpoint: 6})
	w.LoseVolume()
	prepareBranches(t, withBranches(w, 3, nil, checkoutOf("c", b), b), present)
	onBranch(t, "after the loss", w, "one", r.Branches[0].Commit)

	// The agent itself checks a branch out.
	agentGit(t, w, "checkout", "--quiet", "--detach")
	agentGit(t, w, "checkout", "--quiet", "one")
	r = prepareBranches(t, withBranches(w, 4, nil, checkoutOf("d", b), b), present)
	expect(t, "outcome of one that is there", r.Checkout, &daemonapi.CheckoutResult{ID: "d"})
	w.LoseVolume()
	prepareBranches(t, withBranches(w, 5, nil, checkoutOf("d", b), b), present)
	onBranch(t, "after the second loss", w, "one", r.Branches[0].Commit)
}

// TestNobodyWaitsForTheReportOfACheckout: the gitstore goes down when HEAD is moved. The agent runs,
// and a later pod reports what was carried out, once.
func TestNobodyWaitsForTheReportOfACheckout(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.RetryFor /= 10
	b := branchFrom(4, "one")
	c := &crashing{}
	c.each = func() {
		if c.log[len(c.log)-1] == "after checkout" {
			w.Git.SetDown(true)
		}
	}
	cfg := withBranches(w, 2, nil, checkoutOf("c", b), b)
	r, _ := c.run(t.Context(), cfg, c)
	expect(t, "reason", r.Reason+r.Message, "Prepared")
	expect(t, "the report", r.Checkout, nil)
	onBranch(t, "without a report", w, "one", r.Branches[0].Commit)
	r = prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), present)
	expect(t, "the report in another pod", r.Checkout, nil)

	lost := w.Copy(t)
	lost.LoseVolume()
	w.Git.SetDown(false)
	attempt(w, 2, func(a *daemontest.Shim) {
		agentGit(t, w, "checkout", "--quiet", "--detach")
		step(w, a, "4", "four", "4\n")
	})
	r = prepareBranches(t, withBranches(w, 3, nil, checkoutOf("c", b), b), present)
	expect(t, "the report at last", r.Checkout, &daemonapi.CheckoutResult{ID: "c", FromCheckpoint: 5, ToCheckpoint: 6})
	expect(t, "HEAD is", agentGit(t, w, "rev-parse", "--abbrev-ref", "HEAD"), "HEAD")

	r = prepareBranches(t, withBranches(lost, 3, nil, checkoutOf("c", b), b), present)
	expect(t, "the reason on a new volume", r.Checkout.Reason, "")
	onBranch(t, "on a new volume", lost, "one", r.Branches[0].Commit)
}

// TestACheckoutThatTheGitstoreRefusesIsTakenBack: it would not outlive the volume.
func TestACheckoutThatTheGitstoreRefusesIsTakenBack(t *testing.T) {
	t.Parallel()
	w := three(t)
	head, files := agentGit(t, w, "symbolic-ref", "HEAD"), w.Tree()
	b := branchFrom(4, "one")
	hook(t, w, "/code/6$", "PushTooLarge: too large")
	r := prepareBranches(t, withBranches(w, 2, nil, checkoutOf("c", b), b), made)
	expect(t, "reason", r.Checkout.Reason, "GitStoreRefused")
	expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), head)
	expect(t, "files", w.Tree(), files)
	r = prepareBranches(t, withBranches(w, 3, nil, checkoutOf("c", b), b), present)
	expect(t, "reason once more", r.Checkout.Reason, "GitStoreRefused")
	expect(t, "HEAD that was moved", r.MovedHead, nil)
}

// TestACheckoutOfAWorktreeThatIsGoneBeginsAnew: it was carried out, and not reported.
func TestACheckoutOfAWorktreeThatIsGoneBeginsAnew(t *testing.T) {
	t.Parallel()
	w, c, _ := interruptedCheckout(t, "after checkout")
	cr := &crashing{}
	cr.each = func() {
		if s := state(t, w); s.Checkout != nil && s.Checkout.Stage == journal.CheckoutMarked {
			panic(crash{})
		}
	}
	if _, killed := cr.run(t.Context(), withBranches(w, 3, nil, c, c.Branch), cr); !killed {
		t.Fatal("it was not killed again")
	}
	if err := os.RemoveAll(w.Path("")); err != nil {
		t.Fatal(err)
	}
	r := prepareBranches(t, withBranches(w, 4, nil, c, c.Branch), present)
	onBranch(t, "in the new worktree", w, "one", r.Branches[0].Commit)
	w.LoseVolume()
	prepareBranches(t, withBranches(w, 5, nil, c, c.Branch), present)
	onBranch(t, "on a new volume", w, "one", r.Branches[0].Commit)
}
