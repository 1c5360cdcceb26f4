package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
)

// checkReasons checks that the table of reasons lists each reason that the controllers wrote
// in the world's namespace, for its condition.
func (w *world) checkReasons(ctx SpecContext) {
	inNamespace := client.InNamespace(w.namespace)
	knows := func(kind, name string, conditions []metav1.Condition) {
		for _, c := range conditions {
			Expect(reason.Find(c.Reason).On).To(ContainElement(reason.Place{Kind: kind, Condition: c.Type}),
				"the table of reasons lacks %s for the condition %s of the %s %s: %s", c.Reason, c.Type, kind, name, c.Message)
		}
	}
	var tasks v1alpha1.TaskList
	Expect(w.client.List(ctx, &tasks, inNamespace)).To(Succeed())
	for _, o := range tasks.Items {
		knows("Task", o.Name, o.Status.Conditions)
	}
	var checkpoints v1alpha1.CheckpointList
	Expect(w.client.List(ctx, &checkpoints, inNamespace)).To(Succeed())
	for _, o := range checkpoints.Items {
		knows("Checkpoint", o.Name, o.Status.Conditions)
	}
	var forks v1alpha1.ForkList
	Expect(w.client.List(ctx, &forks, inNamespace)).To(Succeed())
	for _, o := range forks.Items {
		knows("Fork", o.Name, o.Status.Conditions)
	}
	var snapshots v1alpha1.ConversationSnapshotList
	Expect(w.client.List(ctx, &snapshots, inNamespace)).To(Succeed())
	for _, o := range snapshots.Items {
		knows("ConversationSnapshot", o.Name, o.Status.Conditions)
	}
}
