package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// pushes returns what playManager needs to answer a request to push a branch.
func pushes(id string, origin v1alpha1.OriginBranchStatus) func(*v1alpha1.Checkpoint) bool {
	return func(c *v1alpha1.Checkpoint) bool {
		if len(c.Spec.Branches) != 1 || c.Spec.Branches[0].ID != id {
			return false
		}
		origin.Request = id
		c.Status.Branches = []v1alpha1.CheckpointBranchStatus{{Name: c.Spec.Branches[0].Name, State: v1alpha1.BranchMade, Origin: &origin}}
		return true
	}
}

func TestPublishACheckpoint(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	c := b.checkpoint(task, 1)
	b.withHistory(nil)
	taken := b.checkpoint(task, 2)
	taken.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "taken"}}
	b.try(server.Client.Update(b.ctx, taken))
	for text, args := range map[string][]string{
		"name the branch for the checkpoint with":  {"1"},
		"leave --when out":                         {"1", "--branch", "b", "--when", "completed"},
		"has no checkpoint number 7; its newest":   {"7", "--branch", "b"},
		"has no checkpoint number -1; its newest":  {"-1", "--branch", "b"},
		"checkpoint 2 of the task has the branch":  {"1", "--branch", "taken"},
		"a plain git branch name":                  {"1", "--branch", "a..b"},
		"can only be below refs/heads/":            {"1", "--branch", "refs/tags/b"},
		"nothing waits for an approval":            {"1", "--branch", "b", "--approve", "c0ffee1"},
		"--on-diverged must be one of fail, force": {"1", "--branch", "b", "--on-diverged", "force"},
	} {
		_, _, err := b.clew("", append([]string{"publish", "worker", "--checkpoint"}, args...)...)
		wantError(t, err, text)
	}
	out, _ := b.must("publish", "worker", "--checkpoint", "1", "--branch", "clew/fix", "--dry-run")
	wantText(t, "the dry run", "checkpoint.clew.dev/worker-1 publishing of checkpoint 1 as branch clew/fix requested (server dry run)\n", out)

	held := strings.Repeat("a", 40)
	playManager(b, &v1alpha1.CheckpointList{}, pushes("cli-abcdefgh", v1alpha1.OriginBranchStatus{Reason: v1alpha1.ReasonProtectedPaths, Message: "it changes 1 file", HeldCommit: held}))
	_, _, err := b.clew("", "publish", "worker", "--checkpoint", "worker-1", "--branch", "clew/fix")
	wantError(t, err, "the checkpoint was not published: it changes 1 file (ProtectedPaths)")
	_, _, err = b.clew("", "publish", "worker", "--checkpoint", "1", "--branch", "clew/fix", "--approve", "bbbbbbb")
	wantError(t, err, "is not bbbbbbb but "+held+", of checkpoint 1")

	b.get(c)
	c.Status.Branches[0].Origin.Request = "before"
	b.try(server.Client.Status().Update(b.ctx, c))
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool {
		return len(c.Spec.Branches) == 1 && c.Spec.Branches[0].ApprovedCommit != "" &&
			pushes("cli-abcdefgh", v1alpha1.OriginBranchStatus{Reason: v1alpha1.ReasonPublished, Message: "checkpoint 1 is at refs/heads/clew/fix as abc", Ref: "refs/heads/clew/fix", Commit: "abc"})(c)
	})
	out, _ = b.must("publish", "worker", "--checkpoint", "1", "--branch", "clew/fix", "--approve", "aaaaaaa", "--on-diverged", "force-with-lease")
	wantText(t, "output", "checkpoint.clew.dev/worker-1 published: checkpoint 1 is at refs/heads/clew/fix as abc\n", out)
	b.get(c)
	want := []v1alpha1.CheckpointBranch{{Name: "clew/fix", Push: v1alpha1.PushOrigin, OnDiverged: v1alpha1.DivergedForceWithLease, ApprovedCommit: held, Checkout: v1alpha1.CheckoutNever, ID: "cli-abcdefgh", RequestedBy: "admin"}}
	if diff := cmp.Diff(want, c.Spec.Branches); diff != "" {
		t.Errorf("spec.branches (-want +got):\n%s", diff)
	}
	out, _ = b.must("checkpoint", "show", "worker", "1")
	wantParts(t, "checkpoint show", out, "at the repository: checkpoint 1 is at refs/heads/clew/fix as abc")
}

