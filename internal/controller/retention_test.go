package controller_test

import (
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// checkpointNames returns the names of the namespace's Checkpoints.
func (w *world) checkpointNames() []string {
	w.Helper()
	list := &v1alpha1.CheckpointList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	var names []string
	for _, c := range list.Items {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// retain sets the retention of a Checkpoint, as kubectl patch does.
func (w *world) retain(name string, keep v1alpha1.CheckpointKeep) {
	w.Helper()
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	patch := fmt.Appendf(nil, `{"spec":{"retention":%q}}`, keep)
	w.Expect(w.client.Patch(w.ctx, c, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

var _ = Describe("the retention of checkpoints", func() {
	It("keeps the newest automatic ones", func() {
		w := newWorld()
		w.stop()
		w.keep = 3
		w.startManager()
		w.running("work")
		w.recordMany("work", 8)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-6", "work-7", "work-8"}))
		rows, err := w.store.CheckpointsAfter(w.ctx, w.id("work").UID, 0, 100)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(rows).To(HaveLen(8), "the records stay")
		w.recordMany("work", 2)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-10", "work-8", "work-9"}))
	})

	It("is seen to be changed, though nothing else of the checkpoint is", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 1)
		c := w.checkpoint("work-1")
		w.retain("work-1", v1alpha1.CheckpointKept)
		w.Eventually(w.objects.Object(c)).Should(HaveField("Status", SatisfyAll(
			HaveField("ObservedGeneration", BeEquivalentTo(2)), HaveField("Number", BeEquivalentTo(1)),
			HaveField("Conditions", HaveEach(HaveField("ObservedGeneration", BeEquivalentTo(2)))),
		)))
	})

	It("keeps those that are named or were requested", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 5)
		w.checkpoint("work-5")
		w.record("work", v1alpha1.TriggerPreRewind, 1)
		w.checkpoint("work-6")

		asked := manual("asked", "work")
		w.create(asked)
		row := w.record("work", v1alpha1.TriggerManual, 1)
		w.Expect(row.Number).To(BeEquivalentTo(7))
		w.create(&v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "other-way"}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "work"}, CheckpointRef: &v1alpha1.NameReference{Name: "work-2"},
			Variants: []v1alpha1.ForkVariant{{Name: "forked"}},
		}})
		w.apply("from", builders.StartFrom("work", "work-3"), builders.Suspended)
		w.apply("back", builders.Suspended)
		w.change("back", builders.Rewind("there", "work-4"))
		forged := &v1alpha1.Checkpoint{
			ObjectMeta: w.as(w.id("work").UID, "forged", v1alpha1.LabelCheckpoint),
			Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "work"}},
		}
		w.Expect(w.client.Create(w.ctx, forged)).To(Succeed())
		w.checkpoint("forged")

		w.stop()
		w.keep = 2
		w.startManager()
		w.store.AddCheckpoints(w.id("work"),
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true},
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true},
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true})
		w.Eventually(w.checkpointNames).Should(And(
			Not(ContainElement("work-1")), Not(ContainElement("work-5")), Not(ContainElement("work-8"))))
		w.Expect(w.checkpointNames()).To(ContainElements("work-2", "work-3", "work-4", "work-6", "asked", "forged", "work-9", "work-10"))
	})

	It("is the task's own, and can be changed", func() {
		w := newWorld()
		w.stop()
		w.settle = time.Second
		w.startManager()
		w.running("work", builders.KeepLast(4))
		w.recordMany("work", 10)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-10", "work-7", "work-8", "work-9"}))
		w.retain("work-7", v1alpha1.CheckpointKept)
		w.recordMany("work", 3)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-10", "work-11", "work-12", "work-13", "work-7"}))
		w.change("work", builders.KeepLast(2))
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-12", "work-13", "work-7"}))
		w.retain("work-7", v1alpha1.CheckpointByPolicy)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-12", "work-13"}))
	})

	It("deletes the last few only once the task takes no checkpoint for a while", func() {
		w := newWorld()
		w.stop()
		w.settle = time.Hour
		w.startManager()
		w.running("work", builders.KeepLast(20))
		w.recordMany("work", 22)
		w.checkpoint("work-22")
		w.Consistently(w.checkpointNames, time.Second).Should(HaveLen(22), "a tenth too many may stay")
		w.recordMany("work", 1)
		w.Eventually(w.checkpointNames).Should(HaveLen(20))
		w.recordMany("work", 1)
		w.checkpoint("work-24")
		w.stop()
		w.settle = time.Millisecond
		w.startManager()
		w.Eventually(w.checkpointNames).Should(SatisfyAll(HaveLen(20), Not(ContainElement("work-4"))))
	})

	It("keeps an applied one until it says ByPolicy", func() {
		w := newWorld()
		w.running("work", builders.KeepLast(1))
		asked := manual("asked", "work")
		w.create(asked)
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
			Attempt: 1, Trigger: string(v1alpha1.TriggerManual), Durable: true, RequestedByName: "asked", RequestedByUID: string(asked.UID),
		})
		w.checkpoint("asked")
		w.recordMany("work", 3)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"asked", "work-4"}))
		w.retain("asked", v1alpha1.CheckpointByPolicy)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-4"}))
	})

	It("deletes those that were kept for their age when they are old enough", func() {
		w := newWorld()
		w.stop()
		w.settle = 10 * time.Millisecond
		w.startManager()
		w.running("work", builders.KeepLast(1), func(t *v1alpha1.Task) {
			t.Spec.CheckpointPolicy.Retention.KeepForSeconds = ptr.To[int32](3)
		})
		w.recordMany("work", 4)
		w.checkpoint("work-4")
		w.Expect(w.checkpointNames()).To(HaveLen(4))
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-4"}))
	})

	It("is undone for one checkpoint by an object that names its number", func() {
		w := newWorld()
		w.running("work", builders.KeepLast(2))
		w.recordMany("work", 3)
		w.record("work", v1alpha1.TriggerInterval, 1)
		w.checkpoint("work-4")
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-3", "work-4"}))
		again := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "work-1"}, Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, Number: ptr.To[int64](1), Retention: v1alpha1.CheckpointKept,
		}}
		w.create(again)
		w.Expect(w.checkpoint("work-1").Status).To(And(
			HaveField("Number", BeEquivalentTo(1)), HaveField("Trigger", v1alpha1.TriggerToolCalls), HaveField("TaskUID", w.id("work").UID), HaveField("RequestedBy", "suite")))
		w.recordMany("work", 5)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-1", "work-8", "work-9"}))
		w.Eventually(w.reasons).WithArguments("work").Should(ContainElement(v1alpha1.EventCheckpointNamed))
		w.Expect(w.reasons("work")).NotTo(ContainElement(v1alpha1.EventCheckpointRequested))

		// The manager that creates objects anew, as after a restored etcd, makes no second one.
		w.Eventually(func() error {
			t, err := w.current("work")
			if err != nil {
				return err
			}
			t.Status.LatestCheckpoint, t.Status.CheckpointObjectsThrough = nil, ptr.To[int64](0)
			return w.client.Status().Update(w.ctx, t)
		}).Should(Succeed())
		w.record("work", v1alpha1.TriggerInterval, 1)
		w.checkpoint("work-10")
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-1", "work-10", "work-9"}))
	})

	It("names a number that the history does not have until the history has it", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 1)
		w.checkpoint("work-1")
		wrong := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, Number: ptr.To[int64](2),
		}}
		w.create(wrong)
		w.Eventually(w.objects.Object(wrong)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonCheckpointNotFound))
		w.Expect(wrong).To(haveMessage(v1alpha1.CheckpointReady, Equal(`the history of task "work" has no checkpoint 2: delete this object, and name another number`)))
		w.recordMany("work", 1)
		w.Expect(w.checkpoint("wrong").Status.Number).To(BeEquivalentTo(2))
		nobody := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "nobody-s"}, Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: "nobody"}, Number: ptr.To[int64](1),
		}}
		w.create(nobody)
		w.Eventually(w.objects.Object(nobody)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound))
	})

	It("leaves a snapshot of its number the position", func() {
		w := newWorld()
		w.running("work", builders.KeepLast(1))
		w.checkpointAt("work", 4)
		w.checkpointAt("work", 9)
		w.checkpoint("work-2")
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-2"}))
		at := func(name string, number int64) *v1alpha1.ConversationSnapshot {
			return &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ConversationSnapshotSpec{
				TaskRef: v1alpha1.NameReference{Name: "work"}, CheckpointNumber: &number,
			}}
		}
		first, none := at("first", 1), at("none", 7)
		w.create(first)
		w.create(none)
		w.Eventually(w.objects.Object(first)).Should(HaveCondition(v1alpha1.SnapshotReady, metav1.ConditionTrue))
		w.Expect(first.Status).To(And(HaveField("Checkpoint", BeEquivalentTo(1)), HaveField("Conversation.Position", BeEquivalentTo(4))))
		w.Eventually(w.objects.Object(none)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonCheckpointNotFound))
	})
})
