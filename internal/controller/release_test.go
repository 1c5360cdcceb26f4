package controller_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

func releasing(t *v1alpha1.Task) { t.Spec.Workspace.WhenSuspended = v1alpha1.WhenSuspendedRelease }

func onFinish(action v1alpha1.FinishAction) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: 1, Action: action} }
}

// claim returns the task's claim; nil if it has none.
func (w *world) claim(name string) (*corev1.PersistentVolumeClaim, error) {
	return w.claimNamed(resources.ClaimName(name))
}

// unused makes the task's claim one that no pod uses, so that a deletion takes effect at once: that is
// up to a controller which the test's cluster does not have.
func (w *world) unused(name string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: resources.ClaimName(name)}}
	w.Expect(w.client.Patch(w.ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
}

// verify lets the gitstore's copy of a checkpoint be verified once that is requested.
func (w *world) verify(name string, number int64) {
	w.Helper()
	w.Eventually(w.store.RequestedVerifications).WithArguments(w.id(name)).Should(ContainElement(number))
	w.store.SetIntegrity(w.id(name), number, history.Integrity{Verified: time.Now()})
}

// asleep applies a task that gives its volume back, and suspends it with its first checkpoint.
func (w *world) asleep(name string, options ...builders.TaskOption) {
	w.Helper()
	p := w.running(name, append(options, releasing)...)
	w.store.Begin(w.id(name), 1)
	w.unused(name)
	w.change(name, builders.Suspended)
	w.record(name, v1alpha1.TriggerSuspend, 1)
	w.store.SetStored(w.id(name), 1)
	w.untilStopped(p)
	w.until(name, v1alpha1.ReasonSuspended)
}

// countOf returns how often one is among all.
func countOf(all []string, one string) int {
	return len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s != one }))
}

var _ = Describe("a suspended task that gives its volume back", func() {
	It("does so once its last checkpoint is verified, and gets another one when it is resumed", func() {
		w := newWorld()
		w.asleep("work")
		first, err := w.claim("work")
		w.Expect(err).NotTo(HaveOccurred())
		w.Eventually(w.current).WithArguments("work").Should(haveMessage(v1alpha1.TaskVolumeReleased, ContainSubstring("until checkpoint 1 is verified")))
		w.Expect(first).NotTo(BeNil())
		w.verify("work", 1)
		w.Eventually(w.claim).WithArguments("work").Should(BeNil())
		task := w.untilRecorded("work")
		w.Expect(task).To(HaveReason(v1alpha1.TaskVolumeReleased, v1alpha1.ReasonReleased))
		w.Expect(task).To(HaveReason(v1alpha1.TaskWorkspaceReady, v1alpha1.ReasonReleased))
		w.Expect(task.Status.Released).To(And(HaveField("ClaimUID", BeEquivalentTo(first.UID)), HaveField("Checkpoint", BeEquivalentTo(1))))
		w.Expect(task.Status.ClaimUID).To(BeEmpty())

		w.change("work", builders.Running)
		p := w.pod("work", 2)
		w.Expect(w.config(p).VolumeReleased).To(BeTrue())
		second, err := w.claim("work")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(second.UID).NotTo(Equal(first.UID))
		w.start(p)
		task = w.until("work", v1alpha1.ReasonRunning)
		w.Expect(task.Status.ClaimUID).To(BeEquivalentTo(second.UID))
		w.Expect(task.Status.Released).To(BeNil())
		w.Eventually(w.reasons).WithArguments("work").Should(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventVolumeReleased, v1alpha1.EventTaskResumed}))
	})

	It("does so in the same way whatever write the manager loses", func() {
		for name, lost := range map[string]error{"before it": errors.New("it never arrived"), "its answer": errAfterwards} {
			By("losing each write: " + name)
			w := newWorld()
			w.asleep("work")
			seen := map[string]bool{}
			w.requests.setSpoil(func(r *http.Request) error {
				if key := r.Method + " " + r.URL.Path; !strings.Contains(key, "/leases") && !strings.Contains(key, "/events") && !seen[key] {
					seen[key] = true
					return lost
				}
				return nil
			})
			w.verify("work", 1)
			w.Eventually(w.claim).WithArguments("work").Should(BeNil())
			w.restartManager()
			w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskVolumeReleased, v1alpha1.ReasonReleased))
			w.untilRecorded("work")
			w.Expect(countOf(w.reasons("work"), v1alpha1.EventVolumeReleased)).To(Equal(1))
			w.Expect(seen).To(HaveKey(ContainSubstring("DELETE")))
		}
	})

	It("never deletes another claim of that name", func() {
		w := newWorld()
		w.asleep("work")
		stranger := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: resources.ClaimName("work")},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		var began, came atomic.Bool
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims/"+stranger.Name) && began.CompareAndSwap(false, true) {
				own := stranger.DeepCopy()
				defer came.Store(true)
				return errors.Join(w.client.Delete(w.ctx, own), w.client.Create(w.ctx, stranger))
			}
			return nil
		})
		w.verify("work", 1)
		w.Eventually(came.Load).Should(BeTrue())
		w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskVolumeReleased, v1alpha1.ReasonReleased))
		w.Consistently(w.claim, "500ms").WithArguments("work").Should(And(HaveField("UID", stranger.UID), HaveField("DeletionTimestamp", BeNil())))
	})

	It("keeps it while the history store has not everything that it held, and says so", func() {
		w := newWorld()
		p := w.running("work", releasing)
		w.store.Begin(w.id("work"), 1)
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.change("work", builders.Suspended)
		w.untilStopped(p) // its daemon was killed before it took its last checkpoint
		w.until("work", v1alpha1.ReasonSuspended)
		w.Eventually(w.current).WithArguments("work").Should(haveMessage(v1alpha1.TaskVolumeReleased, ContainSubstring("its last pod has not said that it had sent everything")))
		w.store.SetIntegrity(w.id("work"), 1, history.Integrity{Verified: time.Now()})
		w.Consistently(w.claim, "300ms").WithArguments("work").Should(HaveField("DeletionTimestamp", BeNil()))
	})
})

