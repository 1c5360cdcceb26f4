package controller_test

import (
	"testing"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// TestATaskAtRestTellsThatTheHistoryStoreWentBack without being touched, and so does
// a Checkpoint that asks for its state: the store does not have it.
func TestATaskAtRestTellsThatTheHistoryStoreWentBack(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	w.checkpoint("work-1")
	w.store.GoBack(w.id("work"))
	task := w.task("work")
	w.untilCondition(task, func() []metav1.Condition { return task.Status.Conditions }, v1alpha1.TaskHistoryComplete, v1alpha1.ReasonHistoryBehind)
	w.Expect(task.Status.LatestCheckpoint.Number).To(gomega.BeEquivalentTo(1))
	w.Expect(task.Status.LatestCheckpoint.Name).To(gomega.Equal("work-1"))
	late := manual("late", "work")
	w.create(late)
	w.untilCondition(late, func() []metav1.Condition { return late.Status.Conditions }, v1alpha1.CheckpointReady, v1alpha1.ReasonHistoryBehind)
}
