package controller_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/queue"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// newLimitedWorld returns a world in which only so many tasks run at once.
func newLimitedWorld(limits queue.Limits) *world {
	GinkgoHelper()
	w := newWorld()
	w.stop()
	w.atOnce, w.grace = limits, time.Hour // nothing is looked at again by itself
	w.startManager()
	return w
}

// withPods returns the names of the tasks of the world's namespace that have a pod, in order.
func (w *world) withPods() (names []string) {
	w.Helper()
	list := &corev1.PodList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	for i := range list.Items {
		names = append(names, list.Items[i].Labels[v1alpha1.LabelTask])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// finish starts the agent of the task's newest attempt, and lets it complete.
func (w *world) finish(name string, attempt int64) {
	w.Helper()
	p := w.pod(name, attempt)
	w.start(p)
	w.complete(name, p)
}

// Those that wait in the longest queue are 48, with CLEW_SOAK=1 998.
var _ = Describe("Tasks of which only so many run at once", func() {
	It("start by priority, then age, one for each place that is free", func() {
		w := newLimitedWorld(queue.Limits{Total: 1})
		w.apply("runs", builders.Priority(-1000))
		w.pod("runs", 1)
		for name, priority := range map[string]int32{"low": -5, "high": 7} {
			w.apply(name, builders.Priority(priority))
			w.until(name, v1alpha1.ReasonQueued)
		}
		w.apply("old")
		w.until("old", v1alpha1.ReasonQueued)
		w.Eventually(time.Now).Should(BeTemporally(">=", w.task("old").CreationTimestamp.Add(time.Second)), "ages are whole seconds")
		w.apply("a-young")
		w.until("a-young", v1alpha1.ReasonQueued)
		w.Expect(w.task("old")).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("at most 1 task runs at once in this cluster")))
		w.Expect(w.withPods()).To(Equal([]string{"runs"}), "no priority takes a place")
		w.Expect(w.claims("high")).To(BeEmpty())

		started := []string{"runs"}
		for _, name := range []string{"high", "old", "a-young", "low"} {
			w.finish(started[len(started)-1], 1)
			w.pod(name, 1)
			started = append(started, name)
			w.Expect(w.withPods()).To(ConsistOf(started), "exactly the next one started")
		}
		w.Eventually(w.reasons).WithArguments("high").Should(Equal([]string{v1alpha1.EventTaskQueued, v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted}))
	})

	It("wait no longer when their priority is raised above the others'", func() {
		w := newLimitedWorld(queue.Limits{Total: 1})
		w.apply("runs")
		w.pod("runs", 1)
		for _, name := range []string{"first", "second"} {
			w.apply(name)
			w.until(name, v1alpha1.ReasonQueued)
		}
		generation := w.task("second").Generation
		w.change("second", builders.Priority(1))
		w.Eventually(w.current).WithArguments("second").Should(HaveField("Status.ObservedGeneration", BeNumerically(">", generation)))
		w.finish("runs", 1)
		w.pod("second", 1)
		w.Expect(w.withPods()).NotTo(ContainElement("first"))
	})

	It("of a namespace at its own limit hold no other one back", func() {
		w := newWorld()
		w.stop()
		w.neighbour = w.newNamespace()
		w.atOnce = queue.Limits{Total: 2, PerNamespace: 1}
		w.startManager()
		neighbour := w.in(w.neighbour)
		w.apply("one")
		w.pod("one", 1)
		w.apply("urgent", builders.Priority(1000))
		w.until("urgent", v1alpha1.ReasonQueued)
		w.Expect(w.task("urgent")).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("in this namespace")))
		neighbour.apply("other", builders.Priority(-1000))
		neighbour.pod("other", 1)
		w.Expect(w.withPods()).To(Equal([]string{"one"}))
	})

	It("keep their place when their pod is lost, and give it up when they are suspended", func() {
		w := newLimitedWorld(queue.Limits{Total: 1})
		p := w.running("work")
		w.apply("next", builders.Priority(1000))
		w.until("next", v1alpha1.ReasonQueued)
		w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
		p = w.pod("work", 2)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.withPods()).To(Equal([]string{"work"}))

		By("suspending it")
		w.change("work", builders.Suspended)
		w.untilStopped(p)
		w.start(w.pod("next", 1))
		w.until("work", v1alpha1.ReasonSuspended)
		By("resuming it, which has to wait now")
		w.change("work", builders.Running, builders.Resume("on"))
		w.until("work", v1alpha1.ReasonQueued)
		w.finish("next", 1)
		w.pod("work", 3)
	})

	It("give their turn to the next one when something else is in their way", func() {
		w := newLimitedWorld(queue.Limits{Total: 1})
		w.apply("runs")
		w.pod("runs", 1)
		for _, name := range []string{"first", "second"} {
			w.apply(name)
			w.until(name, v1alpha1.ReasonQueued)
		}
		By("a claim of the first one's name that is not its own")
		w.create(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: resources.ClaimName("first")},
			Spec:       resources.NewClaim(w.task("first"), corev1.ReadWriteOnce).Spec,
		})
		w.finish("runs", 1)
		w.pod("second", 1)
		w.until("first", v1alpha1.ReasonVolumeUnavailable)
		By("deleting one that waits")
		w.apply("third")
		w.until("third", v1alpha1.ReasonQueued)
		w.apply("fourth")
		w.until("fourth", v1alpha1.ReasonQueued)
		w.Expect(w.client.Delete(w.ctx, w.task("third"))).To(Succeed())
		w.finish("second", 1)
		w.pod("fourth", 1)
	})

	It("give their place up when their pod does not start, and wait behind those that came meanwhile", func() {
		w := newWorld()
		w.stop()
		w.atOnce, w.patience = queue.Limits{Total: 1}, 500*time.Millisecond
		w.startManager()
		w.apply("stuck", func(t *v1alpha1.Task) {
			t.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/for-ever"}}
		})
		w.Eventually(w.current).WithArguments("stuck").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("example.com/for-ever")))
		w.Expect(w.task("stuck").Status.Attempts).To(HaveLen(1), "while nobody waits")
		w.apply("next")
		w.pod("next", 1)
		w.Eventually(w.current).WithArguments("stuck").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("at most 1 task runs at once")))
		w.Eventually(w.reasons).WithArguments("stuck").Should(ContainElements(v1alpha1.ReasonPlaceGivenUp, v1alpha1.EventTaskQueued))
		w.finish("next", 1)
		w.Eventually(w.current).WithArguments("stuck").Should(HaveField("Status.Attempts", HaveLen(2)))
	})

	It("share a place with the supervisor whose child they are, so that neither waits for the other", func() {
		w := newLimitedWorld(queue.Limits{Total: 1})
		w.running("lead", leads("port"))
		w.apply("first", childOf("lead"))
		w.pod("first", 1)
		w.apply("second", childOf("lead"))
		w.until("second", v1alpha1.ReasonQueued)
		w.apply("other", builders.Priority(1000))
		w.until("other", v1alpha1.ReasonQueued)
		w.finish("first", 1)
		w.pod("second", 1)
		w.Expect(w.withPods()).NotTo(ContainElement("other"), "the supervisor's place is its own")
	})

	It("cost the same number of writes each, however many wait, through a restart of the manager", func() {
		const places = 2
		many := 50
		if os.Getenv("CLEW_SOAK") == "1" {
			many = 1000
		}
		w := newLimitedWorld(queue.Limits{Total: places})
		w.SetDefaultEventuallyTimeout(2 * time.Minute)
		for i := range many {
			w.apply(fmt.Sprintf("t%03d", i))
		}
		queued := func() (n int) {
			list := &v1alpha1.TaskList{}
			w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
			for i := range list.Items {
				if reasonOf(&list.Items[i]) == v1alpha1.ReasonQueued {
					n++
				}
			}
			return n
		}
		w.Eventually(queued).Should(Equal(many - places))
		started := w.withPods()
		w.Expect(started).To(HaveLen(places))
		waits := func(writes []string) map[string]int {
			count := map[string]int{}
			for _, write := range writes {
				for i := range many {
					if name := fmt.Sprintf("t%03d", i); !slices.Contains(started, name) && strings.Contains(write+"/", "/"+name+"/") {
						count[name]++
					}
				}
			}
			return count
		}
		before := w.requests.list()
		w.Expect(waits(before)).To(HaveLen(many - places))
		for name, n := range waits(before) {
			w.Expect(n).To(BeNumerically("<=", 2), "writes of task %s: its finalizer and that it waits", name)
		}

		By("ten places that become free, with a restart between")
		left := 0
		for range 10 {
			w.finish(started[left], 1)
			free := time.Now()
			left++
			w.Eventually(w.withPods).Should(HaveLen(len(started)+1), "one more has started")
			GinkgoTB().Logf("%d wait; the next pod followed %s after a place was free", many-len(started)-1, time.Since(free).Round(time.Millisecond))
			started = append(started, slices.DeleteFunc(w.withPods(), func(name string) bool { return slices.Contains(started, name) })...)
			if left == 5 {
				w.restartManager()
			}
		}
		w.Consistently(w.withPods).WithTimeout(500 * time.Millisecond).Should(HaveLen(places + 10))
		after := waits(w.requests.list()[len(before):])
		w.Expect(after).To(BeEmpty(), "none of those that still wait was written, not even after the restart")
		w.Expect(queued()).To(Equal(many - places - 10))
	})

	It("are not started by a new manager beyond a lower limit, and are up to a higher one", func() {
		w := newLimitedWorld(queue.Limits{Total: 3, PerNamespace: 9})
		names := []string{"a", "b", "c", "d", "e", "f"}
		for _, name := range names {
			w.apply(name)
		}
		w.Eventually(w.withPods).Should(HaveLen(3))
		running := w.withPods()
		for _, name := range names {
			if !slices.Contains(running, name) {
				w.until(name, v1alpha1.ReasonQueued)
			}
		}
		w.stop()
		w.atOnce.Total = 2
		w.startManager()
		w.finish(running[0], 1)
		w.untilRecorded(running[0])
		w.Consistently(w.withPods).WithTimeout(500*time.Millisecond).Should(HaveLen(3), "two still run")
		w.finish(running[1], 1)
		w.Eventually(w.withPods).Should(HaveLen(4))
		w.stop()
		w.atOnce.Total = 4
		w.startManager()
		w.Eventually(w.withPods).Should(HaveLen(6))
	})
})
