package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// driftStops lets the attempt that has just been started find changed files.
func (s *scene) driftStops() *scene {
	s.Helper()
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "a.txt was changed", DriftCount: 1, DriftedFiles: []string{"a.txt"}})
	s.wantState(v1alpha1.ReasonDriftDetected)
	return s
}

// A prompt that drift keeps from the agent is not forgotten: the agent of a completed task must not
// run again without one.
func TestACompletedTaskThatDriftStopsStillNeedsAPrompt(t *testing.T) {
	drifted := func(t *testing.T) *scene {
		s := completedTask(t)
		s.change(resume("more", "More.")).step()
		return s.driftStops()
	}
	s := drifted(t)
	s.wantMessage(s.wantCondition(v1alpha1.TaskSucceeded).Message, "onDrift Preserve or Override, and repeat the prompt")
	s.change(builders.Resume("keep"), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.wantOperation(s.status().Resume, "keep", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	s.wantMessage(s.status().Resume.Message, "a completed task continues only with a new prompt", "repeat the prompt of the resume that was not carried out")
	s.wantState(v1alpha1.ReasonDriftDetected)
	s.change(resume("again", "More.")).step()
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable, Message: "no answer"})
	s.after(time.Minute).step()
	s.driftStops() // once more, after a try that found out nothing
	s.rewind("rewound", 1).step()
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "it is damaged"})
	s.change(builders.Resume("discard"), onDrift(v1alpha1.OnDriftOverride)).step()
	s.wantOperation(s.status().Resume, "discard", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	s.change(resume("prompted", "More."), onDrift(v1alpha1.OnDriftPreserve)).step()
	if op := s.startedOperation(); op.Prompt != "More." {
		t.Errorf("the agent gets the prompt %q", op.Prompt)
	}

	s = drifted(t)
	s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
	s.change(builders.Resume("back"), fromNumber(1), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.wantOperation(s.status().Resume, "back", v1alpha1.OperationInProgress, "")

	// A task that had not completed goes on without one.
	for name, scene := range map[string]func(*testing.T) *scene{"suspended": atRestTask, "failed": failedTask, "rewound": rewoundTask} {
		s := scene(t)
		s.change(builders.Resume("on"), builders.Running).step()
		s.driftStops()
		if message := s.wantCondition(v1alpha1.TaskSucceeded).Message; strings.Contains(message, "repeat") {
			t.Errorf("%s: nothing is to be repeated: %s", name, message)
		}
		s.change(builders.Resume("keep"), onDrift(v1alpha1.OnDriftPreserve)).step()
		s.wantOperation(s.status().Resume, "keep", v1alpha1.OperationInProgress, "")
	}
}

// What keeps a follow-up from the agent need not be drift, nor the same each time.
func TestACompletedTaskWhoseFollowUpIsBlockedStillNeedsAPrompt(t *testing.T) {
	s := completedTask(t)
	s.change(resume("more", "More.")).step()
	s.podGone() // before it is prepared
	s.after(time.Minute).prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "it is damaged"})
	s.wantState(v1alpha1.ReasonCheckpointCorrupted)
	s.wantMessage(s.wantCondition(v1alpha1.TaskSucceeded).Message, "fix the cause, then resume the task, and repeat the prompt, which the agent has not got")
	s.change(builders.Resume("on")).step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	s.wantMessage(s.status().Resume.Message, "a completed task continues only with a new prompt", "repeat the prompt of the resume that was not carried out")
	s.change(resume("again", "More.")).step()
	s.driftStops()
	s.change(builders.Resume("keep"), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.wantOperation(s.status().Resume, "keep", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	s.change(resume("prompted", "More."), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "prompted"})
	s.agentRuns()
	// Its agent has the prompt: nothing is to be repeated.
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Running).step()
	s.driftStops()
	s.change(builders.Resume("simply"), onDrift(v1alpha1.OnDriftPreserve)).step()
	s.wantOperation(s.status().Resume, "simply", v1alpha1.OperationInProgress, "")
}

// onDrift sets what the resume that the Task requests does about drift.
func onDrift(do v1alpha1.OnDrift) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Resume.OnDrift = do }
}
