//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// startedMark is what the idle agent prints at each start.
const startedMark = "I am up and wait."

// idle is an agent that waits for commands by kubectl exec, and prints startedMark at each
// start.
var idle = []string{"sh", "-c", `echo '{"type":"message","role":"assistant","text":"` + startedMark + `"}'; exec sleep infinity`}

// inAgent runs a shell script in the agent's container.
func (w *world) inAgent(ctx context.Context, task, script string) string {
	GinkgoHelper()
	pod := w.untilAgentRuns(ctx, task, 3*time.Minute)
	out, err := w.kubectlIn(ctx, []byte(script), "exec", "-i", pod.Name, "-c", "agent", "--", "bash", "-eu", "-o", "pipefail")
	Expect(err).NotTo(HaveOccurred(), "in the agent of %s\n%s", task, out)
	return out
}

// fingerprint prints every entry of the worktree but the root .git, with type,
// permissions, link target and content hash.
const fingerprint = `
export LC_ALL=C
cd /workspace
find . -path ./.git -prune -o -name huge.bin -prune -o -printf '%y %m %l %p\0' | sort -z | tr '\0' '\n'
find . -path ./.git -prune -o -name huge.bin -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
`

// gitSays prints git's view of the repository: HEAD, branch and status.
const gitSays = `
export LC_ALL=C
cd /workspace
git rev-parse HEAD; git symbolic-ref -q HEAD || echo detached
git status --porcelain=v2 --branch | sort
`

// twoThousand changes two thousand files in every way.
const twoThousand = `
set +o pipefail # head closes its pipe early
cd /workspace
git config user.email agent@example.com; git config user.name Agent
git checkout -q -b wrong-turn
find . -path ./.git -prune -o -type f -size -100k -print0 | sort -z | head -z -n 1500 | xargs -0 sed -i '1i changed'
find . -path ./.git -prune -o -type f -print0 | sort -z | tail -z -n 300 | xargs -0 rm
mkdir -p fresh; for i in $(seq 200); do echo "$i" > "fresh/$i"; done
git add -A fresh; git commit -q -m "A wrong turn"; echo half >> README.md; git add README.md; echo more >> README.md
`

var _ = Describe("a rewind", func() {
	w := newWorld()

	It("is all or nothing, however often its prepare step is killed", Label("kill", "slow"), SpecTimeout(pick(20*time.Minute, 4*time.Hour)), func(ctx SpecContext) {
		kills := pick(5, 40)
		w.create(ctx, w.newTask("undone", idle...))
		w.inAgent(ctx, "undone", `cd /workspace; git config user.email a@b.c; git config user.name A; echo staged > staged; git add staged; echo untracked > untracked`)
		w.take(ctx, "undone", "good")
		goodTree, goodGit := w.inAgent(ctx, "undone", fingerprint), w.inAgent(ctx, "undone", gitSays)

		var badTree, badGit string
		var task *clewv1.Task
		for struck, round := 0, 1; struck < kills; round++ {
			w.inAgent(ctx, "undone", twoThousand)
			badTree, badGit = w.inAgent(ctx, "undone", fingerprint), w.inAgent(ctx, "undone", gitSays)
			w.untilStarts(ctx, "undone", round)
			id := fmt.Sprintf("round-%d", round)

			w.requestRewind(ctx, "undone", id, "good")
			hit := w.killPrepare(ctx, "undone", min(kills-struck, 8))
			struck += hit
			By(fmt.Sprintf("waiting for rewind %s, whose prepare step was killed %d times (%d in all)", id, hit, struck))
			task = w.untilRewound(ctx, "undone", id, 5*time.Minute)

			Expect(w.inAgent(ctx, "undone", fingerprint)).To(Equal(goodTree), "the tree is byte-exact")
			Expect(w.inAgent(ctx, "undone", gitSays)).To(Equal(goodGit), "HEAD, branch and status are as they were")
			w.untilStarts(ctx, "undone", round+1) // once, after the rewind
			Expect(w.inAgent(ctx, "undone", "cd /workspace; git branch --list 'clew/*'")).To(ContainSubstring(id), "the state before the rewind is kept as a branch")
		}

		reportKills(map[string]int{"prepare": kills})

		before := fmt.Sprintf("undone-%d", task.Status.Rewind.FromCheckpoint)
		w.untilDurable(ctx, before)
		w.rewind(ctx, "undone", "undo", before)
		Expect(w.inAgent(ctx, "undone", fingerprint)).To(Equal(badTree), "a rewind of the rewind brings everything back")
		Expect(w.inAgent(ctx, "undone", gitSays)).To(Equal(badGit))
	})

	It("of a completed task takes its conversation back and starts no agent", func(ctx SpecContext) {
		w.create(ctx, w.newTask("asleep", replay(12, 20*time.Millisecond)...))
		w.untilState(ctx, "asleep", 2*time.Minute, clewv1.ReasonCompleted)
		first := w.untilListed(ctx, "asleep")[0]

		task := w.rewind(ctx, "asleep", "back", first.Name)

		Expect(task.Status.Rewind.ToCheckpoint).To(Equal(first.Status.Number))
		Eventually(ctx, func() []string { return answeredCalls(w.conversation(ctx, "asleep")) }).WithTimeout(time.Minute).WithPolling(between).
			Should(HaveLen(int(first.Status.Conversation.ToolCalls)), "the conversation was rewound too")
		Consistently(ctx, func() string { return state(w.task(ctx, "asleep")) }).WithTimeout(3*time.Second).
			Should(Equal(clewv1.ReasonRewound), "no agent is started")
	})

	It("to a checkpoint that does not exist is refused and leaves the task as it is", func(ctx SpecContext) {
		w.create(ctx, w.newTask("careful", replay(6, 20*time.Millisecond)...))
		w.untilState(ctx, "careful", 2*time.Minute, clewv1.ReasonCompleted)

		w.requestRewind(ctx, "careful", "nowhere", "there-is-no-such-checkpoint")

		w.eventually(ctx, func() *clewv1.OperationStatus { return w.task(ctx, "careful").Status.Rewind }).WithTimeout(time.Minute).
			Should(HaveValue(SatisfyAll(
				HaveField("State", clewv1.OperationRefused),
				HaveField("Message", ContainSubstring("there-is-no-such-checkpoint")))), "the rewind is refused")
		Expect(state(w.task(ctx, "careful"))).To(Equal(clewv1.ReasonCompleted))
	})
})

