package controller_test

import (
	"errors"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a task", func() {
	It("costs at most twelve writes from apply to completed", func() {
		t := GinkgoTB()
		w := newWorld()
		p := w.running("work")
		w.store.Begin(w.id("work"), 1)
		w.store.SetTotals(w.id("work"), history.Totals{Messages: 12, ToolCalls: 5})
		task := w.complete("work", p)
		w.checkpoint("work-1")
		w.untilRecorded("work")
		w.Consistently(w.requests.list).WithTimeout(500*time.Millisecond).Should(WithTransform(
			func(writes []string) int { return len(writes) }, BeNumerically("<=", 12)), "writes, with all that follow")

		writes := w.requests.list()
		t.Logf("%d writes:\n  %s", len(writes), strings.Join(writes, "\n  "))
		w.Expect(task.Status.LatestCheckpoint.Name).To(Equal("work-1"))
		w.Expect(task.Status.MessageCount).To(BeEquivalentTo(12))
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionTrue))
		w.Expect(task).To(HaveCondition(v1alpha1.TaskDurable, metav1.ConditionTrue))
		w.Expect(w.reasons("work")).To(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted}))
	})

	It("does not change when the same manifest is applied a hundred times", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		w.checkpoint("work-1")
		w.change("work", builders.Rewind("back", "work-1"))
		w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 0, daemonapi.PrepareResult{Operation: "back"})).To(Succeed())
		w.until("work", v1alpha1.ReasonRewound)
		before := w.untilRecorded("work")

		By("applying a manifest that requests what was done already")
		manifest := builders.Task("work", builders.InNamespace(w.namespace), builders.Rewind("back", "work-1"))
		apply := func() {
			w.Helper()
			object := manifest.DeepCopy()
			object.ManagedFields = nil
			//nolint:staticcheck // the typed apply of the client needs generated configurations
			w.Expect(w.client.Patch(w.ctx, object, client.Apply, client.FieldOwner("gitops"), client.ForceOwnership)).To(Succeed())
		}
		apply() // the first one takes over the fields
		owned := w.task("work")
		w.Expect(owned.Generation).To(Equal(before.Generation))
		for range 100 {
			apply()
		}
		w.Consistently(func() string { return w.task("work").ResourceVersion }).
			WithTimeout(200 * time.Millisecond).Should(Equal(owned.ResourceVersion))
		w.Expect(w.task("work").Status).To(Equal(before.Status))
	})

	It("is suspended, and continues", func() {
		w := newWorld()
		p := w.running("work")
		By("suspending it")
		w.change("work", builders.Suspended)
		w.until("work", v1alpha1.ReasonSuspending)
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(p)
		task := w.until("work", v1alpha1.ReasonSuspended)
		w.Expect(task).To(HaveCondition(v1alpha1.TaskDurable, metav1.ConditionTrue))
		w.Expect(task.Status.LatestCheckpoint.Name).To(Equal("work-1"))

		By("resuming it")
		w.change("work", builders.Running, builders.Resume("on"))
		p = w.pod("work", 2)
		w.Expect(w.operation(p)).To(HaveField("ID", "on"))
		w.start(p)
		task = w.until("work", v1alpha1.ReasonRunning)
		w.Expect(task.Status.Resume.State).To(Equal(v1alpha1.OperationCompleted))
		w.complete("work", p)
		w.untilRecorded("work")
		w.Expect(w.reasons("work")).To(Equal([]string{
			v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed, v1alpha1.EventTaskCompleted,
		}))
	})

	It("gets a new pod and a new volume for lost ones", func() {
		w := newWorld()
		p := w.running("work")
		first := &corev1.PersistentVolumeClaim{}
		key := client.ObjectKey{Namespace: w.namespace, Name: resources.ClaimName("work")}
		w.Expect(w.client.Get(w.ctx, key, first)).To(Succeed())
		By("losing the pod while the volume is being deleted")
		w.Expect(w.client.Delete(w.ctx, first)).To(Succeed()) // it stays while a pod uses it
		w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
		w.until("work", v1alpha1.ReasonVolumeUnavailable)
		w.Expect(w.client.Get(w.ctx, key, first)).To(Succeed())
		By("losing the volume")
		w.edit(first, func() { first.Finalizers = nil })

		w.pod("work", 2)
		second := &corev1.PersistentVolumeClaim{}
		w.Expect(w.client.Get(w.ctx, key, second)).To(Succeed())
		w.Expect(second.UID).NotTo(Equal(first.UID))
		w.Expect(w.task("work").Status.ClaimUID).To(BeEquivalentTo(second.UID))
		w.Eventually(func() []string { return w.reasons("work") }).Should(Equal([]string{
			v1alpha1.EventTaskStarted, v1alpha1.EventPodLost, v1alpha1.EventVolumeLost, v1alpha1.EventTaskRetried,
		}))
	})

	It("retries a failing agent, and then gives up", func() {
		w := newWorld()
		p := w.running("work", builders.BackoffLimit(1))
		By("failing once, which the backoff limit allows")
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(Succeed())
		p = w.pod("work", 2)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
		w.untilGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "work-1"}})
		By("failing once more")
		w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(Succeed())
		task := w.until("work", v1alpha1.ReasonBackoffLimit)
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionFalse))

		By("resuming it")
		w.change("work", builders.Resume("again"))
		w.start(w.pod("work", 3))
		w.until("work", v1alpha1.ReasonRunning)
	})

	It("retries to create a pod that was refused", func() {
		w := newWorld()
		By("refusing pods by a quota")
		quota := w.refuse(corev1.ResourcePods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "probe"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		})

		w.apply("work")
		task := w.until("work", v1alpha1.ReasonPodRefused)
		w.Expect(task.Status.Attempts).To(HaveLen(1))
		w.change("work", builders.BackoffLimit(5)) // any change enqueues it again
		w.Eventually(func() []string { return w.reasons("work") }).Should(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskHindered}))
		By("deleting the quota")
		w.Expect(w.client.Delete(w.ctx, quota)).To(Succeed())
		w.change("work", builders.BackoffLimit(7)) // any change enqueues it again
		w.pod("work", 1)
	})

	It("announces no attempt while its volume is refused", func() {
		w := newWorld()
		quota := w.refuse(corev1.ResourcePersistentVolumeClaims, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "probe"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		})
		w.apply("work")
		task := w.until("work", v1alpha1.ReasonVolumeUnavailable)
		w.Expect(task.Status.Attempts).To(BeEmpty())
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionUnknown))
		w.change("work", builders.BackoffLimit(5)) // any change enqueues it again
		w.Expect(w.client.Delete(w.ctx, quota)).To(Succeed())
		w.change("work", builders.BackoffLimit(7))
		w.start(w.pod("work", 1))
		task = w.until("work", v1alpha1.ReasonRunning)
		claim := &corev1.PersistentVolumeClaim{}
		w.Expect(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: resources.ClaimName("work")}, claim)).To(Succeed())
		w.Expect(task.Status.ClaimUID).To(BeEquivalentTo(claim.UID))
		w.Expect(w.reasons("work")).NotTo(ContainElement(v1alpha1.EventVolumeLost))
	})

	It("emits an Event for every transition", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		w.Eventually(func() []string {
			list := &corev1.EventList{}
			w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
			var reasons []string
			for _, e := range list.Items {
				if e.InvolvedObject.Kind == "Task" {
					reasons = append(reasons, e.Reason)
				}
			}
			slices.Sort(reasons)
			return reasons
		}).Should(Equal([]string{v1alpha1.EventTaskCompleted, v1alpha1.EventTaskStarted}))
	})

	It("shows a problem of its sidecar as a condition and an Event", func() {
		w := newWorld()
		w.running("work")
		w.store.Begin(w.id("work"), 1)
		By("reporting the problem")
		w.store.SetProblem(w.id("work"), &history.Problem{Reason: v1alpha1.ReasonVolumeFull, Message: "the volume is full: enlarge it"})
		task := w.until("work", v1alpha1.ReasonVolumeFull)
		w.Expect(task).To(HaveCondition(v1alpha1.TaskSucceeded, metav1.ConditionUnknown))
		w.Eventually(func() []string {
			list := &corev1.EventList{}
			w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
			var warnings []string
			for _, e := range list.Items {
				if e.Type == corev1.EventTypeWarning {
					warnings = append(warnings, e.Reason+" "+e.Message)
				}
			}
			return warnings
		}).Should(Equal([]string{"TaskHindered VolumeFull: the volume is full: enlarge it"}))
		By("reporting its end")
		w.store.SetProblem(w.id("work"), nil)
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.reasons("work")).To(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskHindered}))
	})

	When("it is deleted", func() {
		It("stays until everything is recorded", func() {
			w := newWorld()
			p := w.running("work")
			id := w.id("work")
			By("deleting it while the history store is down")
			w.store.SetDown(true)
			task := w.task("work")
			w.Expect(w.client.Delete(w.ctx, task)).To(Succeed())
			w.untilStopped(p)
			w.Eventually(w.current).WithArguments("work").Should(haveMessage(v1alpha1.TaskHistoryRecorded, ContainSubstring("the deletion waits for the history store")))

			By("bringing the history store back")
			w.store.SetDown(false)
			w.untilGone(task)
			events := w.store.Events(id.UID)
			w.Expect(events[len(events)-1].Reason).To(Equal(v1alpha1.EventTaskDeleted))
		})

		It("keeps a volume whose retention is Retain", func() {
			w := newWorld()
			w.running("work")
			w.change("work", builders.Suspended, func(t *v1alpha1.Task) { t.Spec.Workspace.Retention = v1alpha1.WorkspaceRetain })
			w.untilStopped(w.pod("work", 1))
			w.until("work", v1alpha1.ReasonSuspended)
			task := w.task("work")
			w.Expect(w.client.Delete(w.ctx, task)).To(Succeed())
			w.untilGone(task)
			claim := &corev1.PersistentVolumeClaim{}
			w.Expect(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: resources.ClaimName("work")}, claim)).To(Succeed())
			w.Expect(claim.OwnerReferences).To(BeEmpty())
		})
	})

	When("the history store is down", func() {
		It("records the transitions of that time once and in order", func() {
			w := newWorld()
			p := w.running("work")
			By("losing three pods while the history store is down")
			w.store.SetDown(true)
			for attempt := int64(2); attempt <= 4; attempt++ {
				w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
				p = w.pod("work", attempt)
				w.start(p)
				w.until("work", v1alpha1.ReasonRunning)
			}
			w.Eventually(w.current).WithArguments("work").Should(HaveCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionFalse))
			By("restarting the manager and bringing the history store back")
			w.restartManager()
			w.store.SetDown(false)
			w.complete("work", p)
			task := w.untilRecorded("work")

			events := w.store.Events(string(task.UID))
			w.Expect(events).To(HaveLen(int(task.Status.HistorySequence)))
			for i, e := range events {
				w.Expect(e.ID).To(Equal(history.EventID(string(task.UID), int64(i+1))))
			}
			w.Expect(w.reasons("work")).To(Equal([]string{
				v1alpha1.EventTaskStarted,
				v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
				v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
				v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
				v1alpha1.EventTaskCompleted,
			}))
		})
	})
})

