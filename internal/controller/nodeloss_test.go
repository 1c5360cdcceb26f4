package controller_test

import (
	"errors"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// nodeLoss makes a task go on without its node after 30 seconds.
func nodeLoss(t *v1alpha1.Task) {
	t.Spec.NodeLoss = v1alpha1.NodeLoss{AfterSeconds: 30, Policy: v1alpha1.NodeLossReplace}
}

// node is the node of the spec's own.
func (w *world) node() string { return "node-of-" + w.namespace }

// podHere waits for the pod of an attempt, and assigns it to the spec's own node.
func (w *world) podHere(name string, attempt int64) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{}
	key := client.ObjectKey{Namespace: w.namespace, Name: resources.PodName(name, attempt)}
	w.Eventually(func() error { return w.client.Get(w.ctx, key, p) }).Should(Succeed(), "pod %s", key.Name)
	w.Expect(w.kubelet.EnsureNode(w.ctx, builders.Node)).To(Succeed(), "another node that can be reached")
	w.Expect(w.kubelet.BindTo(w.ctx, p, w.node())).To(Succeed())
	return p
}

// runningHere applies a task, and starts its agent on the spec's own node.
func (w *world) runningHere(name string) *corev1.Pod {
	w.Helper()
	w.apply(name, nodeLoss)
	p := w.podHere(name, 1)
	w.start(p)
	w.until(name, v1alpha1.ReasonRunning)
	w.store.Begin(w.id(name), 1)
	return p
}

// podAfter waits for the pod of an attempt that follows another one, and assigns it to a node. Of a
// reserved attempt no pod may have been made.
func (w *world) podAfter(name string, attempt int64) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{}
	w.Eventually(func() error {
		task, err := w.current(name)
		if err != nil {
			return err
		}
		last := task.Status.Attempts[len(task.Status.Attempts)-1]
		if last.Number <= attempt {
			return errors.New("no attempt follows")
		}
		return w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: last.PodName}, p)
	}).Should(Succeed())
	w.Expect(w.kubelet.Bind(w.ctx, p)).To(Succeed())
	return p
}

// aheadClock is a clock that is ahead.
type aheadClock struct {
	clock.RealClock
	by time.Duration
}

// Now implements clock.PassiveClock.
func (c aheadClock) Now() time.Time { return c.RealClock.Now().Add(c.by) }

// later lets time pass for the controller of Tasks.
func (w *world) later(by time.Duration) {
	w.Helper()
	w.ahead += by
	w.restartManager()
}

// setNode makes the spec's own node one that can or cannot be reached from now on.
func (w *world) setNode(ready corev1.ConditionStatus) {
	w.Helper()
	w.Eventually(func() error {
		node := &corev1.Node{}
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: w.node()}, node); err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.Now()}}
		return w.client.Status().Update(w.ctx, node)
	}).Should(Succeed())
}

// claimNamed returns a claim; nil if it does not exist.
func (w *world) claimNamed(name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return claim, err
}

// bindVolume makes a volume for a task's claim that only the spec's own node can attach.
func (w *world) bindVolume(name string) {
	w.Helper()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume-of-" + w.namespace}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/volume"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{w.node()}}},
		}}}},
	}}
	w.Expect(w.client.Create(w.ctx, volume)).To(Succeed())
	node := &corev1.Node{}
	node.Name = w.node()
	w.edit(node, func() { node.Labels = map[string]string{corev1.LabelHostname: w.node()} })
	claim, err := w.claim(name)
	w.Expect(err).NotTo(HaveOccurred())
	w.edit(claim, func() { claim.Spec.VolumeName = volume.Name })
}

