package controller_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/failure"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestFromApplyToCompletedTakesAtMostTwelveWrites(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	w.store.Begin(w.id("work"), 1)
	w.store.SetTotals(w.id("work"), history.Totals{Messages: 12, ToolCalls: 5})
	task := w.complete("work", p)
	w.checkpoint("work-1")
	w.untilRecorded("work")
	time.Sleep(500 * time.Millisecond) // whatever else it might write

	writes := w.requests.list()
	if len(writes) > 12 {
		t.Errorf("%d writes:\n  %s", len(writes), strings.Join(writes, "\n  "))
	}
	t.Logf("%d writes:\n  %s", len(writes), strings.Join(writes, "\n  "))
	w.Expect(task.Status.LatestCheckpoint.Name).To(gomega.Equal("work-1"))
	w.Expect(task.Status.MessageCount).To(gomega.BeEquivalentTo(12))
	w.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.TaskSucceeded)).To(gomega.BeTrue())
	w.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.TaskDurable)).To(gomega.BeTrue())
	w.Expect(w.reasons("work")).To(gomega.Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted}))
}

func TestAHundredAppliesOfTheSameManifestChangeNothing(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	w.checkpoint("work-1")
	w.change("work", builders.Rewind("back", "work-1"))
	w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 0, daemonapi.PrepareResult{Operation: "back"})).To(gomega.Succeed())
	w.until("work", v1alpha1.ReasonRewound)
	before := w.untilRecorded("work")

	manifest := builders.Task("work", builders.InNamespace(w.namespace), builders.Rewind("back", "work-1"))
	apply := func() {
		w.Helper()
		object := manifest.DeepCopy()
		object.ManagedFields = nil
		//nolint:staticcheck // the typed apply of the client needs generated configurations
		w.Expect(w.client.Patch(w.ctx, object, client.Apply, client.FieldOwner("gitops"), client.ForceOwnership)).To(gomega.Succeed())
	}
	apply() // the first one takes the fields over
	owned := w.task("work")
	w.Expect(owned.Generation).To(gomega.Equal(before.Generation))
	for range 100 {
		apply()
	}
	time.Sleep(200 * time.Millisecond)
	w.Expect(w.task("work").ResourceVersion).To(gomega.Equal(owned.ResourceVersion))
	w.Expect(w.task("work").Status).To(gomega.Equal(before.Status))
}

func TestSuspendAndGoOn(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	w.change("work", builders.Suspended)
	w.until("work", v1alpha1.ReasonSuspending)
	w.record("work", v1alpha1.TriggerSuspend, 1)
	w.untilStopped(p)
	task := w.until("work", v1alpha1.ReasonSuspended)
	w.Expect(meta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.TaskDurable)).To(gomega.BeTrue())
	w.Expect(task.Status.LatestCheckpoint.Name).To(gomega.Equal("work-1"))

	w.change("work", builders.Running, builders.Resume("on"))
	p = w.pod("work", 2)
	w.Expect(w.operation(p)).To(gomega.HaveField("ID", "on"))
	w.start(p)
	task = w.until("work", v1alpha1.ReasonRunning)
	w.Expect(task.Status.Resume.State).To(gomega.Equal(v1alpha1.OperationCompleted))
	w.complete("work", p)
	w.untilRecorded("work")
	w.Expect(w.reasons("work")).To(gomega.Equal([]string{
		v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed, v1alpha1.EventTaskCompleted,
	}))
}

