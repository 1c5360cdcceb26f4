//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/worktree"
)

func TestATaskRunsToItsEnd(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	runs := w.newTask("runs", replay(12, 500*time.Millisecond)...)
	runs.Spec.CheckpointPolicy.BeforeRiskyTools = []clewv1.RiskyToolPattern{}
	w.create(runs)

	task := w.untilState("runs", 2*time.Minute, clewv1.ReasonCompleted)

	g.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskSucceeded)).To(gomega.BeTrue())
	g.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskDurable)).To(gomega.BeTrue())
	g.Expect(task.Status.Attempts).To(gomega.HaveLen(1))
	g.Expect(task.Status.ToolCallCount).To(gomega.BeEquivalentTo(12))
	w.expectCallsOnce("runs", 12)
	ckpts := w.untilListed("runs")
	g.Expect(len(ckpts)).To(gomega.BeNumerically(">=", 3), "after 5, after 10, at the end")
	g.Expect(ckpts[len(ckpts)-1].Status.Trigger).To(gomega.Equal(clewv1.TriggerCompletion))
	w.expectDurableCheckpointsExact(12, "runs")
	var told []string
	for _, e := range w.timeline("runs") {
		told = append(told, e.Reason)
	}
	g.Expect(told).To(gomega.HaveExactElements("TaskStarted", "UserMessage", "AgentMessage", "CheckpointCreated", "CheckpointCreated", "AgentMessage", "CheckpointCreated", "TaskCompleted"))
	g.Expect(w.kubectl("logs", task.Status.Attempts[0].PodName, "-c", "agent")).To(gomega.ContainSubstring("tool_call"),
		"the agent's output is passed through")
}

func TestASuspendedTaskGoesOnWhereItStood(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("sleeps", replay(40, 250*time.Millisecond)...))
	w.untilToolCalls("sleeps", 5, 2*time.Minute)

	w.patchSpec("sleeps", map[string]any{"operatingMode": "Suspended"})
	task := w.untilState("sleeps", 2*time.Minute, clewv1.ReasonSuspended)
	before := len(answeredCalls(w.conversation("sleeps")))
	g.Expect(before).To(gomega.BeNumerically("<", 40))
	g.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskDurable)).To(gomega.BeTrue())

	w.patchSpec("sleeps", map[string]any{"operatingMode": "Running"})
	w.untilState("sleeps", 2*time.Minute, clewv1.ReasonCompleted)
	w.expectCallsOnce("sleeps", 40)
}

func TestAFailedTaskIsResumedWithItsConversation(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	task := w.newTask("fails", "sh", "-c", `
		if [ "$CLEW_ATTEMPT" = 1 ]; then echo '{"type":"message","role":"assistant","text":"I remember blue"}'; exit 3; fi
		grep -q "I remember blue" "$CLEW_CONVERSATION" && grep -q "and green" "$CLEW_CONVERSATION"`)
	zero := int32(0)
	task.Spec.BackoffLimit = &zero
	w.create(task)
	got := w.untilState("fails", 2*time.Minute, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
	g.Expect(meta.IsStatusConditionFalse(got.Status.Conditions, clewv1.TaskSucceeded)).To(gomega.BeTrue())

	w.patchSpec("fails", map[string]any{"resume": map[string]any{"id": "again", "prompt": "and green"}})
	got = w.untilState("fails", 2*time.Minute, clewv1.ReasonCompleted)
	g.Expect(got.Status.Resume.State).To(gomega.Equal(clewv1.OperationCompleted))
	g.Expect(got.Status.Attempts).To(gomega.HaveLen(2), "the attempts form a visible chain")
}

func TestTheSameManifestAppliedAHundredTimesChangesNothing(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	task := w.newTask("steady", replay(12, 20*time.Millisecond)...)
	g.Expect(w.apply(task)).To(gomega.Succeed())
	w.untilState("steady", 2*time.Minute, clewv1.ReasonCompleted)
	first := w.untilListed("steady")[0].Name
	task.Spec.Rewind = &clewv1.Rewind{ID: "back", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: first}}}
	g.Expect(w.apply(task)).To(gomega.Succeed())
	w.untilRewound("steady", "back", 2*time.Minute)
	settled := w.untilSettled("steady")

	for range pick(20, 100) {
		g.Expect(w.apply(task)).To(gomega.Succeed())
	}
	g.Expect(w.task("steady").ResourceVersion).To(gomega.Equal(settled.ResourceVersion))
	g.Expect(w.apply(task, "--server-side", "--force-conflicts")).To(gomega.Succeed())
	generation := w.task("steady").Generation
	g.Expect(w.apply(task, "--server-side", "--force-conflicts")).To(gomega.Succeed())
	g.Expect(w.task("steady").Generation).To(gomega.Equal(generation))
	g.Expect(w.diff(task)).To(gomega.BeEmpty(), "kubectl diff is clean")
}

