package controller_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// publisher waits for the pod that publishes, and returns what it is told.
func (w *world) publisher(task string, number int64) (*corev1.Pod, daemonapi.PublishConfig) {
	w.Helper()
	p := &corev1.Pod{}
	key := client.ObjectKey{Namespace: w.namespace, Name: resources.PublisherName(task, number)}
	w.Eventually(func() error { return w.client.Get(w.ctx, key, p) }).Should(Succeed(), "pod %s", key.Name)
	config, err := daemonapi.DecodePublishConfig(p.Spec.Containers[0].Env[0].Value)
	w.Expect(err).NotTo(HaveOccurred())
	return p, config
}

// publishEnds ends the pod that publishes with a result.
func (w *world) publishEnds(p *corev1.Pod, result daemonapi.PublishResult) {
	w.Helper()
	message, err := json.Marshal(result)
	w.Expect(err).NotTo(HaveOccurred())
	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: daemonapi.PublishContainer, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(message), FinishedAt: metav1.Now()},
	}}}
	w.Expect(w.client.Status().Update(w.ctx, p)).To(Succeed())
}

// loseAnswer makes the creation of this pod fail in such a way that the pod may have been created.
func (w *world) loseAnswer(pod string) {
	w.requests.setSpoil(func(r *http.Request) error {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/pods") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil && bytes.Contains(body, []byte(pod)) {
			return errors.New("the answer was lost")
		}
		return err
	})
}

var _ = Describe("publishing", func() {
	It("takes one pod for a completed task, whoever restarts, and none is left", func() {
		w := newWorld()
		p := w.running("fix", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"} })
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveReason(v1alpha1.TaskPublished, v1alpha1.ReasonPublishPending))
		w.complete("fix", p)
		pod, config := w.publisher("fix", 1)
		w.Expect(config.Checkpoint).To(BeEquivalentTo(1))
		w.Expect(config.ProtectedPaths).To(ContainElement(".github/workflows/"))

		By("restarting the manager while the pod runs")
		w.restartManager()
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveReason(v1alpha1.TaskPublished, v1alpha1.ReasonPublishing))
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed to it"})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveReason(v1alpha1.TaskPublished, v1alpha1.ReasonDiverged))
		w.untilGone(pod)

		By("naming another branch")
		w.change("fix", func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "clew/fix-2" })
		pod, config = w.publisher("fix", 2)
		w.Expect(config.Ref).To(Equal("refs/heads/clew/fix-2"))
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: "0123456789012345678901234567890123456789"})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveCondition(v1alpha1.TaskPublished, metav1.ConditionTrue))
		w.untilGone(pod)
		w.untilRecorded("fix")
		w.Expect(w.reasons("fix")).To(ContainElements(v1alpha1.EventTaskNotPublished, v1alpha1.EventTaskPublished))
		w.Expect(w.task("fix").Status.Attempts).To(HaveLen(1), "the pods that publish are no attempts")
	})

	// It may have pushed before.
	It("is done by another pod if one has vanished before it was recorded", func() {
		w := newWorld()
		p := w.running("fix", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"} })
		By("losing each status that the manager writes once the pod is there")
		w.requests.setSpoil(func(r *http.Request) error {
			pod := &corev1.Pod{}
			key := client.ObjectKey{Namespace: w.namespace, Name: resources.PublisherName("fix", 1)}
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status") && w.client.Get(w.ctx, key, pod) == nil {
				return errors.New("the manager dies here")
			}
			return nil
		})
		w.complete("fix", p)
		pod, _ := w.publisher("fix", 1)
		w.stop()
		w.Expect(w.task("fix").Status.Publish.PodUID).To(BeEmpty())
		w.Expect(w.kubelet.Vanish(w.ctx, pod)).To(Succeed())
		w.requests.setSpoil(nil)
		w.startManager()
		pod, config := w.publisher("fix", 2)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: "0123456789012345678901234567890123456789"})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveCondition(v1alpha1.TaskPublished, metav1.ConditionTrue))
	})

	It("goes on although nobody knows whether a pod was created", func() {
		w := newWorld()
		w.loseAnswer(resources.PublisherName("fix", 1))
		p := w.running("fix", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"} })
		w.complete("fix", p)
		pod, config := w.publisher("fix", 2)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: "0123456789012345678901234567890123456789"})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveCondition(v1alpha1.TaskPublished, metav1.ConditionTrue))
	})
})
