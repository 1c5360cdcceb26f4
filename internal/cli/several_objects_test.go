package cli

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// rewind, fork, publish and the rest refuse such a name: its number is another checkpoint of the task that
// has the name now.
func TestADiffDoesNotTakeAnEarlierTasksObjectForACheckpointOfThisOne(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	task := b.task("fix-login", v1alpha1.ReasonRunning)
	former := task.DeepCopy()
	former.UID = "former"
	kept := b.checkpoint(former, 3)
	_, _, err := b.clew("", "diff", "fix-login", kept.Name)
	if err == nil {
		t.Errorf("the query is %s", r.query())
	}
}

// `checkpoint create` on a stopped task makes a second object for the latest checkpoint.
func TestABranchOfACheckpointThatHasItAsAnotherObjectIsNotRefused(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 3)
	second := takenCheckpoint(3, "keepme")
	second.Namespace, second.Spec.TaskRef.Name, second.Status.TaskUID = b.namespace, task.Name, string(task.UID)
	second.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "x"}}
	status := second.Status
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = task.CreationTimestamp
	}
	status.Branches = []v1alpha1.CheckpointBranchStatus{{Name: "x", State: v1alpha1.BranchMade, Ref: "refs/heads/clew/worker/x", Commit: strings.Repeat("a", 40)}}
	b.try(server.Client.Create(b.ctx, &second))
	second.Status = status
	b.try(server.Client.Status().Update(b.ctx, &second))
	if _, _, err := b.clew("", "checkpoint", "branch", "worker", "3", "--name", "x", "--wait=false"); err != nil {
		t.Errorf("checkpoint 3 has the branch already: %v", err)
	}
	out, _, err := b.clew("", "checkpoint", "branch", "worker", "3", "--name", "x", "--remove", "--wait=false")
	if b.get(&second); err == nil && len(second.Spec.Branches) > 0 {
		t.Errorf("%q, but it is still there: %+v", out, second.Spec.Branches)
	}
}

// A repeat of `checkpoint branch` and a removal of a branch that another checkpoint has.
func TestTheRemovalOfABranchThatANamedCheckpointDoesNotHave(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 3)
	if out, _, err := b.clew("", "checkpoint", "branch", "worker", "3", "--name", "none", "--remove", "--wait=false"); err == nil {
		t.Errorf("%q, and there was none", out)
	}
}