var _ = Describe("an error of a reconciler", func() {
	It("is retried according to its class", func() {
		t := GinkgoTB()
		conflict := apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), "work", errors.New("changed"))
		w := NewWithT(t)
		By("a conflict")
		result, err := requeue.Result(testLogger(), conflict)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result.RequeueAfter).To(Equal(requeue.AfterConflict))
		By("an outage of the history store")
		result, err = requeue.Result(testLogger(), history.ErrUnavailable)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result.RequeueAfter).To(Equal(requeue.AfterOutage))
		By("any other error")
		_, err = requeue.Result(testLogger(), errors.New("other"))
		w.Expect(err).To(HaveOccurred())
	})
})

// refuse makes the API server refuse what the probe is one of, until the quota is deleted.
func (w *world) refuse(what corev1.ResourceName, probe client.Object) *corev1.ResourceQuota {
	w.Helper()
	none := corev1.ResourceList{what: resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	w.Expect(w.client.Create(w.ctx, quota)).To(Succeed())
	quota.Status.Hard, quota.Status.Used = none, none.DeepCopy()
	w.Expect(w.client.Status().Update(w.ctx, quota)).To(Succeed())
	w.Eventually(func() error { return w.client.Create(w.ctx, probe, client.DryRunAll) }).ShouldNot(Succeed())
	return quota
}
