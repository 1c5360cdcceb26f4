//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a volume that is given back", func() {
	w := newWorld()

	It("is gone while its task sleeps or has finished, and the task goes on with a new one", func(ctx SpecContext) {
		sleeps := w.newTask("sleeps", replay(40, 250*time.Millisecond)...)
		sleeps.Spec.Workspace.WhenSuspended = clewv1.WhenSuspendedRelease
		w.create(ctx, sleeps)
		ends := w.newTask("ends", replay(6, 10*time.Millisecond)...)
		ends.Spec.OnFinish = &clewv1.OnFinish{AfterSeconds: 1, Action: clewv1.FinishRelease}
		w.create(ctx, ends)
		w.untilToolCalls(ctx, "sleeps", 5, 2*time.Minute)
		w.patchSpec(ctx, "sleeps", map[string]any{"operatingMode": "Suspended"})
		slept := w.untilState(ctx, "sleeps", 2*time.Minute, clewv1.ReasonSuspended)
		Expect(len(answeredCalls(w.conversation(ctx, "sleeps")))).To(BeNumerically("<", 40), "it was suspended before its end")

		for _, name := range []string{"sleeps", "ends"} {
			w.untilReleased(ctx, name)
		}
		Expect(w.task(ctx, "ends")).To(matchers.HaveReason(clewv1.TaskSucceeded, clewv1.ReasonCompleted), "its record stays")
		pods := &corev1.PodList{}
		Expect(w.kube.List(ctx, pods, client.InNamespace(w.namespace))).To(Succeed())
		Expect(pods.Items).To(BeEmpty())

		w.patchSpec(ctx, "sleeps", map[string]any{"operatingMode": "Running"})
		woken := w.untilState(ctx, "sleeps", 2*time.Minute, clewv1.ReasonCompleted)
		w.expectCallsOnce(ctx, "sleeps", 40)
		Expect(woken.Status.Attempts).To(HaveLen(2))
		Expect(woken.Status.ClaimUID).NotTo(Or(BeEmpty(), Equal(slept.Status.ClaimUID)))
		for _, e := range w.timeline(ctx, "sleeps") {
			Expect(e.Reason).NotTo(Equal(clewv1.EventVolumeLost))
			Expect(e.Message).NotTo(ContainSubstring("lost"))
		}
	})
})

// untilReleased waits until a task has no volume.
func (w *world) untilReleased(ctx context.Context, name string) {
	GinkgoHelper()
	claim := &corev1.PersistentVolumeClaim{}
	Eventually(ctx, func() bool { return apierrors.IsNotFound(w.get(ctx, name+"-workspace", claim)) }).WithTimeout(2*time.Minute).
		Should(BeTrue(), func() string {
			return "the claim of task " + name + " is still there: " + w.kubectl(ctx, "describe", "ctask", name)
		})
	Expect(w.task(ctx, name)).To(matchers.HaveReason(clewv1.TaskVolumeReleased, clewv1.ReasonReleased))
}
