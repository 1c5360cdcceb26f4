package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// branched returns what playManager needs to answer a request for a branch.
func branched(state v1alpha1.CheckpointBranchState) func(*v1alpha1.Checkpoint) bool {
	return func(c *v1alpha1.Checkpoint) bool {
		before := len(c.Status.Branches)
		c.Status.Branches = nil
		for _, b := range c.Spec.Branches {
			s := v1alpha1.CheckpointBranchStatus{Name: b.Name, State: state}
			if state == v1alpha1.BranchMade {
				s.Ref, s.Commit = "refs/heads/clew/worker/"+b.Name, strings.Repeat("a", 40)
			} else {
				s.Message, s.ObservedGeneration = "it is taken", c.Generation
			}
			c.Status.Branches = append(c.Status.Branches, s)
		}
		return len(c.Status.Branches) != before
	}
}

func TestCheckpointBranch(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonCompleted)
	b.checkpoint(task, 1)
	b.checkpoint(task, 2)
	b.withHistory(nil)
	for text, args := range map[string][]string{
		"name the branch with --name":            {"worker"},
		"missing argument TASK":                  {},
		"is not a valid branch name":             {"worker", "--name", "a..b"},
		"has no checkpoint number 7; its newe":   {"worker", "7", "--name", "b"},
		"checkpoint 7 of task worker has no obj": {"worker", "7", "--name", "b", "--remove"},
		`no checkpoint "x"`:                      {"worker", "x", "--name", "b"},
		"no checkpoint of task worker has a bra": {"worker", "--name", "b", "--remove"},
	} {
		_, _, err := b.clew("", append([]string{"checkpoint", "branch"}, args...)...)
		wantError(t, err, text)
	}
	out, _ := b.must("checkpoint", "branch", "worker", "--name", "b", "--dry-run")
	wantText(t, "the dry run", "checkpoint.clew.dev/worker-2 branch b of checkpoint 2 requested (server dry run)\n", out)

	playManager(b, &v1alpha1.CheckpointList{}, branched(v1alpha1.BranchMade))
	out, _ = b.must("checkpoint", "branch", "worker", "1", "--name", "try/b")
	wantText(t, "output", "checkpoint.clew.dev/worker-1 branch try/b of checkpoint 1 made: refs/heads/clew/worker/try/b at "+strings.Repeat("a", 40)+"\n", out)
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "worker-1"}}
	b.get(c)
	if diff := cmp.Diff([]v1alpha1.CheckpointBranch{{Name: "try/b", Push: v1alpha1.PushNever, OnDiverged: v1alpha1.DivergedFail, Checkout: v1alpha1.CheckoutNever, RequestedBy: "admin"}}, c.Spec.Branches); diff != "" {
		t.Errorf("the branches (-want +got):\n%s", diff)
	}
	out, _ = b.must("checkpoint", "show", "worker", "1")
	wantParts(t, "checkpoint show", out, "refs/heads/clew/worker/try/b at aaa")
	out, _ = b.must("checkpoint", "branch", "worker", "1", "--name", "try/b")
	wantParts(t, "output of a repetition", out, "try/b of checkpoint 1 made")

	playManager(b, &v1alpha1.CheckpointList{}, branched(v1alpha1.BranchMade))
	out, _ = b.must("checkpoint", "branch", "worker", "--name", "try/b", "--remove")
	wantText(t, "output of the removal", "checkpoint.clew.dev/worker-1 branch try/b of checkpoint 1 removed\n", out)

	playManager(b, &v1alpha1.CheckpointList{}, branched(v1alpha1.BranchRefused))
	_, _, err := b.clew("", "checkpoint", "branch", "worker", "--name", "taken")
	wantError(t, err, "the branch was not made: it is taken")
	out, _ = b.must("checkpoint", "show", "worker", "2")
	wantParts(t, "checkpoint show", out, "taken (Refused): it is taken")
}

// TestACheckpointBranchNeedsANameThatNoOtherCheckpointHas: the gitstore would refuse it.
func TestACheckpointBranchNeedsANameThatNoOtherCheckpointHas(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonCompleted)
	older, newer := b.checkpoint(task, 1), b.checkpoint(task, 2)
	for c, state := range map[*v1alpha1.Checkpoint]v1alpha1.CheckpointBranchState{older: v1alpha1.BranchMade, newer: v1alpha1.BranchRefused} {
		c.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "six"}}
		b.try(server.Client.Update(b.ctx, c))
		branched(state)(c)
		b.try(server.Client.Status().Update(b.ctx, c))
	}
	b.checkpoint(task, 3)
	for _, flag := range []string{"--wait=false", "--dry-run"} {
		_, _, err := b.clew("", "checkpoint", "branch", "worker", "--name", "six", flag)
		wantError(t, err, "checkpoint 1 of the task has the branch six: choose another name, or remove it there first with `kubectl clew checkpoint branch worker 1 --name six --remove -n "+b.namespace+"`")
	}
	if got := checkoutOf(b, "worker-3"); len(got) > 0 {
		t.Errorf("the Checkpoint asks for %q", got)
	}
	out, _ := b.must("checkpoint", "branch", "worker", "--name", "six", "--remove", "--wait=false")
	wantText(t, "the removal of that which is there", "checkpoint.clew.dev/worker-1 branch six of checkpoint 1 removed\n", out)
	out, _ = b.must("checkpoint", "branch", "worker", "--name", "six", "--remove", "--wait=false")
	wantText(t, "the removal of what was refused", "checkpoint.clew.dev/worker-2 request for branch six of checkpoint 2 removed: it had not been made\n", out)
}

