package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// remove deletes a task, and what goes with it.
func remove(w *world, task *v1alpha1.Task, p *corev1.Pod) {
	GinkgoHelper()
	w.Expect(w.client.Delete(w.ctx, task)).To(Succeed())
	w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
	w.untilGone(task)
	key := metav1.ObjectMeta{Namespace: w.namespace}
	key.Name = resources.ClaimName(task.Name)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: key}
	w.Expect(w.client.Delete(w.ctx, claim)).To(Succeed(), "as the garbage collector does")
	w.Expect(w.client.Patch(w.ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Or(Succeed(), MatchError(apierrors.IsNotFound, "IsNotFound")))
	w.Expect(w.client.DeleteAllOf(w.ctx, &v1alpha1.Checkpoint{}, client.InNamespace(w.namespace), client.HasLabels{v1alpha1.LabelTaskUID})).To(Succeed(), "those that Clew has made")
}

// gone completes a task with a checkpoint, and deletes it.
func gone(w *world, name string, options ...builders.TaskOption) string {
	GinkgoHelper()
	p := w.running(name, options...)
	w.store.Begin(w.id(name), 1)
	w.complete(name, p)
	w.untilRecorded(name)
	task := w.task(name)
	remove(w, task, p)
	return string(task.UID)
}

var _ = Describe("A task that is gone, and whose history is kept", func() {
	It("is started from by its name, and by its UID where names repeat", func() {
		w := newWorld()
		first := gone(w, "source")
		w.apply("second", builders.StartFrom("source", ""))
		w.Expect(w.config(w.pod("second", 1)).Source).To(HaveField("TaskUID", first))
		w.Expect(w.task("second").Status.Source).To(HaveField("Checkpoint", BeEquivalentTo(1)))

		By("using the name again")
		other := gone(w, "source")
		w.apply("third", builders.StartFrom("source", ""))
		w.until("third", v1alpha1.ReasonSourceAmbiguous)
		w.Expect(w.task("third")).To(haveMessage(v1alpha1.TaskSucceeded, SatisfyAll(ContainSubstring(first), ContainSubstring(other))))
		w.apply("fourth", builders.StartFrom("source", ""), func(t *v1alpha1.Task) { t.Spec.StartFrom.TaskUID = other })
		w.Expect(w.config(w.pod("fourth", 1)).Source).To(HaveField("TaskUID", other))
	})

	Describe("is forked", func() {
		fork := func(w *world, name string, change func(*v1alpha1.ForkSpec)) *v1alpha1.Fork {
			GinkgoHelper()
			f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForkSpec{
				SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: []v1alpha1.ForkVariant{{Name: name + "-a"}},
			}}
			if change != nil {
				change(&f.Spec)
			}
			w.create(f)
			return f
		}
		forked := HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonForked)

		It("with its last spec, by its name, and by its UID where names repeat", func() {
			w := newWorld()
			first := gone(w, "source", func(t *v1alpha1.Task) { t.Spec.Agent.StatePaths = []string{".agent"} })
			f := fork(w, "one", func(s *v1alpha1.ForkSpec) { s.Variants = append(s.Variants, v1alpha1.ForkVariant{Name: "one-b"}) })
			w.Eventually(w.objects.Object(f)).Should(forked)
			for _, name := range []string{"one-a", "one-b"} {
				w.Expect(w.config(w.pod(name, 1)).Source).To(HaveField("TaskUID", first))
				w.Expect(w.task(name).Spec).To(SatisfyAll(
					HaveField("Agent.StatePaths", ConsistOf(".agent")), HaveField("StartFrom.TaskUID", first), HaveField("StartFrom.Branch", "clew/"+name)))
			}

			By("using the name again")
			other := gone(w, "source")
			f = fork(w, "two", nil)
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonSourceAmbiguous))
			f = fork(w, "three", func(s *v1alpha1.ForkSpec) { s.TaskUID = other })
			w.Eventually(w.objects.Object(f)).Should(forked)
			w.Expect(w.task("three-a").Spec).To(SatisfyAll(HaveField("StartFrom.TaskUID", other), HaveField("Agent.StatePaths", BeEmpty())))
		})

		It("as nobody's child when its parent is gone as well, and in its contract", func() {
			w := newWorld()
			lead := w.running("lead", func(t *v1alpha1.Task) {
				t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
			})
			gone(w, "source", func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"} })
			f := fork(w, "beside", nil)
			w.Eventually(w.objects.Object(f)).Should(forked)
			w.Expect(w.task("beside-a").Spec.ParentRef).To(HaveField("Name", "lead"), "whose parent is there")
			w.pod("beside-a", 1)

			remove(w, w.task("lead"), lead)
			f = fork(w, "alone", nil)
			w.Eventually(w.objects.Object(f)).Should(forked)
			w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, ContainSubstring("the parent lead of task source is gone, so the new tasks are nobody's children, and belong to the contract port")))
			w.Expect(w.task("alone-a").Spec).To(SatisfyAll(HaveField("ParentRef", BeNil()), HaveField("Contract.Name", "port")))
			w.pod("alone-a", 1)
		})

		It("with its values that may be secret, which the Fork gives again", func() {
			w := newWorld()
			gone(w, "source", func(t *v1alpha1.Task) {
				t.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "MODE", Value: "fast"}, {Name: "GITHUB_TOKEN", Value: "hunter2-hunter2"}}
			})
			f := fork(w, "early", nil)
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonValuesNotKept))
			w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, SatisfyAll(ContainSubstring("GITHUB_TOKEN"), ContainSubstring("early-a"), Not(ContainSubstring("hunter2")))))
			w.Expect(f.Status.Tasks).To(BeEmpty())
			given := corev1.EnvVar{Name: "GITHUB_TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "github"}, Key: "token"}}}
			f = fork(w, "later", func(s *v1alpha1.ForkSpec) {
				s.Variants[0].Template = &v1alpha1.VariantTemplate{Env: []corev1.EnvVar{given}}
			})
			w.Eventually(w.objects.Object(f)).Should(forked)
			w.Expect(w.task("later-a").Spec.Template.Spec.Containers[0].Env).To(ConsistOf(corev1.EnvVar{Name: "MODE", Value: "fast"}, given))
		})

		It("with the spec that it had when it was deleted, which was not recorded while the store was down", func() {
			w := newWorld()
			p := w.running("source")
			w.store.Begin(w.id("source"), 1)
			w.complete("source", p)
			w.untilRecorded("source")
			w.store.SetDown(true)
			w.change("source", func(t *v1alpha1.Task) { t.Spec.BackoffLimit = ptr.To[int32](9) })
			task := w.task("source")
			w.Expect(w.client.Delete(w.ctx, task)).To(Succeed())
			f := fork(w, "try", func(s *v1alpha1.ForkSpec) { s.TaskUID = string(task.UID) })
			w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
			w.store.SetDown(false)
			w.Eventually(w.objects.Object(f)).Should(forked)
			w.Expect(w.task("try-a").Spec.BackoffLimit).To(HaveValue(BeEquivalentTo(9)))
		})

		It("unless its spec is not kept, which is said", func() {
			w := newWorld()
			uid := gone(w, "source")
			w.store.ForgetSpec(history.Key{Namespace: w.namespace, UID: uid})
			f := fork(w, "try", nil)
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonSpecNotKept))
			w.Expect(f).To(haveMessage(v1alpha1.ForkComplete, ContainSubstring("apply a Task with startFrom")))
			w.store.SetDown(true)
			f = fork(w, "down", nil)
			w.Eventually(w.objects.Object(f)).Should(HaveReason(v1alpha1.ForkComplete, v1alpha1.ReasonHistoryUnavailable))
		})
	})

	It("is continued by a Task of its name that adopts it, once", func() {
		w := newWorld()
		p := w.running("work")
		w.store.Begin(w.id("work"), 1)
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.store.SetOperations(w.id("work"), "Rewind/r", "Rewind/r/done")
		w.untilRecorded("work")
		former := w.task("work")
		w.create(&v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, Number: ptr.To[int64](1), Retention: v1alpha1.CheckpointKept,
		}})
		mine := w.checkpoint("mine")
		w.Expect(mine.Status.TaskUID).To(Equal(string(former.UID)))
		remove(w, former, p)

		again := []builders.TaskOption{builders.Rewind("r", "work-1"), func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest }}
		w.store.SetDown(true)
		w.apply("work", again...)
		w.until("work", v1alpha1.ReasonHistoryUnavailable)
		w.store.SetDown(false)
		p = w.pod("work", 2)
		w.Expect(w.config(p)).To(SatisfyAll(HaveField("Source", BeNil()), HaveField("Operation", BeNil())), "the rewind was carried out before")
		task := w.task("work")
		w.Expect(task.Status.Adoption).To(HaveField("TaskUID", string(former.UID)))
		w.Expect(task.Status.Rewind).To(HaveField("State", v1alpha1.OperationCompleted))
		w.checkpoint("work-1")
		w.Eventually(w.objects.Object(mine)).Should(HaveField("Status.TaskUID", string(task.UID)), "a Checkpoint that a user has made is of the new task")
		w.Expect(w.objects.Get(mine)()).To(Succeed())
		w.Expect(mine.Status.Number).To(BeEquivalentTo(1))
		w.start(p)
		w.complete("work", p)
		w.untilRecorded("work")

		By("adopting what has completed, with its code, though no pod asks for that")
		second := w.task("work")
		remove(w, second, p)
		w.branches.answer(gitstoreapi.New(gitstoreapi.QuotaExceeded, "ask for a larger one"))
		w.apply("work", again...)
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Conditions", ContainElement(SatisfyAll(
			HaveField("Type", v1alpha1.TaskSucceeded), HaveField("Status", metav1.ConditionUnknown), HaveField("Message", HaveSuffix("QuotaExceeded: ask for a larger one")),
		))))
		w.Eventually(w.branches.refusals).Should(BeNumerically(">", 1))
		w.Expect(w.task("work").Status.Adoption).To(BeNil())
		w.branches.answer(nil)
		w.until("work", v1alpha1.ReasonCompleted)
		w.Expect(w.branches.adoptions()).To(Equal([]string{
			string(former.UID) + " to " + string(second.UID), string(second.UID) + " to " + string(w.task("work").UID),
			string(former.UID) + " to " + string(w.task("work").UID),
		}))
		w.Expect(w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: resources.PodName("work", 3)}, &corev1.Pod{})).To(MatchError(apierrors.IsNotFound, "IsNotFound"))

		By("adopting it again when the history store is restored from a copy of before that, though no pod begins")
		w.store.GoBackToFormer(w.id("work"))
		w.Eventually(w.store.TaskState).WithArguments(w.ctx, string(w.task("work").UID)).Should(HaveField("Latest.Number", int64(2)))
		w.Expect(w.store.ContinuedBy(w.ctx, history.Key{Namespace: w.namespace, UID: string(second.UID)})).To(Equal(string(w.task("work").UID)))

		By("adopting it again from a copy of before the former task adopted it, too")
		w.Expect(w.task("work").Status.Adoption.FormerUIDs()).To(Equal([]string{string(second.UID), string(former.UID)}))
		w.store.SetDown(true)
		w.store.GoBackToFormer(w.id("work"))
		w.store.GoBackToFormer(history.Task{Namespace: w.namespace, Name: "work", UID: string(second.UID)})
		w.store.SetDown(false)
		w.Eventually(w.store.TaskState).WithArguments(w.ctx, string(w.task("work").UID)).Should(HaveField("Latest.Number", int64(2)))
	})

	It("is not continued by the Task itself, restored from a copy of before a later one adopted it, which says so", func() {
		w := newWorld()
		w.apply("work", builders.Suspended)
		former := w.task("work")
		w.store.Begin(w.id("work"), 1)
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		w.Expect(w.store.Adopt(w.ctx, history.Task{Namespace: w.namespace, Name: "work", UID: "later"}, string(former.UID))).To(Succeed())
		w.change("work", func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeRunning })
		w.until("work", v1alpha1.ReasonHistoryContinued)

		By("deleting it, and applying it again")
		w.Expect(w.client.Delete(w.ctx, former)).To(Succeed())
		w.untilGone(former)
		w.apply("work", func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest })
		w.pod("work", 2)
		w.Expect(w.task("work").Status.Adoption).To(HaveField("TaskUID", "later"))
	})

	It("has its spec kept again, and whether it was to run, by a history store that may be an older copy", func() {
		w := newWorld()
		w.running("work")
		key := history.Key{Namespace: w.namespace, UID: string(w.task("work").UID)}
		kept := func() (history.KeptSpec, error) { return w.store.KeptSpec(w.ctx, key) }
		running := HaveField("OperatingMode", string(v1alpha1.OperatingModeRunning))
		w.Eventually(kept).Should(running)
		w.store.ForgetSpec(key)
		w.store.SetDown(false) // as after each connection
		w.Eventually(kept).Should(running)
	})

	It("keeps the moments that Checkpoints without a number stand for", func() {
		w := newWorld()
		p := w.running("work")
		w.store.Begin(w.id("work"), 1)
		manual := func(name string) *v1alpha1.Checkpoint {
			return &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "work"}}}
		}
		release := manual("release")
		w.create(release)
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
			Attempt: 1, Durable: true, Trigger: string(v1alpha1.TriggerManual), RequestedByName: "release", RequestedByUID: string(release.UID),
		})
		w.Eventually(w.objects.Object(release)).Should(HaveField("Status.Number", BeEquivalentTo(1)))
		w.complete("work", p)
		w.untilRecorded("work")
		stopped := manual("stopped")
		w.create(stopped)
		w.Eventually(w.objects.Object(stopped)).Should(HaveField("Status.Number", BeEquivalentTo(2)))
		kept := manual("kept")
		w.create(kept)
		w.Eventually(w.objects.Object(kept)).Should(HaveField("Status.Number", BeEquivalentTo(2)))
		night := manual("nightly")
		w.create(night)
		w.Eventually(w.objects.Object(night)).Should(HaveField("Status.Number", BeEquivalentTo(2)))
		former := w.task("work")

		By("losing the names with the history store, which is restored from an older copy")
		w.store.LoseNames(history.Key{Namespace: w.namespace, UID: string(former.UID)})
		for name, number := range map[string]int64{"release": 1, "stopped": 2, "nightly": 2} {
			w.Eventually(w.store.Named).WithArguments(history.Key{Namespace: w.namespace, UID: string(former.UID)}, name).Should(HaveField("Number", number))
		}

		By("deleting one while the task exists, and others with it")
		w.Expect(w.client.Delete(w.ctx, night)).To(Succeed())
		w.Eventually(w.store.Named).WithArguments(history.Key{Namespace: w.namespace, UID: string(former.UID)}, "nightly").Should(BeZero())
		remove(w, former, p)
		w.Expect(w.client.Delete(w.ctx, release)).To(Succeed())
		w.Expect(w.client.Delete(w.ctx, stopped)).To(Succeed())

		By("applying them before the task, which takes another one")
		release, stopped = manual("release"), manual("stopped")
		w.create(release)
		w.create(stopped)
		w.Eventually(w.objects.Object(release)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound))
		w.apply("work", func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest })
		w.until("work", v1alpha1.ReasonCompleted)
		w.Eventually(w.objects.Object(release)).Should(HaveField("Status.Number", BeEquivalentTo(1)))
		w.Eventually(w.objects.Object(stopped)).Should(HaveField("Status.Number", BeEquivalentTo(2)))
		w.Eventually(w.objects.Object(kept)).Should(HaveField("Status.TaskUID", string(w.task("work").UID)))

		w.Expect(w.store.Events(string(w.task("work").UID))).To(SatisfyAll(
			ContainElement(HaveField("ID", "checkpoint-named/"+string(release.UID))), Not(ContainElement(HaveField("Reason", v1alpha1.EventCheckpointRequested)))), "it was requested before")

		By("applying others of their names, and the one that was deleted before, which stand for the state as it is now")
		w.Expect(release).To(haveMessage(v1alpha1.CheckpointReady, ContainSubstring("checkpoint 1 was taken for the last Checkpoint of this name")))
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Durable: true, Trigger: string(v1alpha1.TriggerDrift)})
		w.Eventually(w.latestCheckpoint).WithArguments("work").Should(HaveField("Number", BeEquivalentTo(3)))
		for _, c := range []*v1alpha1.Checkpoint{release, kept} {
			w.Expect(w.client.Delete(w.ctx, c)).To(Succeed())
			next := manual(c.Name)
			w.create(next)
			w.Eventually(w.objects.Object(next)).Should(HaveField("Status.Number", BeEquivalentTo(3)), c.Name)
		}
		night = manual("nightly")
		w.create(night)
		w.Eventually(w.objects.Object(night)).Should(HaveField("Status.Number", BeEquivalentTo(3)))
	})

	It("is not continued or started from in a namespace that was made anew, until that is granted", func() {
		w := newWorld()
		left := history.Task{Namespace: fakehistory.Earlier(w.namespace), Name: "work", UID: "left"}
		w.store.Begin(left, 1)
		w.store.AddCheckpoint(left, history.Checkpoint{Durable: true, Trigger: string(v1alpha1.TriggerToolCalls)})
		adopting := func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest }
		w.apply("work", adopting)
		w.apply("second", builders.StartFrom("gone", ""))
		left.Name, left.UID = "gone", "gone-uid"
		w.store.Begin(left, 1)
		w.store.AddCheckpoint(left, history.Checkpoint{Durable: true})
		w.until("work", v1alpha1.ReasonHistoryNotGranted)
		w.Expect(w.task("work")).To(haveMessage(v1alpha1.TaskSucceeded, Not(ContainSubstring("left"))), "the message has no details of it")
		w.until("second", v1alpha1.ReasonHistoryNotGranted)

		w.store.Grant(w.namespace)
		w.pod("work", 2)
		w.Expect(w.task("work").Status.Adoption).To(HaveField("TaskUID", "left"))
		w.Expect(w.config(w.pod("second", 1)).Source).To(HaveField("TaskUID", "gone-uid"))
	})

	It("is not taken for another task of its name", func() {
		w := newWorld()
		first := gone(w, "source")
		w.apply("source", builders.Suspended)
		w.apply("second", builders.StartFrom("source", ""), func(t *v1alpha1.Task) { t.Spec.StartFrom.TaskUID = first })
		w.Expect(w.config(w.pod("second", 1)).Source).To(HaveField("TaskUID", first))
		w.apply("third", builders.StartFrom("none", ""), func(t *v1alpha1.Task) { t.Spec.StartFrom.TaskUID = first })
		w.until("third", v1alpha1.ReasonSourceNotFound)
	})
})
