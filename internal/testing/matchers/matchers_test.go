package matchers_test

import (
	"testing"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

func task() *v1alpha1.Task {
	t := &v1alpha1.Task{}
	t.Status.Conditions = []metav1.Condition{{Type: "Succeeded", Status: metav1.ConditionUnknown, Reason: "Running", Message: "attempt 2 runs"}}
	t.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: 3}
	return t
}

func TestReasonsAreFoundInObjectsAndLists(t *testing.T) {
	g := gomega.NewWithT(t)
	g.Expect(task()).To(matchers.HaveReason("Succeeded", "Running"))
	g.Expect(task().Status.Conditions).To(matchers.HaveReason("Succeeded", "Running"))
	g.Expect(task()).NotTo(matchers.HaveReason("Succeeded", "Completed"))
	g.Expect(task()).NotTo(matchers.HaveReason("Durable", "Running"))
	g.Expect(task()).To(matchers.HaveCondition("Succeeded", metav1.ConditionUnknown))
	g.Expect(task()).To(matchers.HaveCheckpointed(3))
	g.Expect(task()).NotTo(matchers.HaveCheckpointed(4))
}

func TestAFailureListsTheConditions(t *testing.T) {
	g := gomega.NewWithT(t)
	message := matchers.HaveReason("Succeeded", "Completed").FailureMessage(task())
	g.Expect(message).To(gomega.Equal("Expected the condition Succeeded to have the reason Completed. The conditions are:\n    Succeeded=Unknown Running: attempt 2 runs"))
}
