package controller_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// secret is a task of another namespace, with a checkpoint and a snapshot.
func (w *world) secret() history.Task {
	secret := history.Task{Namespace: "elsewhere", Name: "secret", UID: "11111111-2222-3333-4444-555555555555"}
	w.store.Begin(secret, 1)
	w.store.AddCheckpoint(secret, history.Checkpoint{
		Trigger: string(v1alpha1.TriggerManual), Time: time.Now(), Commit: strings.Repeat("c0", 20), GitBranch: "acquisition", Durable: true,
	})
	w.store.AddSnapshot(secret, history.Snapshot{Position: history.Position{Branch: "main", Position: 1}, Time: time.Now(), Digest: "secret"})
	return secret
}

// as is the metadata of an object that claims to be the manager's own, made for
// the task of that UID.
func (w *world) as(uid, name, label string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: w.namespace, Name: name,
		Labels: map[string]string{v1alpha1.LabelTaskUID: uid, label: "1"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task", Name: "work", UID: types.UID(uid), Controller: ptr.To(true),
		}},
	}
}

var _ = Describe("an object with the name of a task's checkpoint or snapshot", func() {
	It("does not hold up the task, whose checkpoint goes by its number", func() {
		w := newWorld()
		w.running("work", func(t *v1alpha1.Task) { t.Spec.Conversation.SnapshotEveryMessages = ptr.To[int32](5) })
		uid := w.id("work").UID
		others := v1alpha1.NameReference{Name: "another"}
		for _, name := range []string{"work-1", "work-1-" + uid[:5], "work-2", "work-3", "work-3-" + uid[:5]} {
			w.create(&v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CheckpointSpec{TaskRef: others}})
		}
		w.create(&v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "work-snapshot-1"}, Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: others}})
		w.say("work", 5)
		w.note("work", 5)
		w.checkpointAt("work", 2)
		w.Eventually(w.latestCheckpoint).WithArguments("work").Should(And(HaveField("Number", BeEquivalentTo(1)), HaveField("Name", "")))
		w.checkpointAt("work", 2)
		w.Eventually(w.latestCheckpoint).WithArguments("work").Should(And(HaveField("Number", BeEquivalentTo(2)), HaveField("Name", "work-2-"+uid[:5])))
		w.checkpoint("work-2-" + uid[:5])
		w.Eventually(func() int64 { return w.task("work").Status.SnapshotCount }).Should(BeEquivalentTo(1))

		By("starting from the latest checkpoint, which has no object")
		w.checkpointAt("work", 2)
		w.Eventually(w.latestCheckpoint).WithArguments("work").Should(HaveField("Number", BeEquivalentTo(3)))
		w.apply("next", builders.StartFrom("work", ""))
		w.Eventually(func() *v1alpha1.SourceStatus { return w.task("next").Status.Source }).Should(HaveField("Checkpoint", BeEquivalentTo(3)))
	})
})

// latestCheckpoint is the one in a task's status; the zero value for none.
func (w *world) latestCheckpoint(name string) v1alpha1.CheckpointSummary {
	return ptr.Deref(w.task(name).Status.LatestCheckpoint, v1alpha1.CheckpointSummary{})
}

var _ = Describe("an object that names another namespace's task", func() {
	It("shows nothing of it when it is created by hand", func() {
		w := newWorld()
		secret := w.secret()
		w.running("work")
		for _, task := range []string{"work", "nothing"} {
			forged := &v1alpha1.Checkpoint{
				ObjectMeta: w.as(secret.UID, "forged-"+task, v1alpha1.LabelCheckpoint),
				Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task}},
			}
			w.Expect(w.client.Create(w.ctx, forged)).To(Succeed())
			w.Eventually(w.objects.Object(forged)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound))
			w.Expect(forged.Status.Commit).To(BeEmpty())
			w.Expect(forged.Status.Git).To(BeNil())

			snapshot := &v1alpha1.ConversationSnapshot{
				ObjectMeta: w.as(secret.UID, "forged-"+task, v1alpha1.LabelSnapshot),
				Spec:       v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: task}},
			}
			w.Expect(w.client.Create(w.ctx, snapshot)).To(Succeed())
			w.Eventually(w.objects.Object(snapshot)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonTaskNotFound))
			w.Expect(snapshot.Status.Digest).To(BeEmpty())
		}
	})

	It("is not filled when its status names it", func() {
		w := newWorld()
		secret := w.secret()
		w.stop()
		forged := &v1alpha1.Checkpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "forged"},
			Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "work"}},
		}
		w.Expect(w.client.Create(w.ctx, forged)).To(Succeed())
		forged.Status.TaskUID, forged.Status.Number = secret.UID, 1
		w.Expect(w.client.Status().Update(w.ctx, forged)).To(Succeed())
		w.startManager()
		w.running("work")
		w.checkpointAt("work", 1)
		w.checkpoint("work-1")
		w.Expect(w.client.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: "forged"}, forged)).To(Succeed())
		w.Expect(forged.Status.Commit).To(BeEmpty())
	})
})
