//go:build e2e && bench

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// fiveHundredCalls is an agent that makes 500 tool calls, each of which changes another one
	// of 10,000 files. Real agents need seconds for each, most of which their model takes.
	fiveHundredCalls = `date +"started %s.%N"
for i in $(seq 500); do
  echo '{"type":"tool_call","id":"call-'$i'","name":"edit","input":{}}'
  echo "$i" >> "$((i * 20 % 10000 / 100))/$((i * 20 % 10000)).txt"
  sleep 2
  echo '{"type":"tool_result","id":"call-'$i'","output":"ok"}'
done
date +"ended %s.%N"`
	// maxOverhead is the part of a task's run time for which its checkpoints may stop the agent.
	maxOverhead = 0.01
)

// Serial: others' work would be measured too.
var _ = Describe("the speed of operations", Serial, func() {
	w := newWorld()

	It("the checkpoints of 500 tool calls and 500 changed files stop the agent for less than 1 % of its run time", func(ctx SpecContext) {
		w.startRun(ctx, "without", func(p *clewv1.CheckpointPolicy) {
			p.EveryToolCalls, p.BeforeRiskyTools = ptr.To[int32](0), []clewv1.RiskyToolPattern{}
		})
		w.startRun(ctx, "with", func(p *clewv1.CheckpointPolicy) {
			p.EveryToolCalls, p.EverySeconds = ptr.To[int32](10), ptr.To[int32](300)
		})
		without, with := w.measuredRun(ctx, "without"), w.measuredRun(ctx, "with")

		AddReportEntry("a task of 500 tool calls and 500 changed files", overheadTable(without, with))
		Expect(with.checkpoints).To(BeNumerically(">", 20), "checkpoints were taken while the agent ran")
		Expect(with.frozen.Seconds()).To(BeNumerically("<", maxOverhead*with.took.Seconds()))
	})
})

// measuredRun is what a task cost its agent.
type measuredRun struct {
	name string
	// took is the agent's own run time, and frozen for how long checkpoints stopped it.
	took, frozen time.Duration
	checkpoints  int
}

// startRun starts a task of 500 tool calls.
func (w *world) startRun(ctx context.Context, name string, set func(*clewv1.CheckpointPolicy)) {
	GinkgoHelper()
	task := w.newTask(name, "sh", "-c", fiveHundredCalls)
	task.Spec.Repository = &clewv1.Repository{URL: largeURL, Ref: "main"}
	set(&task.Spec.CheckpointPolicy)
	w.create(ctx, task)
}

// measuredRun waits for the end of a task of 500 tool calls, and measures it.
func (w *world) measuredRun(ctx context.Context, name string) measuredRun {
	GinkgoHelper()
	w.untilState(ctx, name, 30*time.Minute, clewv1.ReasonCompleted)
	log, err := w.clientset.CoreV1().Pods(w.namespace).GetLogs(name+"-1", &corev1.PodLogOptions{Container: clewv1.AgentContainer}).DoRaw(ctx)
	Expect(err).NotTo(HaveOccurred())
	run := measuredRun{name: name, took: secondsAfter(string(log), "ended ") - secondsAfter(string(log), "started ")}
	for _, c := range w.untilListed(ctx, name) {
		run.checkpoints++
		run.frozen += time.Duration(c.Status.FrozenMilliseconds) * time.Millisecond
	}
	return run
}

// secondsAfter reads the time that the agent printed after a word.
func secondsAfter(log, word string) time.Duration {
	GinkgoHelper()
	_, rest, found := strings.Cut(log, word)
	Expect(found).To(BeTrue(), "the agent printed %q", word)
	text, _, _ := strings.Cut(rest, "\n")
	seconds, err := strconv.ParseFloat(text, 64)
	Expect(err).NotTo(HaveOccurred())
	return time.Duration(seconds * float64(time.Second))
}

// overheadTable sets two runs side by side.
func overheadTable(without, with measuredRun) string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "checkpoints\ttaken\trun time\tagent stopped\tof the run time")
	for _, r := range []measuredRun{without, with} {
		fmt.Fprintf(table, "%s\t%d\t%.1f s\t%d ms\t%.2f %%\n", r.name, r.checkpoints, r.took.Seconds(), r.frozen.Milliseconds(),
			100*r.frozen.Seconds()/r.took.Seconds())
	}
	_ = table.Flush()
	return out.String()
}
