package controller_test

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// eventsOn returns the Events about an object.
func (w *world) eventsOn(kind, name string) ([]eventsv1.Event, error) {
	list := &eventsv1.EventList{}
	err := w.client.List(w.ctx, list, client.InNamespace(w.namespace))
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.Kind != kind || e.Regarding.Name != name }), err
}

var _ = Describe("A task of a Fork that is gone, and whose history is kept", func() {
	adopting := func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest }
	// try is the manifest of a Fork of the source's first checkpoint, or the latest.
	try := func(variants ...string) *v1alpha1.Fork {
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "try"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, Adopt: v1alpha1.AdoptLatest,
		}}
		for _, name := range variants {
			f.Spec.Variants = append(f.Spec.Variants, v1alpha1.ForkVariant{Name: name})
		}
		return f
	}
	forked := HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked)
	// before makes a Fork of a source, which takes another checkpoint after that.
	before := func(w *world, options ...builders.TaskOption) (source, a *v1alpha1.Task) {
		GinkgoHelper()
		w.running("source", append(options, adopting)...)
		w.store.Begin(w.id("source"), 1)
		w.record("source", v1alpha1.TriggerToolCalls, 1)
		w.checkpoint("source-1")
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.start(w.pod("a", 1))
		w.store.Begin(w.id("a"), 1)
		w.record("a", v1alpha1.TriggerToolCalls, 1)
		w.record("source", v1alpha1.TriggerToolCalls, 1)
		w.checkpoint("source-2")
		source, a = w.untilRecorded("source"), w.untilRecorded("a")
		w.Expect(a.Status.Source.Checkpoint).To(BeEquivalentTo(1))
		w.Expect(w.client.Delete(w.ctx, f)).To(Succeed())
		return source, a
	}
	lost := func(w *world, tasks ...*v1alpha1.Task) {
		GinkgoHelper()
		for _, task := range tasks {
			remove(w, task, w.pod(task.Name, 1))
		}
	}

	It("is continued by that of a Fork of this name, which starts what is missing from the same moment", func() {
		w := newWorld()
		source, a := before(w)
		lost(w, source, a)
		w.apply("source", adopting)
		w.Eventually(w.current).WithArguments("source").Should(HaveField("Status.Adoption.TaskUID", string(source.UID)))
		f := try("a", "b")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(f.Status.Source).To(HaveValue(SatisfyAll(HaveField("Checkpoint", BeEquivalentTo(1)), HaveField("TaskUID", string(w.task("source").UID)))))
		w.Expect(f.Status.Adoption.Tasks).To(ConsistOf(v1alpha1.AdoptedTask{Name: "a", FormerUID: string(a.UID), OperatingMode: v1alpha1.OperatingModeRunning}))
		w.Expect(f.Status.Adoption.Message).To(ContainSubstring("from checkpoint 1"))
		w.Eventually(w.eventsOn).WithArguments("Fork", "try").Should(ContainElement(HaveField("Reason", v1alpha1.EventTaskAdopted)))
		w.pod("a", 2)
		w.Expect(w.task("a").Status.Adoption).To(HaveField("TaskUID", string(a.UID)))
		w.Expect(w.config(w.pod("b", 1)).Source).To(SatisfyAll(HaveField("TaskUID", string(w.task("source").UID)), HaveField("Checkpoint", BeEquivalentTo(1))))
		w.Eventually(w.current).WithArguments("source").Should(HaveField("Status.StartedTasks", ConsistOf(HaveField("Name", "a"), HaveField("Name", "b"))))
		branched := func(name string) OmegaMatcher {
			return ContainElement(And(HaveField("Reason", v1alpha1.EventTaskBranched), HaveField("Message", ContainSubstring("task "+name+" "))))
		}
		events := func() []history.Event { return w.store.Events(string(w.task("source").UID)) }
		w.Eventually(events).Should(branched("b"))
		w.Expect(events()).NotTo(branched("a"), "it had started before")
	})

	It("is continued before its source is", func() {
		w := newWorld()
		source, a := before(w)
		lost(w, source, a)
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.pod("a", 2)
		w.Expect(w.task("a").Status.Adoption).To(HaveField("TaskUID", string(a.UID)))
		w.apply("source", adopting)
		w.Eventually(w.current).WithArguments("source").Should(HaveField("Status.StartedTasks", ConsistOf(HaveField("Name", "a"))))
	})

	It("is suspended if it was", func() {
		w := newWorld()
		source, a := before(w)
		p := w.pod("a", 1)
		w.change("a", builders.Suspended)
		w.until("a", v1alpha1.ReasonSuspending)
		w.record("a", v1alpha1.TriggerSuspend, 1)
		w.untilStopped(p)
		w.until("a", v1alpha1.ReasonSuspended)
		w.untilRecorded("a")
		w.Expect(w.client.Delete(w.ctx, a)).To(Succeed())
		w.untilGone(a)
		lost(w, source)
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(w.task("a").Spec.OperatingMode).To(Equal(v1alpha1.OperatingModeSuspended))
		w.until("a", v1alpha1.ReasonSuspended)
		w.Expect(w.task("a").Status.Adoption).To(HaveField("TaskUID", string(a.UID)))
	})

	It("is recognised where it still exists, or was applied by itself", func() {
		w := newWorld()
		_, a := before(w)
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(f.Status.Tasks).To(ConsistOf(v1alpha1.ForkedTask{Name: "a", UID: string(a.UID)}))
		w.Expect(w.client.Delete(w.ctx, f)).To(Succeed())

		lost(w, a)
		w.apply("a", adopting)
		w.pod("a", 2)
		f = try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(f.Status.Tasks).To(ConsistOf(v1alpha1.ForkedTask{Name: "a", UID: string(w.task("a").UID)}))
	})

	It("is made anew by a Fork of its name that asks for another moment, or forks another task", func() {
		w := newWorld()
		source, a := before(w)
		lost(w, a)
		w.complete("other", w.running("other"))
		w.until("other", v1alpha1.ReasonCompleted)
		w.untilRecorded("other")
		later := try("a")
		later.Spec.At = &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](2)}
		elsewhere := try("a")
		elsewhere.Spec.SourceRef.Name, elsewhere.Spec.At = "other", &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)}
		for _, c := range []struct {
			fork         *v1alpha1.Fork
			from, before string
			uid          any
			checkpoint   int
		}{
			{later, "task source at checkpoint 2", "task source at its latest checkpoint", source.UID, 2},
			{elsewhere, "task other at checkpoint 1", "task source at checkpoint 2", w.task("other").UID, 1},
		} {
			w.create(c.fork)
			w.Eventually(w.objects.Object(c.fork)).Should(forked)
			w.Expect(c.fork.Status.Adoption.Tasks).To(BeEmpty())
			w.Expect(c.fork.Status.Adoption.Message).To(SatisfyAll(ContainSubstring("had forked "+c.before), ContainSubstring("asks for "+c.from)))
			p := w.pod("a", 1)
			w.Expect(w.config(p).Source).To(SatisfyAll(HaveField("TaskUID", fmt.Sprint(c.uid)), HaveField("Checkpoint", BeEquivalentTo(c.checkpoint))))
			made := w.task("a")
			w.Expect(made.Status.Adoption).To(SatisfyAll(HaveField("TaskUID", ""), HaveField("Message", ContainSubstring("was forked from "+c.before))))
			w.start(p)
			w.store.Begin(w.id("a"), 1)
			w.record("a", v1alpha1.TriggerToolCalls, 1)
			w.untilRecorded("a")
			w.Expect(w.client.Delete(w.ctx, c.fork)).To(Succeed())
			lost(w, made)
		}
	})

	It("is made when one of its name that is being deleted is gone", func() {
		w := newWorld()
		before(w)
		a := w.task("a")
		w.edit(a, func() { a.Finalizers = append(a.Finalizers, "example.com/held") })
		w.Expect(w.client.Delete(w.ctx, a)).To(Succeed())
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(SatisfyAll(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists), haveMessage(v1alpha1.ForkComplete, ContainSubstring("is being deleted"))))
		w.untilStopped(w.pod("a", 1))
		w.edit(a, func() {
			a.Finalizers = slices.DeleteFunc(a.Finalizers, func(f string) bool { return f == "example.com/held" })
		})
		w.untilGone(a)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(f.Status.Tasks).To(ConsistOf(v1alpha1.ForkedTask{Name: "a", UID: string(w.task("a").UID)}))
		w.Expect(w.task("a").UID).NotTo(Equal(a.UID))
	})

	It("is suspended if nobody knows whether it was to run", func() {
		w := newWorld()
		source, a := before(w)
		lost(w, source, a)
		w.store.ForgetOperatingMode(history.Key{Namespace: w.namespace, UID: string(a.UID)})
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(w.task("a").Spec.OperatingMode).To(Equal(v1alpha1.OperatingModeSuspended))
	})

	It("is decided when the Fork resolves its source: what adopt says later changes nothing", func() {
		w := newWorld()
		_, a := before(w)
		lost(w, a)
		w.running("b")
		f := try("a", "b")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists))
		w.edit(f, func() { f.Spec.Adopt = "" })
		w.Eventually(w.objects.Object(f)).Should(HaveField("Status.ObservedGeneration", BeEquivalentTo(2)))
		lost(w, w.task("b"))
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(w.task("b").Spec.Adopt).To(Equal(v1alpha1.AdoptLatest))

		g := try("c")
		g.Name, g.Spec.Adopt, g.Spec.At = "other", "", &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)}
		w.create(g)
		w.Eventually(w.objects.Object(g)).Should(forked)
		w.edit(g, func() { g.Spec.Adopt = v1alpha1.AdoptLatest })
		w.Eventually(w.objects.Object(g)).Should(SatisfyAll(forked, HaveField("Status.ObservedGeneration", BeEquivalentTo(2)), HaveField("Status.Conditions", ConsistOf(HaveField("ObservedGeneration", BeEquivalentTo(2))))))
	})

	It("is not continued if adopt is taken back before the Fork has resolved its source", func() {
		w := newWorld()
		source, a := before(w)
		lost(w, source, a)
		w.store.ForgetSpec(history.Key{Namespace: w.namespace, UID: string(source.UID)})
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonSpecNotKept))
		w.Expect(f.Status.Adoption.Tasks).To(HaveLen(1))
		w.edit(f, func() { f.Spec.Adopt = v1alpha1.AdoptNever })
		w.Eventually(w.objects.Object(f)).Should(SatisfyAll(HaveField("Status.ObservedGeneration", BeEquivalentTo(2)), HaveField("Status.Adoption", BeNil())))
	})

	It("is made anew where nothing of it is kept, or a task that no Fork of this name had made has its name", func() {
		w := newWorld()
		gone(w, "a")
		w.complete("source", w.running("source"))
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(forked)
		w.Expect(w.config(w.pod("a", 1)).Source).To(HaveField("Checkpoint", BeEquivalentTo(1)))
		w.Expect(w.task("a").Status.Adoption).To(HaveField("TaskUID", ""))
	})

	It("waits until it is granted, where an earlier namespace has left it", func() {
		w := newWorld()
		left := history.Task{Namespace: fakehistory.Earlier(w.namespace), Name: "a", UID: "left"}
		w.store.Begin(left, 1)
		w.complete("source", w.running("source"))
		f := try("a")
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonHistoryNotGranted))
		w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, ContainSubstring("historyGrants")))
		w.Expect(f.Status.Tasks).To(BeEmpty())
	})
})
