//go:build e2e && bench

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// podTimes are the instants at which the API server first said something about a pod.
type podTimes struct {
	mu sync.Mutex
	at map[string]map[string]time.Time // by pod and step
}

// The steps of a pod's life, in order.
const (
	stepCreated   = "created"
	stepScheduled = "scheduled"
	stepPrepare   = "prepare runs"
	stepPrepared  = "prepare has ended"
	stepDaemon    = "daemon is ready"
	stepEnded     = "no container runs any more"
)

// watchPods follows the pods of the world's namespace until the spec ends.
func (w *world) watchPods(ctx context.Context) *podTimes {
	GinkgoHelper()
	events, err := w.clientset.CoreV1().Pods(w.namespace).Watch(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	times := &podTimes{at: map[string]map[string]time.Time{}}
	DeferCleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				times.see(event.Type, pod, time.Now())
			}
		}
	}()
	return times
}

// see notes the steps that a pod has reached.
func (t *podTimes) see(event watch.EventType, pod *corev1.Pod, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := t.at[pod.Name]
	if steps == nil {
		steps = map[string]time.Time{stepCreated: now}
		t.at[pod.Name] = steps
	}
	reached := func(step string, yes bool) {
		if _, known := steps[step]; yes && !known {
			steps[step] = now
		}
	}
	reached(stepScheduled, pod.Spec.NodeName != "")
	reached(stepEnded, event == watch.Deleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
	for _, c := range pod.Status.InitContainerStatuses {
		switch c.Name {
		case daemonapi.PrepareContainer:
			reached(stepPrepare, c.State.Running != nil || c.State.Terminated != nil)
			reached(stepPrepared, c.State.Terminated != nil)
		case daemonapi.DaemonContainer:
			reached(stepDaemon, c.Started != nil && *c.Started)
		}
	}
}

// steps returns the instants of a pod.
func (t *podTimes) steps(pod string) map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.at[pod])
}

// speeds are the durations of each operation: as a whole, and of its parts.
type speeds map[string]map[string][]time.Duration

// The parts of an operation, in order.
const (
	partWhole    = "whole"
	partStop     = "stop"
	partAPI      = "API"
	partSchedule = "schedule"
	partVolume   = "volume, pod"
	partPrepare  = "prepare"
	partDaemon   = "daemon"
	partAgent    = "agent"
)

// addWhole adds a duration without parts.
func (s speeds) addWhole(operation string, took time.Duration) { s.addPart(operation, partWhole, took) }

func (s speeds) addPart(operation, part string, took time.Duration) {
	if s[operation] == nil {
		s[operation] = map[string][]time.Duration{}
	}
	s[operation][part] = append(s[operation][part], took)
}

// add adds an operation that was asked for at an instant and ended with a pod's first line.
// The pod before it, if there is one, had to end.
func (s speeds) add(operation string, asked time.Time, seen *podTimes, pod startedAgent, before string) {
	s.addWhole(operation, pod.first.Sub(asked))
	last := asked
	step := func(part string, at time.Time) {
		if at.IsZero() {
			return
		}
		s.addPart(operation, part, max(0, at.Sub(last)))
		last = at
	}
	steps := seen.steps(pod.name)
	if before != "" {
		step(partStop, seen.steps(before)[stepEnded])
	}
	step(partAPI, steps[stepCreated])
	step(partSchedule, steps[stepScheduled])
	step(partVolume, steps[stepPrepare])
	step(partPrepare, steps[stepPrepared])
	step(partDaemon, steps[stepDaemon])
	step(partAgent, pod.first)
}

// String returns a table with the median and the 95th percentile of each part, in seconds.
func (s speeds) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	parts := []string{partWhole, partStop, partAPI, partSchedule, partVolume, partPrepare, partDaemon, partAgent}
	fmt.Fprintf(table, "p50 · p95\t%s\n", strings.Join(parts, "\t"))
	for _, operation := range []string{"create", "rewind", "resume", "fork", "kill", "suspend"} {
		cells := []string{operation}
		for _, part := range parts {
			cells = append(cells, percentiles(s[operation][part]))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush()
	return out.String()
}

// percentiles returns the median and the 95th percentile (nearest rank).
func percentiles(samples []time.Duration) string {
	if len(samples) == 0 {
		return "–"
	}
	slices.Sort(samples)
	rank := func(p int) float64 { return samples[(len(samples)*p+99)/100-1].Seconds() }
	return fmt.Sprintf("%.1f · %.1f", rank(50), rank(95))
}
