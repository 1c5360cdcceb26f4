//go:build e2e

package e2e

import (
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// spends is an agent that completes two calls of tools in each run, and tells what each has cost. Its first
// three runs fail, unless it is told to be good.
const spends = `
for n in 1 2; do
  echo '{"type":"tool_call","id":"'$CLEW_ATTEMPT-$n'","name":"work","input":{}}'
  echo $n >>work.txt
  echo '{"type":"tool_result","id":"'$CLEW_ATTEMPT-$n'","output":"done"}'
  echo '{"type":"usage","inputTokens":100,"outputTokens":10,"costMicroUSD":1000}'
done
[ -n "$GOOD" ] || [ $CLEW_ATTEMPT -ge 4 ]`

// callsOn is an agent that completes calls of tools, one after the other, each of which leaves a file, until
// there are ten.
const callsOn = `
n=$(ls | grep -c '^call-')
while [ $n -lt 10 ]; do
  n=$((n+1))
  echo '{"type":"tool_call","id":"'$n'","name":"work","input":{}}'
  touch call-$n
  echo '{"type":"tool_result","id":"'$n'","output":"done"}'
  sleep 1
done`

// runs is what so many runs of the agent that spends add up to.
func runs(n int64) clewv1.Spent {
	return clewv1.Spent{InputTokens: 200 * n, OutputTokens: 20 * n, CostMicroUSD: 2000 * n, ToolCalls: 2 * n}
}

// spentBy returns what a task has spent, without its checkpoints, which must be as many as it has.
func spentBy(task *clewv1.Task) clewv1.Spent {
	GinkgoHelper()
	spent := ptr.Deref(task.Status.Spent, clewv1.Spent{})
	Expect(spent.Checkpoints).To(Equal(task.Status.CheckpointCount))
	spent.Checkpoints = 0
	return spent
}

var _ = Describe("a budget", func() {
	w := newWorld()

	It("is spent exactly once over 3 retries, 2 rewinds and 4 forks", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		task := w.newTask("payer", "sh", "-c", spends)
		task.Spec.BackoffLimit = ptr.To[int32](3)
		task.Spec.Budget = &clewv1.Budget{InputTokens: ptr.To[int64](1_000_000)}
		w.create(ctx, task)
		got := w.untilState(ctx, "payer", 4*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Attempts).To(HaveLen(4))
		Expect(spentBy(got)).To(Equal(runs(4)))

		for n, id := range []string{"once", "twice"} {
			By("rewinding it " + id)
			w.plugin(ctx, "rewind", "payer", "--to", "1", "--yes")
			rewound := w.untilState(ctx, "payer", 2*time.Minute, clewv1.ReasonRewound)
			Expect(spentBy(rewound)).To(Equal(runs(int64(4+n))), "a rewind gives nothing back")
			Expect(rewound.Status.InputTokens).To(BeNumerically("<", spentBy(rewound).InputTokens))
			w.plugin(ctx, "resume", "payer", "--prompt", "Again.", "--wait=false")
			Expect(spentBy(w.untilState(ctx, "payer", 2*time.Minute, clewv1.ReasonCompleted))).To(Equal(runs(int64(5 + n))))
		}

		By("forking it four times")
		variants := []string{"one", "two", "three", "four"}
		args := []string{"fork", "payer", "--name", "try"}
		for _, name := range variants {
			args = append(args, "--variant", "name="+name+",env=GOOD=yes")
		}
		w.plugin(ctx, args...)
		for _, name := range variants {
			fork := w.untilState(ctx, name, 3*time.Minute, clewv1.ReasonCompleted)
			Expect(spentBy(fork)).To(Equal(runs(1)), "its source has paid for the conversation that it begins with")
			Expect(fork.Status.InputTokens).To(BeNumerically(">", spentBy(fork).InputTokens))
			Expect(fork.Spec.Budget).To(Equal(task.Spec.Budget))
		}
		Expect(spentBy(w.task(ctx, "payer"))).To(Equal(runs(6)))
	})

	It("ends the agent within one call of its limit, and a raised one lets it go on", SpecTimeout(6*time.Minute), func(ctx SpecContext) {
		task := w.newTask("capped", "sh", "-c", callsOn)
		task.Spec.BackoffLimit = new(int32)
		task.Spec.Budget = &clewv1.Budget{ToolCalls: ptr.To[int64](5)}
		w.create(ctx, task)
		got := w.untilState(ctx, "capped", 2*time.Minute, clewv1.ReasonBudgetExceeded)
		Expect(got).To(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionUnknown))
		Expect(conditionMessage(got)).To(And(ContainSubstring("of the 5 tool calls"), ContainSubstring("raise budget.toolCalls")))
		Expect(got.Status.Attempts[0].Outcome).To(Equal(clewv1.AttemptLimitReached))
		Expect(got.Status.Spent.ToolCalls).To(BeNumerically("~", 5.5, 0.5), "5 or 6 calls")
		Expect(w.plugin(ctx, "diff", "capped", "--name-only")).NotTo(ContainSubstring("call-7"))
		Expect(w.eventReasons(ctx)).To(ContainElements(clewv1.EventBudgetNearlySpent, clewv1.EventBudgetExceeded))
		Expect(got.Status.Failures).To(BeZero())

		refused := exec.CommandContext(ctx, "kubectl", "clew", "--namespace", w.namespace, "resume", "capped", "--wait=false")
		out, err := refused.CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("raise it with --budget toolCalls=NUMBER"))
		w.plugin(ctx, "resume", "capped", "--budget", "toolCalls=50", "--wait=false")
		got = w.untilState(ctx, "capped", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Spent.ToolCalls).To(BeEquivalentTo(10))
	})

	It("of a contract stops its tasks, and those that have yet to start begin once it is raised", SpecTimeout(6*time.Minute), func(ctx SpecContext) {
		worker := func(name string) *clewv1.Task {
			task := w.newTask(name, "sh", "-c", callsOn)
			task.Spec.BackoffLimit, task.Spec.Contract = new(int32), &clewv1.Contract{Name: "shared"}
			return task
		}
		lead := w.newTask("lead", "sleep", "infinity")
		lead.Spec.Role = clewv1.RoleSupervisor
		lead.Spec.Contract = &clewv1.Contract{Name: "shared", Budget: &clewv1.Budget{ToolCalls: ptr.To[int64](6)}}
		w.create(ctx, lead)
		w.untilAgentRuns(ctx, "lead", 2*time.Minute)
		w.create(ctx, worker("left"))
		w.create(ctx, worker("right"))
		left := w.untilState(ctx, "left", 3*time.Minute, clewv1.ReasonBudgetExceeded)
		right := w.untilState(ctx, "right", time.Minute, clewv1.ReasonBudgetExceeded)
		Expect(left.Status.Spent.ToolCalls+right.Status.Spent.ToolCalls).To(BeNumerically("~", 8, 2), "each goes beyond it by one exchange at most")
		w.create(ctx, worker("late"))
		w.untilState(ctx, "late", time.Minute, clewv1.ReasonBudgetExceeded)
		Expect(w.task(ctx, "late").Status.Attempts).To(BeEmpty())

		w.patchSpec(ctx, "lead", map[string]any{"contract": map[string]any{"budget": map[string]any{"toolCalls": 600}}})
		w.untilState(ctx, "late", 2*time.Minute, clewv1.ReasonCompleted)
		w.plugin(ctx, "resume", "left", "--wait=false")
		w.untilState(ctx, "left", 2*time.Minute, clewv1.ReasonCompleted)
	})
})
