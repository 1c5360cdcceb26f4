//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// counts is an agent that counts in a file, which every checkpoint has. It notes outside of its worktree with
// which count it began, and each time that it stood still for more than half a second: from when, until when,
// and at which count.
const counts = `
	n=$(cat counter.txt 2>/dev/null || echo 0)
	echo "$n" >/tmp/begun
	: >/tmp/stood-still
	last=$(date +%s%3N)
	while :; do
		now=$(date +%s%3N)
		if [ $((now - last)) -gt 500 ]; then echo "$last $now $n" >>/tmp/stood-still; fi
		last=$now
		n=$((n + 1))
		echo "$n" >counter.new
		mv counter.new counter.txt
		sleep 0.05
	done`

// standstill is a time in which an agent stood still, in milliseconds of the node's clock, at a count.
type standstill struct{ from, until, count int64 }

// noted reads a file that the agent of a task has written outside of its worktree.
func (w *world) noted(ctx context.Context, task, file string) string {
	GinkgoHelper()
	pod := w.untilAgentRuns(ctx, task, 2*time.Minute)
	out, err := w.kubectlIn(ctx, nil, "--namespace", w.namespace, "exec", pod.Name, "-c", clewv1.AgentContainer, "--", "cat", file)
	Expect(err).NotTo(HaveOccurred(), out)
	return strings.TrimSpace(out)
}

// lastStandstill returns the last time in which the agent of a task stood still; the zero value for none.
func (w *world) lastStandstill(ctx context.Context, task string) (s standstill) {
	GinkgoHelper()
	noted := w.noted(ctx, task, "/tmp/stood-still")
	if noted == "" {
		return s
	}
	lines := strings.Split(noted, "\n")
	_, err := fmt.Sscan(lines[len(lines)-1], &s.from, &s.until, &s.count)
	Expect(err).NotTo(HaveOccurred(), "when %s stood still: %v", task, lines)
	return s
}

// counting applies a supervisor and three children that count.
func (w *world) counting(ctx context.Context) (all []string) {
	GinkgoHelper()
	lead := w.newTask("lead", "sh", "-euc", counts)
	lead.Spec.Role, lead.Spec.Contract = clewv1.RoleSupervisor, &clewv1.Contract{Name: "count"}
	w.create(ctx, lead)
	all = append(all, "lead")
	w.untilAgentRuns(ctx, "lead", 2*time.Minute)
	for _, name := range []string{"one", "two", "three"} {
		child := w.newTask(name, "sh", "-euc", counts)
		child.Spec.ParentRef = &clewv1.NameReference{Name: "lead"}
		w.create(ctx, child)
		all = append(all, name)
	}
	for _, name := range all {
		w.untilAgentRuns(ctx, name, 2*time.Minute)
	}
	return all
}

// requestSet applies a Checkpoint with the scope Contract, and does not wait.
func (w *world) requestSet(ctx context.Context, supervisor, name string) {
	GinkgoHelper()
	c := w.newCheckpoint(supervisor, name)
	c.Spec.Scope = clewv1.CheckpointOfContract
	Expect(w.applyAs(ctx, "gitops", c)).To(Succeed(), "apply the set %s", name)
}

// untilSetEnds waits until a set has ended, in one way or the other.
func (w *world) untilSetEnds(ctx context.Context, name string) *clewv1.Checkpoint {
	GinkgoHelper()
	c := &clewv1.Checkpoint{}
	w.eventually(ctx, func() (*clewv1.Checkpoint, error) { return c, w.get(ctx, name, c) }).WithTimeout(3*time.Minute+30*time.Second).Should(Or(
		matchers.HaveReason(clewv1.CheckpointReady, clewv1.ReasonTakenTogether),
		matchers.HaveReason(clewv1.CheckpointReady, clewv1.ReasonNotTakenTogether)), "the set %s ends", name)
	return c
}

var _ = Describe("checkpoints of a contract", func() {
	w := newWorld()

	It("are taken at a moment at which all of its agents stand still, and all go back to it", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		all := w.counting(ctx)
		w.requestSet(ctx, "lead", "evening")
		set := w.untilSetEnds(ctx, "evening")
		Expect(set).To(matchers.HaveCondition(clewv1.CheckpointReady, metav1.ConditionTrue), "%+v", set.Status.Set)
		Expect(set.Status.Set.Members).To(HaveLen(4))

		By("comparing when the agents stood still")
		var from, until []int64
		paused := map[string]standstill{}
		for _, name := range all {
			p := w.lastStandstill(ctx, name)
			Expect(p.until).NotTo(BeZero(), "%s never stood still", name)
			paused[name] = p
			from, until = append(from, p.from), append(until, p.until)
		}
		for i, begun := range from {
			Expect(until).To(HaveEach(BeNumerically(">", begun)), "%s began to stand still when another one had gone on: %+v", all[i], paused)
		}

		By("rewinding the supervisor with its children")
		w.rewind(ctx, "lead", "back", "evening", func(r *clewv1.Rewind) { r.Children = clewv1.ChildrenRewind })
		for _, name := range all[1:] {
			w.untilRewound(ctx, name, "parent-back", 3*time.Minute)
		}
		for _, name := range all {
			Expect(w.noted(ctx, name, "/tmp/begun")).To(Equal(fmt.Sprint(paused[name].count)), "the count with which %s goes on", name)
		}
	})

	It("end in one of the two ways, and stop no agent for long, whatever is killed", Label("kills"), SpecTimeout(15*time.Minute), func(ctx SpecContext) {
		all := w.counting(ctx)
		for _, component := range []string{"manager", "server", "gitstore", "postgres", "daemon"} {
			By("killing " + component)
			name := "while-" + component
			w.requestSet(ctx, "lead", name)
			if component == "daemon" {
				Expect(killContainer(w.untilAgentRuns(ctx, "two", time.Minute), "daemon")).To(Succeed())
			} else {
				Expect(w.killComponent(ctx, component)).To(Succeed())
			}
			set := w.untilSetEnds(ctx, name)
			AddReportEntry("the set while "+component+" was killed", fmt.Sprintf("%+v", set.Status.Set))
			for _, task := range all {
				w.eventually(ctx, func() int64 { p := w.lastStandstill(ctx, task); return p.until - p.from }).WithTimeout(time.Minute).
					Should(BeNumerically("<", 60_000), "milliseconds for which %s stood still", task)
			}
		}
	})
})
