package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var _ = Describe("A task that depends on others", func() {
	It("waits without pod and volume until they have completed, and starts from what one of them then has", func() {
		w := newWorld()
		w.apply("second", builders.DependsOn("first"), builders.StartFrom("first", ""))
		w.until("second", v1alpha1.ReasonWaitingForTasks)
		w.Expect(w.task("second")).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("first (does not exist yet)")))
		p := w.running("first")
		w.store.Begin(w.id("first"), 1)
		w.Eventually(w.current).WithArguments("second").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("first (has not ended)")))
		w.record("first", v1alpha1.TriggerManual, 1)
		w.checkpoint("first-1")
		w.Expect(w.task("second").Status.Source).To(BeNil(), "the source is resolved only when the wait is over")
		w.Expect(w.pods("second")).To(BeEmpty())
		w.Expect(w.claims("second")).To(BeEmpty())

		w.complete("first", p)
		w.pod("second", 1)
		second := w.task("second")
		w.Expect(second.Status.Source.Checkpoint).To(BeEquivalentTo(2), "the checkpoint of its completion")
		w.Expect(second.Status.Dependencies).To(ConsistOf(And(
			HaveField("Name", "first"), HaveField("State", v1alpha1.DependencyMet), HaveField("TaskUID", string(w.task("first").UID)))))
		w.Eventually(w.reasons).WithArguments("second").Should(ContainElements(v1alpha1.EventTaskWaiting, v1alpha1.EventTaskStarted))
		w.Expect(w.task("first").Status.StartedTasks).To(Or(BeEmpty(), HaveLen(1)))
	})

	It("says which of them failed, which says who waits, and goes on by itself when that one completes", func() {
		w := newWorld()
		p := w.running("first", builders.BackoffLimit(0))
		w.apply("second", builders.DependsOn("first"))
		w.apply("either", builders.DependsOn("first"), builders.Finished)
		w.until("second", v1alpha1.ReasonWaitingForTasks)
		w.until("either", v1alpha1.ReasonWaitingForTasks)
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(Succeed())
		w.pod("either", 1)
		w.until("second", v1alpha1.ReasonDependencyFailed)
		w.Eventually(w.current).WithArguments("first").Should(haveMessage(v1alpha1.TaskSucceeded, HaveSuffix("; task second waits for it")))

		By("a third one that begins to wait, and leaves again")
		w.apply("third", builders.DependsOn("first"))
		w.until("third", v1alpha1.ReasonDependencyFailed)
		w.Eventually(w.current).WithArguments("first").Should(haveMessage(v1alpha1.TaskSucceeded, HaveSuffix("; tasks second and third wait for it")))
		w.Expect(w.client.Delete(w.ctx, w.task("third"))).To(Succeed())
		w.Eventually(w.current).WithArguments("first").Should(haveMessage(v1alpha1.TaskSucceeded, HaveSuffix("; task second waits for it")))

		w.change("first", builders.Resume("again"))
		p = w.pod("first", 2)
		w.start(p)
		w.until("second", v1alpha1.ReasonWaitingForTasks)
		w.complete("first", p)
		w.pod("second", 1)
	})

	It("does not wait for one that is gone and had completed", func() {
		w := newWorld()
		p := w.running("first")
		w.store.Begin(w.id("first"), 1)
		w.complete("first", p)
		w.untilRecorded("first")
		first := w.task("first")
		w.Expect(w.client.Delete(w.ctx, first)).To(Succeed())
		w.untilGone(first)
		w.apply("second", builders.DependsOn("first"))
		w.pod("second", 1)
		w.Expect(w.task("second").Status.Dependencies).To(ConsistOf(HaveField("TaskUID", string(first.UID))))
	})

	It("does not wait for one that is gone and had failed without a word of its agent, if that is enough", func() {
		w := newWorld()
		w.apply("first", builders.Deadline(1))
		p := w.pod("first", 1)
		w.start(p)
		w.store.Begin(w.id("first"), 1)
		w.untilStopped(p)
		w.until("first", v1alpha1.ReasonDeadlineExceeded)
		w.untilRecorded("first")
		first := w.task("first")
		w.Expect(w.client.Delete(w.ctx, first)).To(Succeed())
		w.untilGone(first)
		w.apply("second", builders.DependsOn("first"))
		w.apply("either", builders.DependsOn("first"), builders.Finished)
		w.pod("either", 1)
		w.Eventually(w.current).WithArguments("second").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("first (is gone, and had failed)")))
	})

	It("waits on when one is gone that had not completed, and goes on when another of its name completes", func() {
		w := newWorld()
		p := w.running("first")
		w.store.Begin(w.id("first"), 1)
		w.apply("second", builders.DependsOn("first"))
		w.until("second", v1alpha1.ReasonWaitingForTasks)
		first := w.task("first")
		w.Expect(w.client.Delete(w.ctx, first)).To(Succeed())
		w.untilStopped(p)
		w.untilGone(first)
		w.Eventually(w.current).WithArguments("second").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("first (is gone, and had not completed)")))
		w.Expect(w.client.DeleteAllOf(w.ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(w.namespace))).To(Succeed())
		claim := w.claims("first")[0] // the garbage collector would delete it, and the kubelet release it
		w.edit(&claim, func() { claim.Finalizers = nil })
		w.complete("first", w.running("first"))
		w.pod("second", 1)
	})

	It("is told of a circle of three, and goes on when that is broken", func() {
		w := newWorld()
		w.apply("a", builders.DependsOn("b"))
		w.until("a", v1alpha1.ReasonWaitingForTasks)
		w.apply("b", builders.DependsOn("c"))
		w.apply("c", builders.DependsOn("a"))
		for name, circle := range map[string]string{"a": "a → b → c → a", "b": "b → c → a → b", "c": "c → a → b → c"} {
			w.until(name, v1alpha1.ReasonDependencyCircle)
			w.Expect(w.task(name)).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring(circle)))
			w.Expect(w.pods(name)).To(BeEmpty())
		}
		w.change("b", func(t *v1alpha1.Task) { t.Spec.DependsOn = nil })
		p := w.pod("b", 1)
		w.until("a", v1alpha1.ReasonWaitingForTasks)
		w.until("c", v1alpha1.ReasonWaitingForTasks)
		w.start(p)
		w.complete("b", p)
		p = w.pod("a", 1)
		w.start(p)
		w.complete("a", p)
		w.pod("c", 1)
	})

	It("notes what is met while it is suspended, and is written only when something changes", func() {
		w := newWorld()
		w.grace = time.Hour
		w.restartManager()
		p := w.running("first")
		w.apply("second", builders.DependsOn("first"), builders.Suspended)
		w.until("second", v1alpha1.ReasonSuspended)
		w.store.Begin(w.id("first"), 1)
		w.complete("first", p)
		w.Eventually(w.current).WithArguments("second").Should(HaveField("Status.Dependencies", ConsistOf(HaveField("State", v1alpha1.DependencyMet))))
		w.change("first", func(t *v1alpha1.Task) {
			builders.Resume("follow-up")(t)
			t.Spec.Resume.Prompt = "One more thing."
		})
		w.pod("first", 2)
		version := w.task("second").ResourceVersion
		w.restartManager()
		w.start(w.pod("first", 2))
		w.until("first", v1alpha1.ReasonRunning)
		w.Expect(w.task("second").ResourceVersion).To(Equal(version))
		w.change("second", builders.Running)
		w.pod("second", 1)
	})
})

