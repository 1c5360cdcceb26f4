package plan

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// prompted adds a prompt to the resume that the Task requests.
func prompted(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "The other way." }

// resumeWaits returns a scene whose task is to be resumed from checkpoint 1, by a pod that has yet to
// start.
func resumeWaits(t *testing.T, scene func(*testing.T) *scene) *scene {
	t.Helper()
	s := scene(t)
	s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
	s.change(builders.Resume("on"), fromNumber(1), prompted, builders.Running).step()
	s.wantStarted(2)
	return s
}

// rewoundTo is what prepare reports about a rewind that was carried out.
func rewoundTo(id string) daemonapi.PrepareResult {
	return daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationRewind, Operation: id, FromCheckpoint: 10, ToCheckpoint: 1}
}

func TestAResumeThatARewindOvertakesIsNotCarriedOut(t *testing.T) {
	t.Run("while the agent works", func(t *testing.T) {
		s := resumeWaits(t, atRestTask)
		s.rewind("back", 1).step()
		s.wantOperation(s.status().Resume, "on", v1alpha1.OperationInProgress, "") // until its pod is gone
		s.podGone()
		p := s.wantStarted(3)
		if p.Operation == nil || p.Operation.ID != "back" || p.PrepareOnly || p.Prompt != "" {
			t.Fatalf("started %+v", p)
		}
		s.wantOperation(s.status().Resume, "on", v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation)
		s.wantMessage(s.status().Resume.Message, "a rewind was requested before it was carried out: request the resume again after it")
		s.managerRestarts().step()
		s.prepared(rewoundTo("back"))
		s.agentRuns()
		s.after(5 * time.Hour).podGone()
		if p := s.wantStarted(4); p.Operation != nil || p.Prompt != "" {
			t.Errorf("after the loss of the agent's pod it is started with %+v", p)
		}
		s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed, v1alpha1.EventOperationFailed,
			v1alpha1.EventTaskRewound, v1alpha1.EventPodLost, v1alpha1.EventTaskRetried)
	})
	for name, ended := range map[string]func(*testing.T) *scene{"completed": func(t *testing.T) *scene { return completedTask(t) }, "failed": failedTask} {
		for how, end := range map[string]func(*testing.T, *scene){
			"its pod is stopped": func(_ *testing.T, s *scene) { s.rewind("back", 1).step().podGone() },
			"and was suspended": func(_ *testing.T, s *scene) {
				s.change(builders.Suspended).step().podGone()
				s.wantState(v1alpha1.ReasonSuspended)
				s.rewind("back", 1).step()
			},
			"its pod is lost as well": func(_ *testing.T, s *scene) { s.podGone(); s.rewind("back", 1).step().podGone() },
			"it was being retried": func(_ *testing.T, s *scene) {
				s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable, Message: "no answer"})
				s.rewind("back", 1).step()
			},
		} {
			t.Run("and a task that had "+name+" stays ended, "+how, func(t *testing.T) {
				s := resumeWaits(t, ended)
				end(t, s)
				s.wantOperation(s.status().Resume, "on", v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation)
				if p := s.started(); p == nil || !p.PrepareOnly || p.Operation.ID != "back" {
					t.Fatalf("started %+v", p)
				}
				s.prepared(rewoundTo("back"))
				s.wantState(v1alpha1.ReasonRewound)
				if s.change(builders.Running).after(time.Hour).step().started() != nil {
					t.Error("the agent was started")
				}
				s.change(builders.Resume("again"), builders.Running).step()
				s.wantOperation(s.status().Resume, "again", v1alpha1.OperationInProgress, "")
			})
		}
	}
}

// The history store has what the pod carried out before it was stopped.
func TestAResumeThatWasCarriedOutBeforeTheRewindIsComplete(t *testing.T) {
	s := resumeWaits(t, atRestTask)
	s.rewind("back", 1).step()
	s.o.History.State.CompletedOperations = []string{"Resume/on"}
	s.o.History.Known = false
	s.podGone()
	if s.started() != nil {
		t.Fatal("the rewind begins while it is not known whether the resume was carried out")
	}
	s.o.History.Known = true
	s.after(time.Minute).step()
	s.wantStarted(3)
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")

	s = resumeWaits(t, atRestTask)
	s.rewind("back", 1).step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationResume, Operation: "on", FromCheckpoint: 2, ToCheckpoint: 1})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
}

// The rewind is withdrawn, or refused, before it has begun.
func TestAResumeGoesOnWithoutTheRewindThatWouldHaveOvertakenIt(t *testing.T) {
	s := resumeWaits(t, atRestTask)
	s.rewind("back", 1).step()
	s.change(func(t *v1alpha1.Task) { t.Spec.Rewind = nil }).step()
	s.podGone()
	if op := s.startedOperation(); op.ID != "on" {
		t.Errorf("started %+v", op)
	}
}

// A status of an older manager, which left the resume in progress.
func TestAResumeThatAnOlderManagerLeftInProgressIsNotCarriedOut(t *testing.T) {
	s := resumeWaits(t, atRestTask)
	s.rewind("back", 1).step()
	s.podGone()
	s.prepared(rewoundTo("back"))
	s.agentRuns()
	op := s.status().Resume
	op.State, op.Reason, op.Message, op.EndTime = v1alpha1.OperationInProgress, "", "", nil
	s.managerRestarts().step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation)
	s.wantState(v1alpha1.ReasonRunning)
}

func TestAResumeThatIsRequestedTogetherWithARewindFollowsIt(t *testing.T) {
	s := completedTask(t)
	s.rewind("back", 1).change(resume("on", "The other way."), func(t *v1alpha1.Task) {
		t.Spec.Rewind.To = v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}
	}).step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	if s.started() != nil {
		t.Fatal("the resume does not wait for the rewind")
	}
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
	s.after(time.Minute).step()
	s.prepared(rewoundTo("back"))
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationInProgress, "")
	if op := s.startedOperation(); op.Prompt != "The other way." {
		t.Errorf("the agent gets %+v", op)
	}
}
