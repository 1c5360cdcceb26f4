//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const startedMark = "I am up and wait."

// idle is an agent that waits to be told what to do by kubectl exec, and that
// says so at each start.
var idle = []string{"sh", "-c", `echo '{"type":"message","role":"assistant","text":"` + startedMark + `"}'; exec sleep infinity`}

// inAgent runs a shell script in the agent's container.
func (w *world) inAgent(task, script string) string {
	w.Helper()
	pod := w.untilAgentRuns(task, 3*time.Minute)
	out, err := w.kubectlIn(w.ctx, []byte(script), "exec", "-i", pod.Name, "-c", "agent", "--", "bash", "-eu", "-o", "pipefail")
	if err != nil {
		w.Fatalf("in the agent of %s: %v\n%s", task, err, out)
	}
	return out
}

// fingerprint prints every entry of the worktree but the root .git, with type,
// permissions, link target and content hash, and what git says of the repository.
const fingerprint = `
export LC_ALL=C
cd /workspace
find . -path ./.git -prune -o -name huge.bin -prune -o -printf '%y %m %l %p\0' | sort -z | tr '\0' '\n'
find . -path ./.git -prune -o -name huge.bin -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
`

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

func TestARewindIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	kills := pick(5, 40)
	w.create(w.newTask("undone", idle...))
	w.inAgent("undone", `cd /workspace; git config user.email a@b.c; git config user.name A; echo staged > staged; git add staged; echo untracked > untracked`)
	w.take("undone", "good")
	goodTree, goodGit := w.inAgent("undone", fingerprint), w.inAgent("undone", gitSays)

	var badTree, badGit string
	var task *clewv1.Task
	for struck, round := 0, 1; struck < kills; round++ {
		w.inAgent("undone", twoThousand)
		badTree, badGit = w.inAgent("undone", fingerprint), w.inAgent("undone", gitSays)
		w.untilStarts("undone", round)
		id := fmt.Sprintf("round-%d", round)

		w.requestRewind("undone", id, "good")
		hit := w.killPrepare("undone", min(kills-struck, 8))
		struck += hit
		t.Logf("%s: the prepare step was killed %d times, %d in all", id, hit, struck)
		task = w.untilRewound("undone", id, 5*time.Minute)

		g.Expect(w.inAgent("undone", fingerprint)).To(gomega.Equal(goodTree), "the tree is byte-exact")
		g.Expect(w.inAgent("undone", gitSays)).To(gomega.Equal(goodGit), "HEAD, branch and status are as they were")
		w.untilStarts("undone", round+1) // once, after the rewind
		g.Expect(w.inAgent("undone", "cd /workspace; git branch --list 'clew/*'")).To(gomega.ContainSubstring(id), "what stood before is kept as a branch")
	}

	w.tellKills(map[string]int{"prepare": kills})

	before := fmt.Sprintf("undone-%d", task.Status.Rewind.FromCheckpoint)
	w.untilDurable(before)
	w.rewind("undone", "undo", before)
	g.Expect(w.inAgent("undone", fingerprint)).To(gomega.Equal(badTree), "a rewind of the rewind brings everything back")
	g.Expect(w.inAgent("undone", gitSays)).To(gomega.Equal(badGit))
}

// starts counts how often the idle agent said that it started, by the timeline,
// which no rewind takes back.
func (w *world) starts(task string) int {
	w.Helper()
	count := 0
	for _, e := range w.timeline(task) {
		if e.Reason == "AgentMessage" && strings.Contains(e.Message, startedMark) {
			count++
		}
	}
	return count
}

// untilStarts waits for that count and fails when it is passed.
func (w *world) untilStarts(task string, want int) {
	w.Helper()
	w.until(fmt.Sprintf("the agent of %s has started %d times", task, want), time.Minute, func() error {
		got := w.starts(task)
		if got > want {
			w.Fatalf("the agent of %s started %d times, not %d", task, got, want)
		}
		if got < want {
			return fmt.Errorf("%d times", got)
		}
		return nil
	})
}

// killPrepare kills the prepare step so many times at random instants, by
// SIGKILL or with its pod, and returns how often it hit.
func (w *world) killPrepare(task string, times int) int {
	w.Helper()
	random := dice(w.T)
	struck := 0
	deadline := time.Now().Add(time.Duration(times) * 20 * time.Second)
	for struck < times && time.Now().Before(deadline) {
		got := w.task(task)
		if r := got.Status.Rewind; r != nil && r.State != clewv1.OperationInProgress && r.ID == got.Spec.Rewind.ID {
			break
		}
		pod := &corev1.Pod{}
		last := got.Status.Attempts[len(got.Status.Attempts)-1]
		if err := w.get(last.PodName, pod); err != nil || pod.DeletionTimestamp != nil || containerID(pod, "prepare") == "" {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
		if err := killContainer(pod, "prepare"); err == nil {
			struck++
		}
	}
	return struck
}

func TestARewindOfASuspendedTaskStartsNoAgent(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("asleep", replay(12, 20*time.Millisecond)...))
	w.untilState("asleep", 2*time.Minute, clewv1.ReasonCompleted)
	first := w.untilListed("asleep")[0]

	task := w.rewind("asleep", "back", first.Name)

	g.Expect(task.Status.Rewind.ToCheckpoint).To(gomega.Equal(first.Status.Number))
	w.until("the conversation went back too", time.Minute, func() error {
		if n := len(answeredCalls(w.conversation("asleep"))); int64(n) != first.Status.Conversation.ToolCalls {
			return fmt.Errorf("%d calls, not %d", n, first.Status.Conversation.ToolCalls)
		}
		return nil
	})
}

func TestWhatCannotBeRewoundIsRefusedWithoutHarm(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("careful", replay(6, 20*time.Millisecond)...))
	w.untilState("careful", 2*time.Minute, clewv1.ReasonCompleted)

	w.requestRewind("careful", "nowhere", "there-is-no-such-checkpoint")

	w.until("the rewind is refused", time.Minute, func() error {
		r := w.task("careful").Status.Rewind
		if r == nil || r.State != clewv1.OperationRefused {
			return fmt.Errorf("status.rewind: %+v", r)
		}
		return nil
	})
	task := w.task("careful")
	g.Expect(task.Status.Rewind.Message).To(gomega.ContainSubstring("there-is-no-such-checkpoint"))
	g.Expect(state(task)).To(gomega.Equal(clewv1.ReasonCompleted))
}
