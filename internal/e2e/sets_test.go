//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// counts is an agent that counts in a file, which every checkpoint has. It notes outside of its worktree with
// which count it began, and each time that it stood still for more than a tenth of a second: from when, until
// when, and at which count.
const counts = `
	n=$(cat counter.txt 2>/dev/null || echo 0)
	echo "$n" >/tmp/begun
	: >/tmp/stood-still
	last=$(date +%s%3N)
	while :; do
		now=$(date +%s%3N)
		if [ $((now - last)) -gt 100 ]; then echo "$last $now $n" >>/tmp/stood-still; fi
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

// standstills returns when the agent of a task stood still.
func (w *world) standstills(ctx context.Context, task string) (all []standstill) {
	GinkgoHelper()
	for line := range strings.Lines(w.noted(ctx, task, "/tmp/stood-still")) {
		var s standstill
		_, err := fmt.Sscan(line, &s.from, &s.until, &s.count)
		Expect(err).NotTo(HaveOccurred(), "when %s stood still: %s", task, line)
		all = append(all, s)
	}
	return all
}

// together returns the counts of the tasks at each moment at which all stood still. On a busy node there are
// some at which nobody has stopped them.
func together(all map[string][]standstill) (moments []map[string]int64) {
	for _, begun := range slices.Concat(slices.Collect(maps.Values(all))...) {
		found := map[string]int64{}
		for name, of := range all {
			if i := slices.IndexFunc(of, func(s standstill) bool { return s.from <= begun.from && begun.from < s.until }); i >= 0 {
				found[name] = of[i].count
			}
		}
		if len(found) == len(all) {
			moments = append(moments, found)
		}
	}
	return moments
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
		var paused []map[string]int64
		Eventually(ctx, func() []map[string]int64 { // an agent notes it once it works again
			noted := map[string][]standstill{}
			for _, name := range all {
				noted[name] = w.standstills(ctx, name)
			}
			paused = together(noted)
			return paused
		}).WithTimeout(30*time.Second).WithPolling(between).ShouldNot(BeEmpty(), "a moment at which all agents stood still")

		By("rewinding the supervisor with its children")
		w.rewind(ctx, "lead", "back", "evening", func(r *clewv1.Rewind) { r.Children = clewv1.ChildrenRewind })
		for _, name := range all[1:] {
			w.untilRewound(ctx, name, "parent-back", 3*time.Minute)
		}
		var moment []types.GomegaMatcher
		for _, name := range all {
			count, err := strconv.ParseInt(w.noted(ctx, name, "/tmp/begun"), 10, 64)
			Expect(err).NotTo(HaveOccurred())
			// An agent that was stopped while it wrote a count had the one before it in its file.
			moment = append(moment, HaveKeyWithValue(name, Or(Equal(count), Equal(count+1))))
		}
		Expect(paused).To(ContainElement(And(moment...)), "the moment with whose counts all go on")
	})

	// Serial: it kills components that every task needs.
	It("end in one of the two ways, and stop no agent for long, whatever is killed", Serial, Label("kill"), SpecTimeout(15*time.Minute), func(ctx SpecContext) {
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
				for _, p := range w.standstills(ctx, task) {
					Expect(p.until-p.from).To(BeNumerically("<", 60_000), "milliseconds for which %s stood still", task)
				}
			}
		}
	})
})
