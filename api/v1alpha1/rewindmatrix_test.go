package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

// TestEachRewindThatMakesNoSenseIsRefused: every combination of target, scope, preserve and paths,
// in every state of a task. The API server accepts exactly the legal ones, and says of the others
// what to do.
func TestEachRewindThatMakesNoSenseIsRefused(t *testing.T) {
	conditions := map[rewindmatrix.State]metav1.Condition{
		rewindmatrix.Running:   {Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonRunning},
		rewindmatrix.Suspended: {Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonSuspended},
		rewindmatrix.Failed:    {Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAgentFailed},
		rewindmatrix.Completed: {Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompleted},
	}
	tasks := map[rewindmatrix.State]*v1alpha1.Task{}
	for state, condition := range conditions {
		task := created(t, builders.Task("rewound-"+string(state)))
		task.Status.HandledOperations = []string{"Rewind/earlier"}
		task.Status.Rewind = &v1alpha1.OperationStatus{ID: "earlier", State: v1alpha1.OperationCompleted}
		setSucceeded(t, task, condition.Status, condition.Reason)
		tasks[state] = task
	}
	accepted, refused := 0, 0
	for _, cell := range rewindmatrix.All() {
		task := tasks[cell.State].DeepCopy()
		task.Spec.Rewind = requestOf(cell)
		err := server.Client.Update(t.Context(), task, client.DryRunAll)
		sentences := cell.Refusals()
		if len(sentences) == 0 {
			accepted++
			if err != nil {
				t.Errorf("%s is refused: %v", cell, err)
			}
			continue
		}
		refused++
		for _, sentence := range sentences {
			if err == nil || !strings.Contains(err.Error(), sentence) {
				t.Errorf("%s is refused with\n  %v\nwanted\n  %s", cell, err, sentence)
			}
		}
	}
	t.Logf("%d cells: %d accepted, %d refused", accepted+refused, accepted, refused)
}

// requestOf returns the rewind of a cell with all its fields, those included that an undo leaves out.
func requestOf(cell rewindmatrix.Cell) *v1alpha1.Rewind {
	r := &v1alpha1.Rewind{ID: "back", Scope: cell.Scope, Preserve: cell.Preserve}
	if cell.Paths {
		r.Paths = []string{"src", "*.go"}
	}
	r.To = map[rewindmatrix.Target]v1alpha1.RewindTarget{
		rewindmatrix.Checkpoint: {CheckpointNumber: ptr.To[int64](1)},
		rewindmatrix.Commit:     {Commit: strings.Repeat("a", 40)},
		rewindmatrix.Time:       {Time: ptr.To(metav1.Now())},
		rewindmatrix.Message:    {Message: ptr.To[int64](2)},
		rewindmatrix.Undo:       {UndoOf: "earlier"},
	}[cell.Target]
	return r
}