// An older checkpoint is not to replace by mistake what the task has published.
func TestPublishingAnOlderCheckpointAsksFirst(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonCompleted)
	c := b.checkpoint(task, 1)
	b.checkpoint(task, 3)
	task.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"}
	b.try(server.Client.Update(b.ctx, task))
	task.Status.Publish = &v1alpha1.PublishStatus{Ref: "refs/heads/clew/fix", PublishedCheckpoint: 3}
	b.try(server.Client.Status().Update(b.ctx, task))

	_, _, err := b.clew("", "publish", "worker", "--checkpoint", "1", "--wait=false")
	wantError(t, err, "name the branch for the checkpoint with --branch: on that of the task's spec.publish it would replace what the task has published")
	older := []string{"publish", "worker", "--checkpoint", "1", "--branch", "clew/fix", "--wait=false"}
	_, _, err = b.clew("", older...)
	wantError(t, err, `there is no terminal to ask "The task has published checkpoint 3 as refs/heads/clew/fix, and checkpoint 1 would replace it there. Publish it?": add --yes to proceed`)
	_, errOut, err := b.clew("no\n", older...)
	wantError(t, err, "nothing was changed")
	wantParts(t, "the question", errOut, "The task has published checkpoint 3 as refs/heads/clew/fix, and checkpoint 1 would replace it there. Publish it? [y/N]")
	if b.get(c); len(c.Spec.Branches) != 0 {
		t.Errorf("requested %+v", c.Spec.Branches)
	}
	_, errOut = b.must(append(older, "--dry-run")...)
	wantText(t, "standard error of a dry run", "The task has published checkpoint 3 as refs/heads/clew/fix, and checkpoint 1 would replace it there.\n", errOut)
	b.must("publish", "worker", "--checkpoint", "1", "--branch", "clew/other", "--wait=false")
	b.must("publish", "worker", "--checkpoint", "3", "--branch", "clew/fix", "--dry-run")
	b.must(append(older, "--yes")...)
	if b.get(c); !hasBranch(c, "clew/fix") {
		t.Errorf("requested %+v", c.Spec.Branches)
	}
}

// TestPublishingAsksForNoCheckoutAgain: the id is new, and one that is over would be carried out
// again with it.
func TestPublishingAsksForNoCheckoutAgain(t *testing.T) {
	for state, want := range map[v1alpha1.CheckoutState]v1alpha1.BranchCheckout{
		v1alpha1.CheckoutDone: v1alpha1.CheckoutNever, v1alpha1.CheckoutRefused: v1alpha1.CheckoutNever, v1alpha1.CheckoutPending: v1alpha1.CheckoutNextStart,
	} {
		c := &v1alpha1.Checkpoint{}
		c.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "a", ID: "old", Checkout: v1alpha1.CheckoutNextStart}}
		c.Status.Branches = []v1alpha1.CheckpointBranchStatus{{Name: "a", Agent: &v1alpha1.AgentBranchStatus{Checkout: &v1alpha1.CheckoutStatus{State: state}}}}
		o := &publish{plugin: &plugin{newID: func() (string, error) { return "new", nil }}, branch: "a"}
		if err := o.addBranch(c); err != nil || c.Spec.Branches[0].Checkout != want || c.Spec.Branches[0].ID != "new" {
			t.Errorf("of a checkout that is %s: %+v, %v; want %s", state, c.Spec.Branches[0], err, want)
		}
	}
}

// A number is the number of a checkpoint, also if somebody has given another checkpoint's object that name.
func TestPublishOfANumberPublishesThatCheckpoint(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonSuspended)
	b.renamed(b.checkpoint(task, 1), "7")
	wanted := b.checkpoint(task, 7)
	b.must("publish", "worker", "--checkpoint", "7", "--branch", "release", "--wait=false")
	b.get(wanted)
	if !hasBranch(wanted, "release") {
		t.Errorf("publish --checkpoint 7 does not publish checkpoint 7")
	}
}
