package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// actAs makes the test act as that user from here on.
func (w *world) actAs(user string) {
	w.Helper()
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	c, err := client.New(config, client.Options{Scheme: server.Scheme})
	w.Expect(err).NotTo(HaveOccurred())
	w.client = c
}

// actors returns the actors of the recorded transitions of a task, by reason.
func (w *world) actors(name string) map[string]string {
	w.Helper()
	actors := map[string]string{}
	for _, e := range w.store.Events(w.id(name).UID) {
		actors[e.Reason] = e.Actor
	}
	return actors
}

// notes returns the notes of the namespace's Events.
func (w *world) notes() []string {
	w.Helper()
	list := &eventsv1.EventList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	var notes []string
	for _, e := range list.Items {
		notes = append(notes, e.Note)
	}
	return notes
}

var _ = Describe("history and Events", func() {
	It("name the requester", func() {
		w := newWorld()
		By("ann creates the task")
		w.actAs("ann")
		p := w.running("work")
		w.checkpointAt("work", 1)

		By("ben requests a checkpoint and suspends the task")
		w.actAs("ben")
		asked := &v1alpha1.Checkpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "asked"},
			Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "work"}, Message: "Before lunch"},
		}
		w.Expect(w.client.Create(w.ctx, asked)).To(Succeed())
		w.change("work", builders.Suspended)
		w.untilStopped(p)
		w.record("work", v1alpha1.TriggerSuspend, 1)
		w.until("work", v1alpha1.ReasonSuspended)
		w.Eventually(w.objects.Object(asked)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskStopped))
		w.Expect(asked.Status.RequestedBy).To(Equal("ben"))

		By("a service account requests a rewind")
		w.actAs("system:serviceaccount:ci:robot")
		w.change("work", builders.Rewind("r1", "work-1"), builders.Running)
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(HaveField("RequestedBy", "system:serviceaccount:ci:robot"))))

		By("carol forks the task")
		w.actAs("carol")
		fork := &v1alpha1.Fork{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "fork"},
			Spec: v1alpha1.ForkSpec{
				SourceRef: v1alpha1.NameReference{Name: "work"}, CheckpointRef: &v1alpha1.NameReference{Name: "work-1"},
				Variants: []v1alpha1.ForkVariant{{Name: "other"}},
			},
		}
		w.Expect(w.client.Create(w.ctx, fork)).To(Succeed())
		w.pod("other", 1)

		By("reading the history and the Events")
		w.Eventually(func() map[string]string { return w.actors("work") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventTaskStarted, "clew"),
			HaveKeyWithValue(v1alpha1.EventTaskSuspended, "ben"),
			HaveKeyWithValue(v1alpha1.EventCheckpointRequested, "ben"),
		))
		w.Eventually(func() map[string]string { return w.actors("other") }).Should(HaveKeyWithValue(v1alpha1.EventTaskForked, "carol"))
		w.Eventually(w.notes).Should(And(
			ContainElement(ContainSubstring("the task is suspended; its work is kept, requested by ben")),
			ContainElement(ContainSubstring("files changed, requested by ben")),
			ContainElement(ContainSubstring("of task work, requested by carol")),
		))
	})
})
