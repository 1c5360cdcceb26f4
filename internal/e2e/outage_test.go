//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Not parallel: it stops what every task needs.
func TestTheAgentDoesNotNoticeAnOutage(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	outage := pick(8*time.Second, 60*time.Second)
	calls := pick(60, 400)
	w.create(w.newTask("undisturbed", replay(calls, 700*time.Millisecond)...))
	w.untilToolCalls("undisturbed", 3, 2*time.Minute)
	attempt := w.untilAgentRuns("undisturbed", time.Minute).Name

	for _, workload := range []string{"statefulset/clew-postgres", "statefulset/clew-gitstore", "deployment/clew-server"} {
		t.Logf("%s stops for %s", workload, outage)
		w.scaleDown(workload)
		time.Sleep(outage)
		w.scale(workload, 1)
		w.untilSystemReady(2 * time.Minute)
	}

	task := w.untilState("undisturbed", 8*time.Minute, clewv1.ReasonCompleted)
	g.Expect(task.Status.Attempts).To(gomega.HaveLen(1), "one pod did it all")
	g.Expect(task.Status.Attempts[0].PodName).To(gomega.Equal(attempt))
	w.expectCallsOnce("undisturbed", calls)
	w.expectDurableCheckpointsExact(calls, "undisturbed")
	ckpts := w.untilListed("undisturbed")
	g.Expect(len(ckpts)).To(gomega.BeNumerically(">=", calls/5))
	for i, c := range ckpts {
		g.Expect(c.Status.Number).To(gomega.BeEquivalentTo(i+1), "each checkpoint once")
	}
}