// checkoutOf returns what a Checkpoint asks for of its branches.
func checkoutOf(b *bench, name string) (list []string) {
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
	b.get(c)
	for _, branch := range c.Spec.Branches {
		list = append(list, branch.Name+" "+string(branch.Checkout)+" "+branch.ID)
	}
	return list
}

func TestCheckpointBranchCheckout(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonCompleted)
	b.checkpoint(task, 1)
	b.checkpoint(task, 2)
	b.must("checkpoint", "branch", "worker", "1", "--name", "a", "--checkout", "--wait=false")
	first := checkoutOf(b, "worker-1")
	if len(first) != 1 || !strings.HasPrefix(first[0], "a NextStart ") || first[0] == "a NextStart " {
		t.Errorf("the Checkpoint asks for %q", first)
	}
	_, _, err := b.clew("", "checkpoint", "branch", "worker", "2", "--name", "b", "--checkout", "--wait=false")
	wantError(t, err, "`kubectl clew checkpoint branch worker 1 --name a --checkout=false -n "+b.namespace+"`")

	b.must("checkpoint", "branch", "worker", "1", "--name", "b", "--checkout", "--wait=false")
	if got := checkoutOf(b, "worker-1"); len(got) != 2 || !strings.HasPrefix(got[0], "a Never ") || !strings.HasPrefix(got[1], "b NextStart ") {
		t.Errorf("with another one, the Checkpoint asks for %q", got)
	}
	b.must("checkpoint", "branch", "worker", "1", "--name", "a", "--wait=false")
	if got := checkoutOf(b, "worker-1"); !strings.HasPrefix(got[1], "b NextStart ") {
		t.Errorf("without the flag, the Checkpoint asks for %q", got)
	}
	b.must("checkpoint", "branch", "worker", "1", "--name", "b", "--checkout=false", "--wait=false")
	if got := checkoutOf(b, "worker-1"); !strings.HasPrefix(got[1], "b Never ") {
		t.Errorf("after it was taken back, the Checkpoint asks for %q", got)
	}
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool { return hasBranch(c, "c") && branched(v1alpha1.BranchMade)(c) })
	out, _ := b.must("checkpoint", "branch", "worker", "1", "--name", "c", "--checkout")
	wantParts(t, "output", out, "; it is checked out when the agent next starts, if the worktree then is what the checkpoint holds")
}

func TestCheckpointShowSaysWhatTheAgentHas(t *testing.T) {
	made := v1alpha1.CheckpointBranchStatus{State: v1alpha1.BranchMade, Ref: "refs/heads/clew/worker/a", Commit: "c0ffee"}
	for want, agent := range map[string]*v1alpha1.AgentBranchStatus{
		"refs/heads/clew/worker/a at c0ffee":                                 nil,
		"refs/heads/clew/worker/a at c0ffee; it has none (NameTaken)":        {State: v1alpha1.AgentBranchNameTaken, Message: "it has none"},
		"refs/heads/clew/worker/a at c0ffee; it is (CheckedOut)":             {State: v1alpha1.AgentBranchMade, Message: "it has", Checkout: &v1alpha1.CheckoutStatus{State: v1alpha1.CheckoutDone, Message: "it is"}},
		"refs/heads/clew/worker/a at c0ffee; soon (Pending); then (Pending)": {State: v1alpha1.AgentBranchPending, Message: "soon", Checkout: &v1alpha1.CheckoutStatus{State: v1alpha1.CheckoutPending, Message: "then"}},
	} {
		b := made
		b.Agent = agent
		wantText(t, "the branch", want, describeBranch(b))
	}
}

// The latest checkpoint is that of the task, also if its object was deleted.
func TestABranchOfTheLatestCheckpoint(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonCompleted)
	_, _, err := b.clew("", "checkpoint", "branch", "worker", "--name", "b")
	wantError(t, err, "task worker has no checkpoint yet: take one")
	b.checkpoint(task, 4)
	b.get(task)
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "worker-5", Number: 5}
	b.try(server.Client.Status().Update(b.ctx, task))
	b.withHistory(map[string]any{"GET tasks/worker/checkpoints/5": recordedCheckpoint(task, 5)})
	out, _ := b.must("checkpoint", "branch", "worker", "--name", "b", "--dry-run")
	wantText(t, "output", "checkpoint.clew.dev/worker-5 branch b of checkpoint 5 requested (server dry run)\n", out)
}