func TestALostPodAndALostVolumeAreReplaced(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	first := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: w.namespace, Name: resources.ClaimName("work")}
	w.Expect(w.client.Get(w.ctx, key, first)).To(gomega.Succeed())
	w.Expect(w.client.Delete(w.ctx, first)).To(gomega.Succeed()) // it stays while a pod uses it
	w.Expect(w.kubelet.Vanish(w.ctx, p)).To(gomega.Succeed())
	w.until("work", v1alpha1.ReasonVolumeUnavailable)
	w.Expect(w.client.Get(w.ctx, key, first)).To(gomega.Succeed())
	first.Finalizers = nil
	w.Expect(w.client.Update(w.ctx, first)).To(gomega.Succeed())

	w.pod("work", 2)
	second := &corev1.PersistentVolumeClaim{}
	w.Expect(w.client.Get(w.ctx, key, second)).To(gomega.Succeed())
	w.Expect(second.UID).NotTo(gomega.Equal(first.UID))
	w.Expect(w.task("work").Status.ClaimUID).To(gomega.BeEquivalentTo(second.UID))
	w.Eventually(func() []string { return w.reasons("work") }).Should(gomega.Equal([]string{
		v1alpha1.EventTaskStarted, v1alpha1.EventPodLost, v1alpha1.EventVolumeLost, v1alpha1.EventTaskRetried,
	}))
}

func TestAFailingAgentIsRetriedAndThenGivenUp(t *testing.T) {
	w := newWorld(t)
	p := w.running("work", builders.BackoffLimit(1))
	w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(gomega.Succeed())
	p = w.pod("work", 2)
	w.start(p)
	w.until("work", v1alpha1.ReasonRunning)
	w.podGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "work-1"}})
	w.Expect(w.kubelet.AgentExits(w.ctx, p, 3)).To(gomega.Succeed())
	task := w.until("work", v1alpha1.ReasonBackoffLimit)
	w.Expect(meta.IsStatusConditionFalse(task.Status.Conditions, v1alpha1.TaskSucceeded)).To(gomega.BeTrue())

	w.change("work", builders.Resume("again"))
	w.start(w.pod("work", 3))
	w.until("work", v1alpha1.ReasonRunning)
}

func TestAPodThatIsRefusedIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}
	w.Expect(w.client.Create(w.ctx, quota)).To(gomega.Succeed())
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	w.Expect(w.client.Status().Update(w.ctx, quota)).To(gomega.Succeed())
	w.Eventually(func() error {
		return w.client.Create(w.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "probe"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, client.DryRunAll)
	}).ShouldNot(gomega.Succeed())

	w.apply("work")
	task := w.until("work", v1alpha1.ReasonPodRefused)
	w.Expect(task.Status.Attempts).To(gomega.HaveLen(1))
	w.change("work", builders.BackoffLimit(5)) // anything has it looked at again
	w.Eventually(func() []string { return w.reasons("work") }).Should(gomega.Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskHindered}))
	w.Expect(w.client.Delete(w.ctx, quota)).To(gomega.Succeed())
	w.change("work", builders.BackoffLimit(7)) // anything has it looked at again
	w.pod("work", 1)
}

func TestADeletionWaitsUntilEverythingIsRecorded(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	id := w.id("work")
	w.store.SetDown(true)
	w.Expect(w.client.Delete(w.ctx, w.task("work"))).To(gomega.Succeed())
	w.untilStopped(p)
	w.Eventually(func() string {
		if c := meta.FindStatusCondition(w.task("work").Status.Conditions, v1alpha1.TaskHistoryRecorded); c != nil {
			return c.Message
		}
		return ""
	}).Should(gomega.ContainSubstring("the deletion waits for the history store"))

	w.store.SetDown(false)
	w.Eventually(func() bool {
		return apierrors.IsNotFound(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: "work"}, &v1alpha1.Task{}))
	}).Should(gomega.BeTrue(), "the task is gone")
	events := w.store.Events(id.UID)
	w.Expect(events[len(events)-1].Reason).To(gomega.Equal(v1alpha1.EventTaskDeleted))
}

