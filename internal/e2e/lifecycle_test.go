//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a task", func() {
	w := newWorld()

	It("runs to its end, with durable checkpoints on the way", func(ctx SpecContext) {
		runs := w.newTask("runs", replay(12, 500*time.Millisecond)...)
		runs.Spec.CheckpointPolicy.BeforeRiskyTools = []clewv1.RiskyToolPattern{}
		w.create(ctx, runs)

		task := w.untilState(ctx, "runs", 2*time.Minute, clewv1.ReasonCompleted)

		Expect(task).To(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionTrue))
		Expect(task).To(matchers.HaveCondition(clewv1.TaskDurable, metav1.ConditionTrue))
		Expect(task.Status.Attempts).To(HaveLen(1))
		Expect(task.Status.ToolCallCount).To(BeEquivalentTo(12))
		w.expectCallsOnce(ctx, "runs", 12)
		ckpts := w.untilListed(ctx, "runs")
		Expect(len(ckpts)).To(BeNumerically(">=", 3), "checkpoints after 5 calls, after 10 calls, and at the end")
		Expect(ckpts[len(ckpts)-1].Status.Trigger).To(Equal(clewv1.TriggerCompletion))
		w.expectDurableCheckpointsExact(ctx, 12, "runs")
		var reasons []string
		for _, e := range w.timeline(ctx, "runs") {
			reasons = append(reasons, e.Reason)
		}
		Expect(reasons).To(HaveExactElements("TaskStarted", "UserMessage", "AgentMessage", "CheckpointCreated", "FilesChanged",
			"CheckpointCreated", "FilesChanged", "AgentMessage", "CheckpointCreated", "FilesChanged", "TaskCompleted"))
		Expect(w.kubectl(ctx, "logs", task.Status.Attempts[0].PodName, "-c", "agent")).To(ContainSubstring("tool_call"),
			"the agent's output is passed through")
	})

	It("continues where it was after it was suspended", func(ctx SpecContext) {
		w.create(ctx, w.newTask("sleeps", replay(40, 250*time.Millisecond)...))
		w.untilToolCalls(ctx, "sleeps", 5, 2*time.Minute)

		w.patchSpec(ctx, "sleeps", map[string]any{"operatingMode": "Suspended"})
		task := w.untilState(ctx, "sleeps", 2*time.Minute, clewv1.ReasonSuspended)
		Expect(len(answeredCalls(w.conversation(ctx, "sleeps")))).To(BeNumerically("<", 40), "it was suspended before its end")
		Expect(task).To(matchers.HaveCondition(clewv1.TaskDurable, metav1.ConditionTrue))

		w.patchSpec(ctx, "sleeps", map[string]any{"operatingMode": "Running"})
		w.untilState(ctx, "sleeps", 2*time.Minute, clewv1.ReasonCompleted)
		w.expectCallsOnce(ctx, "sleeps", 40)
	})

	It("is resumed with its conversation after it failed", func(ctx SpecContext) {
		task := w.newTask("fails", "sh", "-c", `
		if [ "$CLEW_ATTEMPT" = 1 ]; then echo '{"type":"message","role":"assistant","text":"I remember blue"}'; exit 3; fi
		grep -q "I remember blue" "$CLEW_CONVERSATION" && grep -q "and green" "$CLEW_CONVERSATION"`)
		task.Spec.BackoffLimit = ptr.To[int32](0)
		w.create(ctx, task)
		got := w.untilState(ctx, "fails", 2*time.Minute, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
		Expect(got).To(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionFalse))

		w.patchSpec(ctx, "fails", map[string]any{"resume": map[string]any{"id": "again", "prompt": "and green"}})
		got = w.untilState(ctx, "fails", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Resume.State).To(Equal(clewv1.OperationCompleted))
		Expect(got.Status.Attempts).To(HaveLen(2), "the attempts form a visible chain")
	})

	It("does not change when the same manifest is applied again and again", func(ctx SpecContext) {
		task := w.newTask("steady", replay(12, 20*time.Millisecond)...)
		Expect(w.apply(ctx, task)).To(Succeed())
		w.untilState(ctx, "steady", 2*time.Minute, clewv1.ReasonCompleted)
		first := w.untilListed(ctx, "steady")[0].Name
		task.Spec.Rewind = &clewv1.Rewind{ID: "back", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: first}}}
		Expect(w.apply(ctx, task)).To(Succeed())
		w.untilRewound(ctx, "steady", "back", 2*time.Minute)
		recorded := w.untilRecorded(ctx, "steady")

		for range pick(10, 100) {
			Expect(w.apply(ctx, task)).To(Succeed())
		}
		Expect(w.task(ctx, "steady").ResourceVersion).To(Equal(recorded.ResourceVersion))
		Expect(w.apply(ctx, task, "--server-side", "--force-conflicts")).To(Succeed())
		generation := w.task(ctx, "steady").Generation
		Expect(w.apply(ctx, task, "--server-side", "--force-conflicts")).To(Succeed())
		Expect(w.task(ctx, "steady").Generation).To(Equal(generation))
		Expect(w.diff(ctx, task)).To(BeEmpty(), "kubectl diff is clean")
	})
})

