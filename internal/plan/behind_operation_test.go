package plan

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// driftBehind is what prepare reports if an earlier pod had carried out the operation and could not
// finish, and files were changed since.
func driftBehind(kind, id string) daemonapi.PrepareResult {
	return daemonapi.PrepareResult{
		Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "a.txt was changed", DriftCount: 1, DriftedFiles: []string{"a.txt"},
		OperationKind: kind, Operation: id, FromCheckpoint: 2, ToCheckpoint: 1,
	}
}

func TestARewindThatIsDoneHasNotFailedByTheDriftThatIsFoundBehindIt(t *testing.T) {
	for name, c := range map[string]struct {
		scene func(*testing.T) *scene
		state string
	}{
		"of a suspended task": {atRestTask, v1alpha1.ReasonSuspended},
		"of a completed task": {func(t *testing.T) *scene { return completedTask(t) }, v1alpha1.ReasonRewound},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.scene(t)
			s.rewind("back", 1).step()
			s.prepareExits(1, driftBehind(daemonapi.OperationRewind, "back"))
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			s.wantMessage(s.status().Rewind.Message, "rewound to checkpoint 1", "checkpoint 2 holds the state before the rewind")
			s.wantState(c.state)
			s.wantStatus(v1alpha1.TaskDrifted, metav1.ConditionTrue, v1alpha1.ReasonDriftDetected, "a.txt was changed")
			s.wantEntries(v1alpha1.EventTaskStarted, s.status().History[1].Reason, v1alpha1.EventTaskRewound, v1alpha1.EventDriftDetected)
			if last := daemonapi.LastRewind(s.status()); last != "back" {
				t.Errorf("undo takes back %q", last)
			}
		})
	}
	t.Run("of a running task", func(t *testing.T) {
		s := running(t)
		s.rewind("back", 1).step()
		s.podGone()
		s.prepareExits(1, driftBehind(daemonapi.OperationRewind, "back"))
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
		s.wantPod(Pod{Attempt: 3})
		s.driftStops()
	})
	t.Run("and none that had failed before", func(t *testing.T) {
		s := completedTask(t)
		s.rewind("back", 1).step()
		result := driftBehind("", "")
		result.Operation, result.Failed = failedRewind("back", v1alpha1.ReasonBranchExists).Operation, failedRewind("back", v1alpha1.ReasonBranchExists).Failed
		s.prepareExits(1, result)
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonBranchExists)
		s.wantState(v1alpha1.ReasonCompleted)
	})
	t.Run("but something else", func(t *testing.T) {
		s := completedTask(t)
		s.rewind("back", 1).step()
		result := driftBehind(daemonapi.OperationRewind, "back")
		result.Reason, result.DriftCount, result.DriftedFiles = v1alpha1.ReasonGitStoreRefused, 0, nil
		s.prepareExits(1, result)
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
		s.wantState(v1alpha1.ReasonRewound)
	})
}

// The conversation has the prompt, which waits for the agent: given again, the agent would get it twice.
func TestAResumeThatIsDoneHasNotFailedByTheDriftThatIsFoundBehindIt(t *testing.T) {
	s := completedTask(t)
	s.change(resume("more", "More.")).step()
	s.prepareExits(1, driftBehind(daemonapi.OperationResume, "more"))
	s.wantOperation(s.status().Resume, "more", v1alpha1.OperationCompleted, "")
	s.wantState(v1alpha1.ReasonDriftDetected)
	if m := s.wantCondition(v1alpha1.TaskSucceeded).Message; strings.Contains(m, "repeat the prompt") {
		t.Errorf("the prompt is to be repeated: %s", m)
	}
	s.change(builders.Resume("keep"), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.wantOperation(s.status().Resume, "keep", v1alpha1.OperationInProgress, "")
}
