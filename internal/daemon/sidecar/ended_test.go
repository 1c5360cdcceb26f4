package sidecar_test

import (
	"fmt"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestRiskyCallsThatWaitWhenTheAgentEndsAreReported: none of them had a checkpoint before
// it.
func TestRiskyCallsThatWaitWhenTheAgentEndsAreReported(t *testing.T) {
	g := gomega.NewWithT(t)
	w := riskyWorld(t, "Exec")
	w.ProcessorTime = expensive()
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(fmt.Sprintf(riskyCall, "first"))
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	const calls, waiting = 40, 32
	var want []string
	for i := range calls {
		id := fmt.Sprint("late-", i)
		if i < waiting {
			want = append(want, id)
		}
		a.Say(fmt.Sprintf(riskyCall, id))
	}
	finish(a, d, 0)
	var got []string
	more := ""
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			e := r.GetEvent()
			if e.GetReason() == "RiskyToolUnguarded" && e.GetDetails()["calls"] == "" {
				got = append(got, e.GetDetails()["call"])
			} else if e.GetReason() == "RiskyToolUnguarded" {
				more += e.GetDetails()["calls"] + " "
			}
		}
	})
	g.Expect(got).To(gomega.ConsistOf(want))
	g.Expect(more).To(gomega.Equal(fmt.Sprint(calls-waiting, " ")))
	g.Expect(latest(w).GetTrigger()).To(gomega.Equal("Completion"))
}