func TestAForkGoesItsOwnWayAndLeavesItsSourceAlone(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("source", replay(20, 300*time.Millisecond)...))
	w.untilState("source", 2*time.Minute, clewv1.ReasonCompleted)
	settled := w.untilSettled("source")
	ckpts := w.untilListed("source")
	from := ckpts[1]

	fork := w.fork("source", from.Name, "branched")

	g.Expect(fork.Status.Source.Commit).To(gomega.Equal(from.Status.Commit))
	w.untilState("branched", 2*time.Minute, clewv1.ReasonCompleted)
	w.expectCallsOnce("branched", 20)
	g.Expect(w.task("source").ResourceVersion).To(gomega.Equal(settled.ResourceVersion))
	g.Expect(claim(w, "source")).NotTo(gomega.Equal(claim(w, "branched")), "each has its own volume")
	w.expectDurableCheckpointsExact(20, "source", "branched")
}

func TestAForkCostsTheGitstoreNextToNothing(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("source", idle...))
	w.inAgent("source", `cd /workspace; head -c 4000000 /dev/urandom > large; echo changed >> README.md; git add large`)
	from := w.take("source", "split")
	before := w.gitstoreBytes()

	w.fork("source", "split", "branched")
	own := w.take("branched", "own")

	growth := w.gitstoreBytes() - before
	t.Logf("the gitstore took %d bytes before the fork, and %d more with the fork's first checkpoint", before, growth)
	g.Expect(own.Status.Tree).To(gomega.Equal(from.Status.Tree), "the fork changed nothing yet")
	g.Expect(w.inGitstore("git -c safe.directory='*' --git-dir "+w.repository()+" for-each-ref --format='%(objectname) %(refname)' refs/clew/"+own.Status.TaskUID)).To(
		gomega.Equal(fmt.Sprintf("%s %s\n%s %s\n", own.Status.Commit, worktree.CodeRef(own.Status.TaskUID, 1), own.Status.StateCommit, worktree.StateRef(own.Status.TaskUID, 1))),
		"what was measured is there")
	g.Expect(growth).To(gomega.BeNumerically("<", 64<<10), "a fork copies nothing")
}

func claim(w *world, task string) types.UID {
	return types.UID(w.task(task).Status.ClaimUID)
}

// untilSettled waits until a stopped task's history is recorded, after which nothing is written.
func (w *world) untilSettled(name string) *clewv1.Task {
	w.Helper()
	var task *clewv1.Task
	w.until("task "+name+" is settled", time.Minute, func() error {
		task = w.task(name)
		if task.Status.RecordedSequence != task.Status.HistorySequence {
			return fmt.Errorf("recorded %d of %d", task.Status.RecordedSequence, task.Status.HistorySequence)
		}
		if !meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskHistoryRecorded) {
			return fmt.Errorf("conditions: %v", task.Status.Conditions)
		}
		return nil
	})
	return task
}

// expectCallsOnce expects calls 1 to n of the replaying agent, each answered once, in order.
func (w *world) expectCallsOnce(task string, n int) {
	w.Helper()
	var want []string
	for i := 1; i <= n; i++ {
		want = append(want, callID(i))
	}
	got := answeredCalls(w.conversation(task))
	answers := map[string]int{}
	for _, id := range got {
		answers[id]++
	}
	lost, doubled := 0, len(got)-len(answers)
	for _, id := range want {
		if answers[id] == 0 {
			lost++
		}
	}
	w.tell(n, "calls looked for")
	w.tell(lost, "calls lost")
	w.tell(doubled, "calls doubled")
	if !slices.Equal(got, want) {
		w.Fatalf("task %s: the calls in history are\n%v\nand should be\n%v", task, got, want)
	}
}

// callID is how the replaying agent names its calls.
func callID(i int) string { return fmt.Sprintf("call-%d", i) }
