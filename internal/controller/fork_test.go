package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a Fork", func() {
	It("creates a task for each variant, once", func() {
		w := newWorld()
		w.complete("source", w.running("source", func(t *v1alpha1.Task) { t.Spec.Agent.StatePaths = []string{".agent"} }))
		w.checkpoint("source-1")
		before := w.untilRecorded("source")
		other := "The other way."
		f := &v1alpha1.Fork{
			ObjectMeta: metav1.ObjectMeta{Name: "try"},
			Spec: v1alpha1.ForkSpec{
				SourceRef: v1alpha1.NameReference{Name: "source"}, CheckpointRef: &v1alpha1.NameReference{Name: "source-1"},
				Variants: []v1alpha1.ForkVariant{{Name: "branched", Prompt: &other}},
			},
		}
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked))
		w.Expect(f.Status.Source.Checkpoint).To(BeEquivalentTo(1))
		w.Expect(f.Status.Tasks[0].Name).To(Equal("branched"))

		p := w.pod("branched", 1)
		task := w.task("branched")
		w.Expect(*task.Spec.Prompt).To(Equal(other))
		w.Expect(task.Spec.Agent).To(Equal(before.Spec.Agent))
		w.Expect(task.Spec.Template).To(Equal(before.Spec.Template))
		w.Expect(task.OwnerReferences).To(BeEmpty())
		w.Expect(task.Labels).To(HaveKeyWithValue(v1alpha1.LabelFork, "try"))
		w.Expect(task.Annotations).To(BeEmpty(), "the manager decides by fields")
		w.Expect(*task.Spec.StartFrom.Fork).To(Equal(v1alpha1.ForkOrigin{Name: "try", UID: string(f.UID), FieldManager: f.ManagedFields[0].Manager, From: "task source at Checkpoint source-1"}))
		w.Expect(task.Status.Source).To(Equal(f.Status.Source))
		w.Expect(p.Name).To(Equal("branched-1"))
		By("naming the new task in the status and history of its source, and changing nothing else there")
		branched := HaveField("Reason", v1alpha1.EventTaskBranched)
		w.Eventually(w.current).WithArguments("source").Should(HaveField("Status.History", ContainElement(branched)))
		source := w.untilRecorded("source")
		w.Expect(source.Spec).To(Equal(before.Spec))
		w.Expect(source.Status.StartedTasks).To(Equal([]v1alpha1.StartedTask{{Name: "branched", UID: string(task.UID), Checkpoint: 1}}))
		w.Expect(source.Status.History).To(ContainElement(And(branched, HaveField("Message", "task branched starts from checkpoint 1, for Fork try"))))
		w.restartManager()
		w.Eventually(w.current).WithArguments("branched").Should(HaveReason(v1alpha1.TaskSucceeded, v1alpha1.ReasonPreparing))
		w.Expect(w.task("source").ResourceVersion).To(Equal(source.ResourceVersion), "once")
	})

	It("waits for its source, and reports why its task cannot be created", func() {
		w := newWorld()
		fork := func(name, source, variant string) *v1alpha1.Fork {
			f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForkSpec{
				SourceRef: v1alpha1.NameReference{Name: source}, Variants: []v1alpha1.ForkVariant{{Name: variant}},
			}}
			w.create(f)
			return f
		}
		By("forking a task that does not exist")
		none := fork("none", "no-task", "a")
		w.Eventually(w.objects.Object(none)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonSourceNotFound))

		By("forking a task without a checkpoint")
		w.apply("source", builders.Suspended)
		w.apply("taken", builders.Suspended)
		early := fork("early", "source", "taken")
		w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonWaitingForSource))
		By("completing the source, while the name of the variant is in use")
		w.change("source", builders.Running)
		p := w.pod("source", 1)
		w.start(p)
		w.complete("source", p)
		w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists))
		w.Expect(early).To(haveMessage(v1alpha1.ForkComplete, ContainSubstring("delete it")))
	})

	It("creates all variants from one moment, whether or not it has an object", func() {
		w := newWorld()
		w.complete("source", w.running("source"))
		first := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "source-1"}}
		w.checkpoint("source-1")
		w.untilRecorded("source")
		w.Expect(w.client.Delete(w.ctx, first)).To(Succeed())
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)},
		}}
		w.apply("taken", builders.Suspended)
		for _, name := range []string{"taken", "one", "two"} {
			f.Spec.Variants = append(f.Spec.Variants, v1alpha1.ForkVariant{Name: name})
		}
		w.create(f)
		By("creating those whose names are free, while one is in use")
		w.Eventually(w.objects.Object(f)).Should(SatisfyAll(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists), HaveField("Status.TaskCount", BeEquivalentTo(2))))
		By("completing it when that one is free, without making again what was deleted meanwhile")
		w.Expect(w.client.Delete(w.ctx, w.task("one"))).To(Succeed())
		exists := func() error {
			return w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: "one"}, &v1alpha1.Task{})
		}
		w.Eventually(exists).Should(Satisfy(apierrors.IsNotFound))
		w.Expect(w.client.Delete(w.ctx, w.task("taken"))).To(Succeed())
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked))
		w.Expect(f.Status.TaskCount).To(BeEquivalentTo(3))
		w.Expect(exists()).To(Satisfy(apierrors.IsNotFound), "its work was done once")
		for _, name := range []string{"taken", "two"} {
			w.pod(name, 1)
			w.Expect(w.task(name).Status.Source).To(Equal(f.Status.Source))
		}
	})

	It("says that a quota refuses its task, and makes it when there is room", func() {
		w := newWorld()
		w.complete("source", w.running("source"))
		w.untilRecorded("source")
		full := corev1.ResourceList{"count/tasks.clew.dev": resource.MustParse("1")}
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "tasks"}, Spec: corev1.ResourceQuotaSpec{Hard: full}}
		w.create(quota)
		quota.Status = corev1.ResourceQuotaStatus{Hard: full, Used: full}
		w.Expect(w.client.Status().Update(w.ctx, quota)).To(Succeed(), "as the quota controller does")
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: []v1alpha1.ForkVariant{{Name: "another"}},
		}}
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskRefused))
		w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, ContainSubstring("exceeded quota")))
		w.Expect(w.client.Delete(w.ctx, quota)).To(Succeed())
		probe := builders.Task("probe", builders.InNamespace(w.namespace))
		w.Eventually(func() error { return w.client.Create(w.ctx, probe.DeepCopy(), client.DryRunAll) }).Should(Succeed(), "there is room")
		w.restartManager() // by the clock of this suite, the Fork rests for minutes otherwise
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked))
	})

	It("waits for a moment that is still to come", func() {
		w := newWorld()
		w.complete("source", w.running("source"))
		w.untilRecorded("source")
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](2)},
			Variants: []v1alpha1.ForkVariant{{Name: "after"}},
		}}
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonCheckpointNotFound))
	})

	It("is tried again when something that it waits for happens", func() {
		w := newWorld()
		fork := func(name string, at *v1alpha1.StartPoint) *v1alpha1.Fork {
			f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForkSpec{
				SourceRef: v1alpha1.NameReference{Name: "source"}, At: at, Variants: []v1alpha1.ForkVariant{{Name: name}},
			}}
			w.create(f)
			return f
		}
		latest, named := fork("latest", nil), fork("named", &v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: "source-1"}})
		numbered := fork("numbered", &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)})
		for _, f := range []*v1alpha1.Fork{latest, named, numbered} {
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonSourceNotFound))
		}
		By("making the source, and its checkpoint")
		w.complete("source", w.running("source"))
		for _, f := range []*v1alpha1.Fork{latest, named, numbered} {
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked))
		}
		By("restarting the history store")
		w.store.SetDown(true)
		early := fork("early", &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)})
		w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonHistoryUnavailable))
		w.store.SetDown(false)
		w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked))
	})

	// The task that the Fork created has the only copy of its work: a backup has the Task
	// without the fields that admission lets only the manager write.
	It("does not advise to delete a task that names it", func() {
		w := newWorld()
		w.complete("source", w.running("source"))
		w.apply("back", builders.Suspended, func(t *v1alpha1.Task) { t.Labels = map[string]string{v1alpha1.LabelFork: "mine"} })
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: []v1alpha1.ForkVariant{{Name: "back"}},
		}}
		w.create(f)
		w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists))
		w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, And(ContainSubstring("restored from a backup"), Not(ContainSubstring("delete it")))))
	})
})

var _ = Describe("a ConversationSnapshot that somebody applied", func() {
	It("is resolved once", func() {
		w := newWorld()
		snapshot := func(name string, checkpoint *v1alpha1.NameReference) *v1alpha1.ConversationSnapshot {
			s := &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ConversationSnapshotSpec{
				TaskRef: v1alpha1.NameReference{Name: "work"}, CheckpointRef: checkpoint,
			}}
			w.create(s)
			return s
		}
		By("before the task exists")
		early := snapshot("early", nil)
		w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonTaskNotFound))
		By("once the task has a checkpoint")
		w.complete("work", w.running("work"))
		w.checkpoint("work-1")
		s := snapshot("there", &v1alpha1.NameReference{Name: "work-1"})
		w.Eventually(w.objects.Object(s)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonResolved))
		w.Expect(s.Status.Digest).To(Equal("digest-1"))
		w.Expect(s.Status.Conversation.Position).To(BeEquivalentTo(4))
		By("for a checkpoint that does not exist")
		missing := snapshot("missing", &v1alpha1.NameReference{Name: "work-9"})
		w.Eventually(w.objects.Object(missing)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonCheckpointNotFound))
	})
})
