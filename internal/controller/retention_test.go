package controller_test

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
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

var _ = Describe("the retention of checkpoints", func() {
	It("keeps the newest automatic ones", func() {
		w := newWorld()
		w.stop()
		w.keep = 3
		w.startManager()
		w.running("work")
		w.recordMany("work", 8)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-5", "work-6", "work-7", "work-8"}), "three, and the latest")
		rows, err := w.store.CheckpointsAfter(w.ctx, w.id("work").UID, 0, 100)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(rows).To(HaveLen(8), "the records stay")
		w.recordMany("work", 2)
		w.Eventually(w.checkpointNames).Should(Equal([]string{"work-10", "work-7", "work-8", "work-9"}))
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
		w.keep = 1
		w.startManager()
		w.store.AddCheckpoints(w.id("work"),
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true},
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true},
			history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Durable: true})
		w.Eventually(w.checkpointNames).Should(And(
			Not(ContainElement("work-1")), Not(ContainElement("work-5")), Not(ContainElement("work-8"))))
		w.Expect(w.checkpointNames()).To(ContainElements("work-2", "work-3", "work-4", "work-6", "asked", "forged", "work-9", "work-10"))
	})
})