var _ = Describe("a task whose node cannot be reached", func() {
	It("goes on elsewhere with another volume, and the former one is deleted when its pod is gone", func() {
		for name, lost := range map[string]error{"no write": nil, "each write before it arrives": errors.New("it never arrived"), "the answer to each write": errAfterwards} {
			By("losing " + name)
			w := newWorld()
			p := w.runningHere("work")
			w.record("work", v1alpha1.TriggerToolCalls, 1)
			seen := map[string]bool{}
			w.requests.setSpoil(func(r *http.Request) error {
				if key := r.Method + " " + r.URL.Path; lost != nil && !strings.Contains(key, "/leases") && !strings.Contains(key, "/events") && !seen[key] {
					seen[key] = true
					return lost
				}
				return nil
			})
			w.setNode(corev1.ConditionUnknown)
			w.later(time.Minute)
			w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.ClaimName", "work.2-workspace"))
			second := w.podAfter("work", 1)
			w.Expect(resources.MountedClaim(second)).To(Equal("work.2-workspace"))
			task := w.task("work")
			w.Expect(task.Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptNodeLost))
			w.Expect(task.Status.FormerClaims).To(HaveLen(1))
			w.Eventually(w.objects.Object(p.DeepCopy())).Should(HaveField("DeletionTimestamp", Not(BeNil())), "the lost pod is deleted")
			w.Consistently(w.claim).WithArguments("work").WithTimeout(300*time.Millisecond).Should(HaveField("DeletionTimestamp", BeNil()), "its pod may still use the former volume")
			w.unused("work")

			w.start(second)
			w.until("work", v1alpha1.ReasonRunning)
			w.untilStopped(p)
			w.Eventually(w.claim).WithArguments("work").Should(BeNil())
			w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.FormerClaims", BeEmpty()))
			w.Eventually(w.reasons).WithArguments("work").Should(ContainElements(v1alpha1.EventNodeLost, v1alpha1.EventVolumeLost, v1alpha1.EventTaskRetried))
			w.Expect(countOf(w.reasons("work"), v1alpha1.EventVolumeLost)).To(Equal(1))
		}
	})

	It("says so while it waits, and nothing else happens if the node is back", func() {
		w := newWorld()
		p := w.runningHere("work")
		w.setNode(corev1.ConditionFalse)
		w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskSucceeded, v1alpha1.ReasonNodeUnreachable))
		w.Expect(w.task("work").Status.UnreachableNode).To(HaveField("Name", w.node()))
		w.setNode(corev1.ConditionTrue)
		task := w.until("work", v1alpha1.ReasonRunning)
		w.Expect(task.Status.UnreachableNode).To(BeNil())
		w.Expect(task.Status.Attempts).To(HaveLen(1))
		w.Expect(w.objects.Object(p.DeepCopy())()).To(HaveField("DeletionTimestamp", BeNil()))
		w.Eventually(w.reasons).WithArguments("work").Should(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventNodeUnreachable}))
	})

	It("gets another volume when it is resumed, if its own is bound to the node", func() {
		w := newWorld()
		p := w.runningHere("work")
		w.bindVolume("work")
		w.change("work", builders.Suspended)
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(p)
		w.until("work", v1alpha1.ReasonSuspended)
		w.setNode(corev1.ConditionUnknown)
		w.change("work", builders.Running)
		w.Eventually(w.current).WithArguments("work").Should(haveMessage(v1alpha1.TaskSucceeded, ContainSubstring("has the task's volume")))
		w.later(time.Minute)
		second := w.pod("work", 2)
		w.Expect(resources.MountedClaim(second)).To(Equal("work.2-workspace"))
		w.unused("work")
		w.Eventually(w.claim).WithArguments("work").Should(BeNil())
	})

	It("is deleted without its pod, and so are its volumes", func() {
		w := newWorld()
		w.runningHere("work")
		w.unused("work")
		w.setNode(corev1.ConditionUnknown)
		w.later(time.Minute)
		second := w.pod("work", 2)
		task := w.task("work")
		w.Expect(w.client.Delete(w.ctx, task)).To(Succeed())
		w.untilStopped(second)
		w.untilGone(task)
		former, err := w.claimNamed("work-workspace")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(former).To(Or(BeNil(), HaveField("DeletionTimestamp", Not(BeNil()))))
	})
})
