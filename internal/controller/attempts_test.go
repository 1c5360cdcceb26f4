package controller_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// newest returns the number of the newest attempt; 0 for none.
func (w *world) newest(name string) v1alpha1.Attempt {
	w.Helper()
	attempts := w.task(name).Status.Attempts
	if len(attempts) == 0 {
		return v1alpha1.Attempt{}
	}
	return attempts[len(attempts)-1]
}

// newestPod waits for the pod of the newest attempt, at least the given one.
func (w *world) newestPod(name string, least int64) *corev1.Pod {
	w.Helper()
	w.Eventually(func() error {
		number := w.newest(name).Number
		if number < least {
			return errors.New("no such attempt yet")
		}
		return w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: resources.PodName(name, number)}, &corev1.Pod{})
	}).Should(Succeed(), "attempt %d or a later one has a pod", least)
	return w.pod(name, w.newest(name).Number)
}

var _ = Describe("an attempt of a task", func() {
	When("the manager is replaced", func() {
		It("uses no number twice, although the manager died between writing the status and creating the pod", func() {
			w := newWorld()
			By("failing to create the pod")
			w.requests.setSpoil(func(r *http.Request) error {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
					return errors.New("the manager dies here")
				}
				return nil
			})
			w.apply("work")
			w.Eventually(func() int64 { return w.newest("work").Number }).Should(BeNumerically(">=", 1))
			w.stop()
			reserved := w.newest("work").Number
			By("starting another manager")
			w.requests.setSpoil(nil)
			w.startManager()
			w.start(w.newestPod("work", reserved+1))
			task := w.until("work", v1alpha1.ReasonRunning)
			for _, a := range task.Status.Attempts[:len(task.Status.Attempts)-1] {
				w.Expect(a.Outcome).To(Equal(v1alpha1.AttemptPodLost), "attempt %d", a.Number)
			}
			w.Expect(task.Status.Failures).To(BeZero())
		})

		// The node that runs the manager and the task's pod is drained: the pod is gone before
		// another manager has seen it.
		It("is followed by another one if its pod has vanished in the meantime", func() {
			w := newWorld()
			w.apply("work")
			p := w.pod("work", 1)
			w.Expect(w.newest("work").PodUID).To(BeEmpty(), "the pod's UID is not worth a write of its own")
			w.stop()
			w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
			w.startManager()
			w.start(w.newestPod("work", 2))
			task := w.until("work", v1alpha1.ReasonRunning)
			w.Expect(task.Status.Attempts).To(HaveLen(2))
			w.Expect(task.Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptPodLost))
			w.Expect(task.Status.Attempts[1].PodUID).NotTo(BeEmpty())
		})

		It("keeps the pod that the former manager created", func() {
			w := newWorld()
			w.apply("work")
			p := w.pod("work", 1)
			w.restartManager()
			w.start(p)
			task := w.until("work", v1alpha1.ReasonRunning)
			w.Expect(task.Status.Attempts).To(HaveLen(1))
			w.Expect(task.Status.Attempts[0].PodUID).To(Equal(string(p.UID)))
		})
	})

	// Otherwise the next manager would take a pod that the one before it has stopped for lost.
	It("is stopped only once it is on record why", func() {
		w := newWorld()
		p := w.running("work")
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.checkpoint("work-1")
		By("losing each status that the manager writes")
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/tasks/") && strings.HasSuffix(r.URL.Path, "/status") {
				return errors.New("the manager dies here")
			}
			return nil
		})
		w.change("work", builders.Rewind("back", "work-1"))
		deletes := func() []string {
			return slices.DeleteFunc(w.requests.list(), func(write string) bool { return !strings.HasPrefix(write, http.MethodDelete+" ") })
		}
		tries := len(w.requests.list())
		w.Eventually(w.requests.list).Should(WithTransform(func(writes []string) int { return len(writes) }, BeNumerically(">=", tries+3)))
		w.Expect(deletes()).To(BeEmpty())
		By("keeping the next one")
		w.requests.setSpoil(nil)
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Attempts", HaveExactElements(HaveField("Reason", v1alpha1.ReasonRewinding))))
		w.untilStopped(p)
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Attempts", HaveLen(2)))
		w.Expect(w.newest("work").Trigger).To(Equal(v1alpha1.AttemptRewind))
		w.Expect(w.reasons("work")).NotTo(ContainElement(v1alpha1.EventPodLost))
	})

	It("is stopped although the API server refuses the object of a checkpoint", func() {
		w := newWorld()
		p := w.running("work")
		quota := w.refuse("count/checkpoints.clew.dev", &v1alpha1.Checkpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "probe"},
			Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "work"}},
		})
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.change("work", builders.Suspended)
		w.untilStopped(p)
		task := w.until("work", v1alpha1.ReasonSuspended)
		w.Expect(task.Status.LatestCheckpoint).To(HaveField("Number", BeEquivalentTo(1)))
		w.Expect(w.client.Delete(w.ctx, quota)).To(Succeed())
		w.checkpoint("work-1")
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.LatestCheckpoint.Name", "work-1"))
	})

	It("is stopped although the object of a checkpoint cannot be made", func() {
		w := newWorld()
		p := w.running("work")
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/checkpoints") {
				return errors.New("failed calling a webhook")
			}
			return nil
		})
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.change("work", builders.Suspended)
		w.untilStopped(p)
		w.until("work", v1alpha1.ReasonSuspended)
		w.requests.setSpoil(nil)
		w.checkpoint("work-1")
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.LatestCheckpoint.Name", "work-1"))
	})

	It("converges although any response of the API server may be lost", func() {
		w := newWorld()
		var n atomic.Int64
		w.requests.setSpoil(func(r *http.Request) error {
			if strings.Contains(r.URL.Path, "/events") {
				return nil
			}
			switch n.Add(1) % 4 {
			case 1:
				return errAfterwards
			case 2:
				return errors.New("refused")
			}
			return nil
		})
		w.apply("work")
		p := w.newestPod("work", 1)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		By("losing the pod")
		w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
		p = w.newestPod("work", resources.Attempt(p)+1)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		By("completing the task")
		task := w.complete("work", p)
		var numbers []int64
		for _, a := range task.Status.Attempts {
			numbers = append(numbers, a.Number)
		}
		w.Expect(numbers).To(Equal(slices.Sorted(slices.Values(numbers))))
		w.Expect(slices.Compact(slices.Clone(numbers))).To(Equal(numbers), "no number is used twice")
		w.untilRecorded("work")
		reasons := w.reasons("work")
		w.Expect(reasons[0]).To(Equal(v1alpha1.EventTaskStarted))
		w.Expect(reasons[len(reasons)-1]).To(Equal(v1alpha1.EventTaskCompleted))
		w.checkpoint("work-1")
	})

	When("somebody forges its pod", func() {
		It("deletes that pod, and uses no number for it", func() {
			w := newWorld()
			p := w.running("work")
			forged := p.DeepCopy()
			forged.ObjectMeta.ResourceVersion, forged.ObjectMeta.UID, forged.Name = "", "", "forged"
			forged.Labels[v1alpha1.LabelAttempt] = "9223372036854775807"
			forged.Spec.NodeName = ""
			w.Expect(w.client.Create(w.ctx, forged)).To(Succeed())
			w.untilGone(forged)
			w.Expect(w.kubelet.AgentExits(w.ctx, p, 1)).To(Succeed())
			w.pod("work", 2)
		})
	})

	When("the status was restored from a backup", func() {
		It("gets a number greater than those in the history", func() {
			w := newWorld()
			p := w.running("work")
			w.stop()
			w.store.Begin(w.id("work"), 5) // attempts 2 to 5 were after the backup
			w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
			w.startManager()
			w.start(w.pod("work", 6))
			w.until("work", v1alpha1.ReasonRunning)
		})

		// Neither the history store nor the volume may still know a checkpoint that has an
		// object.
		It("passes its pod the highest number of a checkpoint", func() {
			w := newWorld()
			p := w.running("work")
			w.Expect(w.config(p).HighestCheckpoint).To(BeZero())
			number := w.record("work", v1alpha1.TriggerToolCalls, 1).Number
			w.checkpoint(resources.CheckpointName("work", number))
			w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
			w.Expect(w.config(w.newestPod("work", 2)).HighestCheckpoint).To(Equal(number))
		})
	})
})