var _ = Describe("A pod with a scheduling gate that is not Clew's", func() {
	It("is a task in a queue, for as long as it takes, and goes on when the gate is lifted", func() {
		w := newWorld()
		w.apply("work", func(t *v1alpha1.Task) {
			t.Spec.Template.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "team"}
			t.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
		})
		key := client.ObjectKey{Namespace: w.namespace, Name: "work-1"}
		p := &corev1.Pod{}
		w.until("work", v1alpha1.ReasonQueued)
		w.Expect(w.client.Get(w.ctx, key, p)).To(Succeed())
		w.Expect(p.Labels).To(HaveKeyWithValue("kueue.x-k8s.io/queue-name", "team"))
		w.Expect(w.task("work")).To(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("its scheduling gate kueue.x-k8s.io/admission to be lifted")))
		version := w.untilSettled("work")
		w.Consistently(func() string { return w.task("work").ResourceVersion }).WithTimeout(time.Second).Should(Equal(version))

		By("being evicted while it is gated")
		w.Expect(w.client.Delete(w.ctx, p)).To(Succeed())
		key.Name = "work-2"
		w.Eventually(func() error { return w.client.Get(w.ctx, key, p) }).Should(Succeed())
		w.Expect(w.task("work").Status.Failures).To(BeZero())
		w.Expect(w.task("work").Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptPodLost))

		w.until("work", v1alpha1.ReasonQueued)
		w.edit(p, func() { p.Spec.SchedulingGates = nil })
		w.start(w.pod("work", 2))
		w.until("work", v1alpha1.ReasonRunning)
		w.Eventually(w.reasons).WithArguments("work").Should(ContainElement(v1alpha1.EventPodGated))
		w.Expect(w.config(p)).To(HaveField("Operation", (*daemonapi.Operation)(nil)))
	})
})

// untilSettled waits until a task's transitions are recorded, and returns its version.
func (w *world) untilSettled(name string) string {
	w.Helper()
	w.Eventually(w.reasons).WithArguments(name).Should(HaveLen(int(w.task(name).Status.HistorySequence)))
	return w.task(name).ResourceVersion
}

// pods lists the pods of a task.
func (w *world) pods(name string) []corev1.Pod {
	w.Helper()
	list := &corev1.PodList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelTask: name})).To(Succeed())
	return list.Items
}

// claims lists the claims of a task.
func (w *world) claims(name string) []corev1.PersistentVolumeClaim {
	w.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelTask: name})).To(Succeed())
	return list.Items
}

// reasonOf returns the reason of a task's condition Succeeded.
func reasonOf(t *v1alpha1.Task) string {
	for _, c := range t.Status.Conditions {
		if c.Type == v1alpha1.TaskSucceeded {
			return c.Reason
		}
	}
	return ""
}
