//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Serial: it stops components that every task needs.
var _ = Describe("an outage of Postgres, the gitstore and the server", Serial, Label("kill", "slow"), func() {
	w := newWorld()

	It("does not disturb the agent and loses nothing", func(ctx SpecContext) {
		outage := pick(8*time.Second, 60*time.Second)
		calls := pick(60, 400)
		w.create(ctx, w.newTask("undisturbed", replay(calls, 700*time.Millisecond)...))
		w.untilToolCalls(ctx, "undisturbed", 3, 2*time.Minute)
		pod := w.untilAgentRuns(ctx, "undisturbed", time.Minute).Name

		for _, workload := range []string{"statefulset/clew-postgres", "statefulset/clew-gitstore", "deployment/clew-server"} {
			By(fmt.Sprintf("stopping %s for %s", workload, outage))
			w.scaleDown(ctx, workload)
			Consistently(ctx, func(ctx context.Context) []clewv1.Attempt { return w.task(ctx, "undisturbed").Status.Attempts }).
				WithTimeout(outage).WithPolling(time.Second).Should(HaveExactElements(HaveField("PodName", pod)))
			w.scale(ctx, workload, 1)
			w.untilSystemReady(ctx, 2*time.Minute)
		}

		task := w.untilState(ctx, "undisturbed", 8*time.Minute, clewv1.ReasonCompleted)
		Expect(task.Status.Attempts).To(HaveExactElements(HaveField("PodName", pod)), "one pod did all the work")
		w.expectCallsOnce(ctx, "undisturbed", calls)
		w.expectDurableCheckpointsExact(ctx, calls, "undisturbed")
		ckpts := w.untilListed(ctx, "undisturbed")
		Expect(len(ckpts)).To(BeNumerically(">=", calls/5))
		for i, c := range ckpts {
			Expect(c.Status.Number).To(BeEquivalentTo(i+1), "each checkpoint once")
		}
	})
})