var _ = Describe("a finished task", func() {
	It("is released at its time, stays, and can be resumed", func() {
		w := newWorld()
		p := w.running("work", onFinish(v1alpha1.FinishRelease))
		w.store.Begin(w.id("work"), 1)
		w.unused("work")
		w.recordMany("work", 4)
		w.checkpoint("work-4")
		w.retain("work-2", v1alpha1.CheckpointKept)
		w.complete("work", p)
		w.store.SetStored(w.id("work"), 1)
		w.checkpoint("work-5")
		w.verify("work", 5)
		w.Eventually(w.claim).WithArguments("work").Should(BeNil())
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-2", "work-5"}))
		w.untilGone(p)
		task := w.untilRecorded("work")
		w.Expect(task).To(HaveReason(v1alpha1.TaskSucceeded, v1alpha1.ReasonCompleted))
		w.Expect(w.reasons("work")).To(Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted, v1alpha1.EventTaskReleased}))
		w.Expect(task.Status.Released.Time.Sub(task.Status.FinishedTime.Time)).To(BeNumerically(">=", time.Second))

		w.change("work", builders.Resume("more"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "And one more thing." })
		w.pod("work", 2)
		w.Expect(w.claim("work")).NotTo(BeNil())
	})

	It("is deleted at its time, by Clew", func() {
		w := newWorld()
		p := w.running("work", onFinish(v1alpha1.FinishDelete))
		id := w.id("work")
		w.store.SetStored(id, 1)
		w.complete("work", p)
		w.verify("work", 1)
		w.untilGone(&v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "work"}})
		events := w.store.Events(id.UID)
		w.Expect(events[len(events)-2:]).To(HaveExactElements(
			HaveField("Reason", v1alpha1.EventTaskReleased),
			And(HaveField("Reason", v1alpha1.EventTaskDeleted), HaveField("Actor", "clew"), HaveField("Message", ContainSubstring("as spec.onFinish says"))),
		))
	})

	It("is not deleted before its children have finished, and nothing of them is lost", func() {
		w := newWorld()
		w.grace = time.Hour // nothing is looked at again by itself
		w.restartManager()
		lead := w.running("lead", leads("port"), onFinish(v1alpha1.FinishDelete))
		child := w.running("child", childOf("lead"))
		w.complete("lead", lead)
		w.store.SetStored(w.id("lead"), 1)
		w.Eventually(w.current).WithArguments("lead").Should(haveMessage(v1alpha1.TaskVolumeReleased, ContainSubstring("1 of them has not finished: child")))

		w.complete("child", child)
		w.Eventually(w.current).WithArguments("lead").Should(HaveReason(v1alpha1.TaskVolumeReleased, v1alpha1.ReasonReleasingChildren))
		w.Eventually(w.current).WithArguments("child").Should(haveMessage(v1alpha1.TaskVolumeReleased, ContainSubstring("has not said that it had sent everything")))
		w.unused("child")
		w.store.SetStored(w.id("child"), 1)
		w.verify("child", 1)
		w.Eventually(w.current).WithArguments("child").Should(HaveReason(v1alpha1.TaskVolumeReleased, v1alpha1.ReasonReleased))
		w.Eventually(w.claim).WithArguments("child").Should(BeNil())

		w.verify("lead", 1)
		w.Eventually(w.tasks).Should(BeEmpty())
	})

	It("is not deleted if it is changed before", func() {
		w := newWorld()
		p := w.running("work", onFinish(v1alpha1.FinishDelete))
		w.store.SetStored(w.id("work"), 1)
		w.complete("work", p)
		var changed atomic.Bool
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/tasks/work") && changed.CompareAndSwap(false, true) {
				w.change("work", func(t *v1alpha1.Task) { t.Spec.OnFinish = nil })
			}
			return nil
		})
		w.verify("work", 1)
		w.Eventually(changed.Load).Should(BeTrue())
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.DeletionRequestedTime", BeNil()))
		w.Consistently(w.current, "300ms").WithArguments("work").Should(HaveField("DeletionTimestamp", BeNil()))
	})
})