var _ = Describe("a fork", func() {
	w := newWorld()

	It("runs on its own and leaves its source alone", func(ctx SpecContext) {
		w.create(ctx, w.newTask("source", replay(20, 300*time.Millisecond)...))
		w.untilState(ctx, "source", 2*time.Minute, clewv1.ReasonCompleted)
		recorded := w.untilRecorded(ctx, "source")
		ckpts := w.untilListed(ctx, "source")
		from := ckpts[1]

		fork := w.fork(ctx, "source", from.Name, "branched")

		Expect(fork.Status.Source.Commit).To(Equal(from.Status.Commit))
		w.untilState(ctx, "branched", 2*time.Minute, clewv1.ReasonCompleted)
		w.expectCallsOnce(ctx, "branched", 20)
		source := w.task(ctx, "source")
		Expect(source.Generation).To(Equal(recorded.Generation), "its source did not change")
		Expect(source.Status.Attempts).To(Equal(recorded.Status.Attempts))
		Expect(source.Status.StartedTasks).To(HaveExactElements(HaveField("Name", "branched")), "its source knows it")
		Expect(w.task(ctx, "source").Status.ClaimUID).NotTo(Equal(w.task(ctx, "branched").Status.ClaimUID), "each has its own volume")
		w.expectDurableCheckpointsExact(ctx, 20, "source", "branched")
	})

	It("costs the gitstore next to nothing", func(ctx SpecContext) {
		w.create(ctx, w.newTask("source", idle...))
		w.inAgent(ctx, "source", `cd /workspace; head -c 4000000 /dev/urandom > large; echo changed >> README.md; git add large`)
		from := w.take(ctx, "source", "split")
		before := w.gitstoreBytes(ctx)

		w.fork(ctx, "source", "split", "branched")
		own := w.take(ctx, "branched", "own")

		growth := w.gitstoreBytes(ctx) - before
		AddReportEntry("bytes in the gitstore", fmt.Sprintf("%d before the fork, %d more with the fork's first checkpoint", before, growth))
		Expect(own.Status.Tree).To(Equal(from.Status.Tree), "the fork has changed nothing yet")
		Expect(w.inGitstore(ctx, "git -c safe.directory='*' --git-dir "+w.repository()+" for-each-ref --format='%(objectname) %(refname)' refs/clew/"+own.Status.TaskUID)).To(
			Equal(fmt.Sprintf("%s %s\n%s %s\n%s %s\n", own.Status.Commit, refname.Code(own.Status.TaskUID, 1),
				own.Status.Git.Head, refname.Head(own.Status.TaskUID, own.Status.Git.Head), own.Status.StateCommit, refname.State(own.Status.TaskUID, 1))),
			"what was measured is there")
		Expect(growth).To(BeNumerically("<", 64<<10), "a fork copies nothing")
	})
})

// untilRecorded waits until the history of a stopped task is recorded; nothing is written
// after that.
func (w *world) untilRecorded(ctx context.Context, name string) *clewv1.Task {
	GinkgoHelper()
	var task *clewv1.Task
	w.eventually(ctx, func() error {
		task = w.task(ctx, name)
		if task.Status.RecordedSequence != task.Status.HistorySequence {
			return fmt.Errorf("%d of %d entries are recorded", task.Status.RecordedSequence, task.Status.HistorySequence)
		}
		if !meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskHistoryRecorded) {
			return fmt.Errorf("conditions: %v", task.Status.Conditions)
		}
		return nil
	}).WithTimeout(time.Minute).Should(Succeed(), "the history of task %s is recorded", name)
	return task
}

// expectCallsOnce expects calls 1 to n of the replaying agent, each answered once, in order.
func (w *world) expectCallsOnce(ctx context.Context, task string, n int) {
	GinkgoHelper()
	var want []string
	for i := 1; i <= n; i++ {
		want = append(want, callID(i))
	}
	got := answeredCalls(w.conversation(ctx, task))
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
	reportCount(n, "calls checked")
	reportCount(lost, "calls lost")
	reportCount(doubled, "calls duplicated")
	Expect(got).To(Equal(want), "the calls of task %s in the history", task)
}

// callID returns the id that the replaying agent gives a call.
func callID(i int) string { return fmt.Sprintf("call-%d", i) }
