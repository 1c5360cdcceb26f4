//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// What the agents of these specs try is in internal/testing/forbidden.
var _ = Describe("what is forbidden", func() {
	w := newWorld()

	// beside makes what the agent has no business with: a task that has said something, and another
	// supervisor with a child.
	beside := func(ctx context.Context) pushed {
		p := w.newPushed(ctx)
		stranger := w.newTask("stranger", "sh", "-c", `echo '{"type":"message","role":"assistant","text":"the password is swordfish"}'`)
		w.create(ctx, stranger)
		rival := leading(w.newTask("rival", "sleep", "infinity"), p)
		rival.Spec.Contract.Name = "rivals"
		w.create(ctx, rival)
		w.untilState(ctx, "stranger", 3*time.Minute, clewv1.ReasonCompleted)
		w.untilState(ctx, "rival", 3*time.Minute, clewv1.ReasonRunning)
		return p
	}

	It("is refused to a hostile worker, over the tools and the socket", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		p := beside(ctx)
		before := w.standing(ctx, p)
		worker := w.newTask("worker", "forbidden", "worker")
		worker.Spec.ParentRef = &clewv1.NameReference{Name: "rival"}
		w.create(ctx, worker)
		w.untilState(ctx, "worker", 4*time.Minute, clewv1.ReasonCompleted)
		w.expectAllRefused(ctx, "worker", 1)
		Expect(w.standing(ctx, p, "worker")).To(Equal(before), "what stands beside the hostile task")
	})

	It("is refused to a hostile supervisor, over the tools and the socket", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		p := beside(ctx)
		worker := w.newTask("worker", "true")
		worker.Spec.ParentRef = &clewv1.NameReference{Name: "rival"}
		w.create(ctx, worker)
		w.untilState(ctx, "worker", 3*time.Minute, clewv1.ReasonCompleted)
		before := w.standing(ctx, p)

		lead := leading(w.newTask("lead", "forbidden", "supervisor"), p)
		lead.Spec.Children.Maximum = ptr.To[int32](1)
		w.create(ctx, lead)
		w.untilState(ctx, "lead", 6*time.Minute, clewv1.ReasonCompleted)
		w.expectAllRefused(ctx, "lead", 2)
		Expect(w.standing(ctx, p, "lead", "lead-mine")).To(Equal(before), "what stands beside the hostile task")
		Expect(w.task(ctx, "lead").Status.Children.Total).To(BeEquivalentTo(1))
		Expect(w.task(ctx, "lead").Status.Contract.Phase).To(Equal(clewv1.PhaseResearch))
		carriedOut := w.callsOf(ctx, "lead")
		maps.DeleteFunc(carriedOut, func(tool string, _ int) bool { return strings.HasPrefix(tool, "refused ") })
		Expect(carriedOut).To(Equal(map[string]int{"task_create": 1, "task_wait": 1}), "calls that its timeline says were carried out")
	})
})

// expectAllRefused expects that what a task's agent has tried was refused, but for so many calls that
// were allowed, and reports the answers.
func (w *world) expectAllRefused(ctx context.Context, task string, allowed int) {
	GinkgoHelper()
	verdicts := map[string]int{}
	var rows strings.Builder
	for _, e := range w.conversation(ctx, task) {
		if parts := strings.SplitN(e.Text, "\t", 3); len(parts) == 3 {
			verdicts[parts[0]]++
			fmt.Fprintf(&rows, "%-11s  %-100.100s  %.200s\n", parts[0], parts[1], parts[2])
		}
	}
	AddReportEntry("answers to the hostile "+task, "\n"+rows.String(), ReportEntryVisibilityFailureOrVerbose)
	Expect(verdicts).To(And(HaveLen(2), HaveKeyWithValue("allowed", allowed), HaveKeyWithValue("refused", BeNumerically(">=", 30))), "answers by their kind")
}

// standing describes all tasks but some, with their checkpoints, the forks, and the branches at the
// repository of p.
func (w *world) standing(ctx context.Context, p pushed, but ...string) map[string]string {
	GinkgoHelper()
	what := map[string]string{"origin": p.git(ctx, "for-each-ref")}
	tasks, forks := &clewv1.TaskList{}, &clewv1.ForkList{}
	Expect(w.kube.List(ctx, tasks, client.InNamespace(w.namespace))).To(Succeed())
	Expect(w.kube.List(ctx, forks, client.InNamespace(w.namespace))).To(Succeed())
	what["forks"] = fmt.Sprint(len(forks.Items))
	for _, t := range tasks.Items {
		spec, err := json.Marshal(t.Spec)
		Expect(err).NotTo(HaveOccurred())
		what[t.Name] = fmt.Sprintf("%s in %d attempts with %d checkpoints: %s", state(&t), len(t.Status.Attempts), len(w.checkpoints(ctx, t.Name)), spec)
	}
	for _, name := range but {
		delete(what, name)
	}
	return what
}