func TestAVolumeThatIsToBeRetainedIsLeftBehind(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.change("work", builders.Suspended, func(t *v1alpha1.Task) { t.Spec.Workspace.Retention = v1alpha1.WorkspaceRetain })
	w.untilStopped(w.pod("work", 1))
	w.until("work", v1alpha1.ReasonSuspended)
	w.Expect(w.client.Delete(w.ctx, w.task("work"))).To(gomega.Succeed())
	w.Eventually(func() bool {
		return apierrors.IsNotFound(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: "work"}, &v1alpha1.Task{}))
	}).Should(gomega.BeTrue())
	claim := &corev1.PersistentVolumeClaim{}
	w.Expect(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: resources.ClaimName("work")}, claim)).To(gomega.Succeed())
	w.Expect(claim.OwnerReferences).To(gomega.BeEmpty())
}

func TestTransitionsDuringAnOutageArriveOnceAndInOrder(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	w.store.SetDown(true)
	for attempt := int64(2); attempt <= 4; attempt++ {
		w.Expect(w.kubelet.Vanish(w.ctx, p)).To(gomega.Succeed())
		p = w.pod("work", attempt)
		w.start(p)
		w.until("work", v1alpha1.ReasonRunning)
	}
	w.Eventually(func() bool {
		return meta.IsStatusConditionFalse(w.task("work").Status.Conditions, v1alpha1.TaskHistoryRecorded)
	}).Should(gomega.BeTrue())
	w.restartManager()
	w.store.SetDown(false)
	w.complete("work", p)
	task := w.untilRecorded("work")

	events := w.store.Events(string(task.UID))
	w.Expect(events).To(gomega.HaveLen(int(task.Status.HistorySequence)))
	for i, e := range events {
		w.Expect(e.ID).To(gomega.Equal(history.EventID(string(task.UID), int64(i+1))))
	}
	w.Expect(w.reasons("work")).To(gomega.Equal([]string{
		v1alpha1.EventTaskStarted,
		v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
		v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
		v1alpha1.EventPodLost, v1alpha1.EventTaskRetried,
		v1alpha1.EventTaskCompleted,
	}))
}

func TestEveryTransitionHasItsEvent(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	w.Eventually(func() []string {
		list := &corev1.EventList{}
		w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(gomega.Succeed())
		var reasons []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "Task" {
				reasons = append(reasons, e.Reason)
			}
		}
		slices.Sort(reasons)
		return reasons
	}).Should(gomega.Equal([]string{v1alpha1.EventTaskCompleted, v1alpha1.EventTaskStarted}))
}

func TestAProblemOfTheDaemonIsAConditionAndAnEvent(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.store.Begin(w.id("work"), 1)
	w.store.SetProblem(w.id("work"), &history.Problem{Reason: v1alpha1.ReasonVolumeFull, Message: "the volume is full: enlarge it"})
	task := w.until("work", v1alpha1.ReasonVolumeFull)
	w.Expect(meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded).Status).To(gomega.Equal(metav1.ConditionUnknown))
	w.Eventually(func() []string {
		list := &corev1.EventList{}
		w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(gomega.Succeed())
		var warnings []string
		for _, e := range list.Items {
			if e.Type == corev1.EventTypeWarning {
				warnings = append(warnings, e.Reason+" "+e.Message)
			}
		}
		return warnings
	}).Should(gomega.Equal([]string{"TaskHindered VolumeFull: the volume is full: enlarge it"}))
	w.store.SetProblem(w.id("work"), nil)
	w.until("work", v1alpha1.ReasonRunning)
	w.Expect(w.reasons("work")).To(gomega.Equal([]string{v1alpha1.EventTaskStarted, v1alpha1.EventTaskHindered}))
}

func TestErrorsAreTreatedByTheirClass(t *testing.T) {
	conflict := apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), "work", errors.New("changed"))
	w := gomega.NewWithT(t)
	result, err := failure.Result(testLogger(), conflict)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(result.RequeueAfter).To(gomega.Equal(failure.AfterConflict))
	result, err = failure.Result(testLogger(), history.ErrUnavailable)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(result.RequeueAfter).To(gomega.Equal(failure.AfterOutage))
	_, err = failure.Result(testLogger(), errors.New("other"))
	w.Expect(err).To(gomega.HaveOccurred())
}