// starts counts the starts of the idle agent in the timeline, which no rewind changes.
func (w *world) starts(ctx context.Context, task string) int {
	GinkgoHelper()
	count := 0
	for _, e := range w.timeline(ctx, task) {
		if e.Reason == "AgentMessage" && strings.Contains(e.Message, startedMark) {
			count++
		}
	}
	return count
}

// untilStarts waits for a number of starts and fails when it is exceeded.
func (w *world) untilStarts(ctx context.Context, task string, want int) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		got := w.starts(ctx, task)
		if got > want {
			return StopTrying(fmt.Sprintf("it started %d times", got))
		}
		if got < want {
			return fmt.Errorf("it has started %d times", got)
		}
		return nil
	}).WithTimeout(time.Minute).WithPolling(between).Should(Succeed(), "the agent of %s has started %d times", task, want)
}

// killPrepare kills the prepare container of a rewind at random instants, up to a number of
// times, and returns how often it hit.
func (w *world) killPrepare(ctx context.Context, task string, times int) int {
	GinkgoHelper()
	random := dice()
	struck := 0
	deadline := time.Now().Add(time.Duration(times) * 20 * time.Second)
	for struck < times && time.Now().Before(deadline) {
		pod := w.untilPreparesOrRewound(ctx, task, time.Until(deadline))
		if pod == nil {
			break
		}
		pause(ctx, time.Duration(random.IntN(1200))*time.Millisecond)
		if err := killContainer(pod, "prepare"); err == nil {
			struck++
		}
	}
	return struck
}

// untilPreparesOrRewound waits for a pod in which prepare runs. It returns nil when the
// rewind has ended, or when no such pod appears in time, which is no failure, as it would be
// with Eventually.
func (w *world) untilPreparesOrRewound(ctx context.Context, name string, timeout time.Duration) *corev1.Pod {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var next <-chan struct{}
	for ; ctx.Err() == nil; awaitChange(ctx, next) { // prepare runs for an instant
		next = w.changes.upcoming()
		task := &clewv1.Task{}
		if w.get(ctx, name, task) != nil {
			continue
		}
		if !rewinding(task) {
			return nil
		}
		pod := &corev1.Pod{}
		last := task.Status.Attempts[len(task.Status.Attempts)-1]
		if w.get(ctx, last.PodName, pod) != nil || pod.DeletionTimestamp != nil {
			continue
		}
		if containerID(pod, "prepare") != "" {
			return pod
		}
	}
	return nil
}

// rewinding reports whether a task has a rewind that has not ended.
func rewinding(task *clewv1.Task) bool {
	asked := task.Spec.Rewind
	return asked != nil && !ended(task.Status.Rewind, asked.ID)
}

// ended reports whether a status is that of the operation with the id, and the operation
// has ended.
func ended(status *clewv1.OperationStatus, id string) bool {
	if status == nil || status.ID != id {
		return false
	}
	return status.State != clewv1.OperationPending && status.State != clewv1.OperationInProgress
}