var _ = Describe("the size of a workspace", func() {
	// class creates a storage class of the name of the world's namespace.
	class := func(w *world, expands bool) builders.TaskOption {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "example.com/disk", AllowVolumeExpansion: &expands}
		w.Expect(w.client.Create(w.ctx, c)).To(Succeed())
		return func(t *v1alpha1.Task) { t.Spec.Workspace.StorageClassName = ptr.To(w.namespace) }
	}
	// bind lets the claim have the volume that it asks for.
	bind := func(w *world) {
		w.Helper()
		claim, err := w.claim("work")
		w.Expect(err).NotTo(HaveOccurred())
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
		w.Expect(w.client.Status().Update(w.ctx, claim)).To(Succeed())
	}
	size := func(of string) builders.TaskOption {
		return func(t *v1alpha1.Task) { t.Spec.Workspace.Size = resource.MustParse(of) }
	}
	asked := func(w *world) func() string {
		return func() string {
			claim, err := w.claim("work")
			w.Expect(err).NotTo(HaveOccurred())
			return claim.Spec.Resources.Requests.Storage().String()
		}
	}

	It("grows at once where the storage class expands volumes", func() {
		w := newWorld()
		w.running("work", class(w, true))
		bind(w)
		w.change("work", size("8Gi"))
		w.Eventually(asked(w)).Should(Equal("8Gi"))
		w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskVolumeSized, v1alpha1.ReasonVolumeGrowing))
		bind(w)
		w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskVolumeSized, v1alpha1.ReasonVolumeGrown))
		w.Eventually(w.reasons).WithArguments("work").Should(ContainElement(v1alpha1.ReasonVolumeGrowing))
		w.Expect(countOf(w.reasons("work"), v1alpha1.ReasonVolumeGrowing)).To(Equal(1))
	})

	It("counts for the next volume where it does not", func() {
		w := newWorld()
		w.running("work", class(w, false))
		bind(w)
		w.change("work", size("8Gi"))
		w.Eventually(w.current).WithArguments("work").Should(HaveReason(v1alpha1.TaskVolumeSized, v1alpha1.ReasonNextVolume))
		w.Expect(asked(w)()).To(Equal("5Gi"))
	})

	It("is not tried again and again if the API server refuses it", func() {
		w := newWorld()
		w.running("work", class(w, true))
		bind(w)
		six := corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("6Gi")}
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "small"}, Spec: corev1.ResourceQuotaSpec{Hard: six}}
		w.Expect(w.client.Create(w.ctx, quota)).To(Succeed())
		quota.Status.Hard, quota.Status.Used = six, corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("5Gi")}
		w.Expect(w.client.Status().Update(w.ctx, quota)).To(Succeed())
		patches := func() int {
			return countOf(w.requests.list(), "PATCH /api/v1/namespaces/"+w.namespace+"/persistentvolumeclaims/"+resources.ClaimName("work"))
		}
		w.change("work", size("8Gi"))
		w.Eventually(w.current).WithArguments("work").Should(haveMessage(v1alpha1.TaskVolumeSized, ContainSubstring("exceeded quota")))
		w.Eventually(w.reasons).WithArguments("work").Should(ContainElement(v1alpha1.ReasonGrowthRefused))
		tried := patches()
		w.store.SetTotals(w.id("work"), history.Totals{Messages: 3}) // the task is reconciled, and has not changed
		w.Consistently(patches, "500ms").Should(Equal(tried))
		w.Expect(w.client.Delete(w.ctx, quota)).To(Succeed())
		w.Eventually(func() string {
			w.change("work", builders.BackoffLimit(int32(time.Now().UnixNano()%90))) // it is tried again after a change
			return asked(w)()
		}).WithPolling(200 * time.Millisecond).Should(Equal("8Gi"))
	})
})
