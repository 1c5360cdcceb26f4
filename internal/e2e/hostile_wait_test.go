//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// waits holds how long honest tasks waited for one thing.
type waits struct {
	what        string
	count       int
	median, p95 time.Duration
	most        time.Duration
}

func newWaits(what string, each []time.Duration) waits {
	slices.Sort(each)
	w := waits{what: what, count: len(each)}
	if len(each) > 0 {
		w.median, w.p95, w.most = each[len(each)/2], each[len(each)*95/100], each[len(each)-1]
	}
	return w
}

func table(alone, beside []waits) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-44s %10s %6s %10s %10s %10s\n", "from a tool call to", "", "calls", "median", "p95", "most")
	for i := range alone {
		for _, row := range []struct {
			when string
			waits
		}{{"alone", alone[i]}, {"beside", beside[i]}} {
			fmt.Fprintf(&out, "%-44s %10s %6d %10s %10s %10s\n", row.what, row.when, row.count,
				row.median.Round(time.Millisecond), row.p95.Round(time.Millisecond), row.most.Round(time.Millisecond))
		}
		fmt.Fprintf(&out, "%-44s %10s %6s %10.2f %10.2f\n", "", "times", "",
			float64(beside[i].median)/float64(alone[i].median), float64(beside[i].p95)/float64(alone[i].p95))
	}
	return out.String()
}

// call is a tool call of a task, by its number.
type call struct {
	task   string
	number int64
}

// observation holds what was observed of the tool calls of honest tasks.
type observation struct {
	mu sync.Mutex
	// done is the time of a call, as the agent reports it; listed is when it appeared in the
	// timeline, and kept when a durable checkpoint contained the call.
	done, listed, kept map[call]time.Time
}

// observe follows the calls that tasks make for a while, until each is in the timeline
// and in a durable checkpoint.
func (w *world) observe(ctx context.Context, while time.Duration, tasks []string) []waits {
	GinkgoHelper()
	o := &observation{done: map[call]time.Time{}, listed: map[call]time.Time{}, kept: map[call]time.Time{}}
	from := time.Now()
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		defer GinkgoRecover()
		w.watchCheckpoints(ctx, o, stop)
	})
	all.Go(func() {
		defer GinkgoRecover()
		w.watchTimeline(ctx, o, stop)
	})
	defer all.Wait()
	defer close(stop)
	pause(ctx, while) // the measurement takes a fixed time
	to := time.Now()
	Eventually(ctx, func() error { return o.missing(from, to, tasks) }).WithTimeout(5*time.Minute).Should(Succeed(), "each call is in the timeline and in a durable checkpoint")
	return o.waits(from, to)
}

// missing returns an error for a call made between from and to that is not in the
// timeline, or in no durable checkpoint yet.
func (o *observation) missing(from, to time.Time, tasks []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	latest := map[string]time.Time{}
	for c, done := range o.done {
		if done.After(latest[c.task]) {
			latest[c.task] = done
		}
		inTime := done.After(from) && done.Before(to)
		if inTime && o.kept[c].IsZero() {
			return fmt.Errorf("call %d of task %s, done at %s, is in no durable checkpoint", c.number, c.task, done)
		}
	}
	for _, task := range tasks {
		if latest[task].Before(to) {
			return fmt.Errorf("the last call in the timeline of task %s was done at %s", task, latest[task])
		}
	}
	return nil
}

func (o *observation) waits(from, to time.Time) []waits {
	o.mu.Lock()
	defer o.mu.Unlock()
	var listed, kept []time.Duration
	for c, done := range o.done {
		if done.After(from) && done.Before(to) {
			listed, kept = append(listed, o.listed[c].Sub(done)), append(kept, o.kept[c].Sub(done))
		}
	}
	return []waits{newWaits("its durable checkpoint", kept), newWaits("its entry in the timeline", listed)}
}

// watchTimeline records what the agents say about their calls, four times a second: with
// one request for all of them, since the requests use the same two processors.
func (w *world) watchTimeline(ctx context.Context, o *observation, stop <-chan struct{}) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		body, err := w.rawQuery(ctx, fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/timelines?limit=100", w.namespace))
		now := time.Now()
		var page historyv1.TimelineEventList
		if err == nil {
			err = json.Unmarshal(body, &page)
		}
		if err != nil {
			GinkgoWriter.Printf("the timelines: %v\n", err)
		}
		o.read(page.Items, now)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

func (o *observation) read(events []historyv1.TimelineEvent, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		var number, done int64
		if n, _ := fmt.Sscanf(e.Message, "call %d was done at %d", &number, &done); n != 2 {
			continue
		}
		c := call{e.Task, number}
		if _, seen := o.listed[c]; !seen {
			o.done[c], o.listed[c] = time.Unix(0, done), now
		}
	}
}

// watchCheckpoints records when checkpoints become durable.
func (w *world) watchCheckpoints(ctx context.Context, o *observation, stop <-chan struct{}) {
	kube, err := client.NewWithWatch(w.config, client.Options{Scheme: w.kube.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	for {
		events, err := kube.Watch(ctx, &clewv1.CheckpointList{}, client.InNamespace(w.namespace))
		Expect(err).NotTo(HaveOccurred(), "watch checkpoints")
		if !o.follow(events, stop) {
			return
		}
	}
}

// follow reads a watch until it breaks off. It returns false if it was stopped.
func (o *observation) follow(events watch.Interface, stop <-chan struct{}) bool {
	defer events.Stop()
	for {
		select {
		case <-stop:
			return false
		case event, ok := <-events.ResultChan():
			if !ok {
				return true
			}
			ckpt, ok := event.Object.(*clewv1.Checkpoint)
			if !ok || ckpt.Status.Conversation == nil {
				continue
			}
			if meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable) {
				o.keep(ckpt.Spec.TaskRef.Name, ckpt.Status.Conversation.ToolCalls, time.Now())
			}
		}
	}
}

// keep records that a durable checkpoint contains the calls up to a number.
func (o *observation) keep(task string, through int64, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := through; n > 0 && o.kept[call{task, n}].IsZero(); n-- {
		o.kept[call{task, n}] = now
	}
}

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
