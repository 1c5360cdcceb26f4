package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a task at rest", func() {
	When("the history store was restored from an older copy", func() {
		// The task need not change for that. A Checkpoint that requests its state reports the
		// same: the store does not have it.
		It("reports what the store lacks", func() {
			w := newWorld()
			w.complete("work", w.running("work"))
			w.checkpoint("work-1")
			By("restoring the history store from an older copy")
			w.store.GoBack(w.id("work"))
			task := w.task("work")
			w.Eventually(w.objects.Object(task)).Should(HaveReason(v1alpha1.TaskHistoryComplete, v1alpha1.ReasonHistoryBehind))
			w.Expect(task.Status.LatestCheckpoint.Number).To(BeEquivalentTo(1))
			w.Expect(task.Status.LatestCheckpoint.Name).To(Equal("work-1"))
			By("requesting a checkpoint")
			late := manual("late", "work")
			w.create(late)
			w.Eventually(w.objects.Object(late)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonHistoryBehind))
		})
	})
})
