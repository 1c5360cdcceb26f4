//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Serial: it kills components that every task needs.
var _ = Describe("a supervisor during whose work something is killed", Serial, Label("kill", "slow", "soak"), func() {
	w := newWorld()

	It("comes to the same end, each call of its tools takes effect once, and nothing is left behind", SpecTimeout(pick(20*time.Minute, time.Hour)), func(ctx SpecContext) {
		p := w.newPushed(ctx)
		w.create(ctx, leading(w.newTask("lead", "sh", "-euc", leadsWork), p, func(t *clewv1.Task) {
			t.Spec.BackoffLimit = ptr.To[int32](100)
			t.Spec.Children.Template.BackoffLimit = ptr.To[int32](100)
		}))
		struck, kills := newStrikes(ctx, w, dice()), pick(10, 60)
		struck.spare("kubelet", "containerd") // they have specs of their own
		begun := time.Now()
		for struck.total() < kills {
			pause(ctx, time.Duration(1000+struck.random.IntN(2000))*time.Millisecond)
			Expect(ctx.Err()).NotTo(HaveOccurred(), "after %d kills", struck.total())
			if state(w.task(ctx, "lead")) == clewv1.ReasonCompleted {
				break
			}
			struck.one()
		}
		reportKills(struck.count)
		AddReportEntry("kills", fmt.Sprintf("%d kills in %s", struck.total(), time.Since(begun).Round(time.Second)))
		w.untilSystemReady(ctx, restartTime)
		w.untilWorkDone(ctx, p, restartTime)

		By("looking at the calls that are stored")
		Expect(w.storedCalls(ctx)).To(And(
			HaveKeyWithValue("phase_set", 4), HaveKeyWithValue("task_rewind", 1), HaveKeyWithValue("publish", 1)), "calls with an id that were carried out")
		Expect(w.inPostgres(ctx, fmt.Sprintf("SELECT count(*) FROM tool_calls c JOIN tasks t ON t.id = c.task_id WHERE t.namespace = '%s' AND c.answered IS NULL", w.namespace))).
			To(Equal("0"), "calls without an answer")
		Expect(struck.total()).To(BeNumerically(">=", kills), "kills before the supervisor completed")
		w.expectNothingLeft(ctx)
	})
})

// storedCalls counts the calls with an id that Postgres has of the namespace and that were carried out, by tool.
func (w *world) storedCalls(ctx context.Context) map[string]int {
	GinkgoHelper()
	calls := map[string]int{}
	for line := range strings.Lines(w.inPostgres(ctx, fmt.Sprintf(
		"SELECT c.tool FROM tool_calls c JOIN tasks t ON t.id = c.task_id WHERE t.namespace = '%s' AND c.call_key <> '' AND NOT c.refused", w.namespace))) {
		calls[strings.TrimSpace(line)]++
	}
	return calls
}
