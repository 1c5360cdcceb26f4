package plan

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// What had ended a child at the moment of a set has ended it again once the child is rewound to that.

// completedInSet returns a child that had completed in a set, with checkpoint 1 of its attempt 1, and works
// again, since it was resumed.
func completedInSet(t *testing.T) *scene {
	t.Helper()
	s := runningChild(t)
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	s.change(builders.Resume("more"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "more" }).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "more"})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	s.o.RewindRecord = recorded()
	return s
}

// completes has the agent complete the task.
func (s *scene) completes() *scene {
	s.Helper()
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	return s
}

// parentRewindsTo returns a parent that was rewound to a set in which the scene's task was at rest since an
// attempt.
func parentRewindsTo(attempt int64, scope v1alpha1.RewindScope) *v1alpha1.Task {
	p := parentRewinds("back", v1alpha1.OperationCompleted)
	p.Status.SetRewind.Children[0].Attempt, p.Status.SetRewind.Scope = attempt, scope
	return p
}

// followsTo has the scene's task follow a rewind of its parent, in a pod that does nothing else if only is true.
func (s *scene) followsTo(parent *v1alpha1.Task, id string, from int64, only bool) *scene {
	s.Helper()
	s.o.Parent.Task = parent
	s.step()
	s.step()
	s.wantOperation(s.status().Rewind, id, v1alpha1.OperationInProgress, "")
	if active := newDecision(s.o, s.now).active(); active != nil && active.Number != s.status().Rewind.Attempt {
		s.podGone()
	}
	if got := s.status().Attempts[len(s.status().Attempts)-1].Purpose == v1alpha1.AttemptForRewind; got != only {
		s.Fatalf("the pod only rewinds: %v, want %v", got, only)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: id, FromCheckpoint: from, ToCheckpoint: 3})
	s.wantOperation(s.status().Rewind, id, v1alpha1.OperationCompleted, "")
	return s
}

func TestAChildThatHadCompletedInTheSetIsCompletedAgain(t *testing.T) {
	for name, scene := range map[string]func(*testing.T) *scene{
		"and works again":         completedInSet,
		"and has completed since": func(t *testing.T) *scene { return completedInSet(t).completes() },
		"and was rewound meanwhile": func(t *testing.T) *scene {
			s := completedInSet(t).completes()
			s.rewindTo("own", v1alpha1.RewindBoth, toNumber(3)).step()
			s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "own", FromCheckpoint: 7, ToCheckpoint: 3})
			s.wantState(v1alpha1.ReasonRewound)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene(t).followsTo(parentRewindsTo(1, v1alpha1.RewindBoth), "parent-back", 9, true)
			s.wantState(v1alpha1.ReasonCompleted)
			if end := endedAs(s.o.Task); end == nil || end.attempt != 1 {
				t.Errorf("it has ended as %+v", end)
			}
			if got := newDecision(s.o, s.now).stateInHistory(); got != stateCompleted {
				t.Errorf("the history has it as %s", got)
			}
			s.managerRestarts().step()
			s.wantState(v1alpha1.ReasonCompleted)
		})
	}
}

func TestAChildThatHadNotEndedInTheSetGoesOn(t *testing.T) {
	s := completedInSet(t)
	s.followsTo(parentRewindsTo(0, v1alpha1.RewindBoth), "parent-back", 9, false)
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
}

func TestARewindOfTheFilesAloneCompletesNothing(t *testing.T) {
	s := completedInSet(t)
	s.followsTo(parentRewindsTo(1, v1alpha1.RewindCode), "parent-back", 9, false)
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
}

func TestAnUndoCompletesAChildThatHadCompletedBefore(t *testing.T) {
	s := completedInSet(t).completes().followsTo(parentRewindsTo(0, v1alpha1.RewindBoth), "parent-back", 9, true)
	s.wantState(v1alpha1.ReasonRewound)
	s.rewoundBefore("parent-back", 9).followsTo(parentUndoes("forth", "back"), "parent-forth", 11, true)
	s.wantState(v1alpha1.ReasonCompleted)
	if end := endedAs(s.o.Task); end == nil || end.attempt != 2 {
		t.Errorf("it has ended as %+v", end)
	}
}

// The attempt that has rewound the child completes it, while no manager sees its pod: the next one reports the
// rewind.
func TestAnUndoLeavesOutWhatAChildCameToAfterARewindThatNobodySaw(t *testing.T) {
	s := completedInSet(t)
	s.o.Parent.Task = parentRewindsTo(0, v1alpha1.RewindBoth)
	s.step().step()
	s.podGone()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
	moved := s.lastAttempt().Number
	s.o.History.State.CompletedOperations = append(s.o.History.State.CompletedOperations, daemonapi.OperationDoneKey(daemonapi.OperationRewind, "parent-back"))
	s.record(v1alpha1.TriggerCompletion)
	s.managerRestarts().podGone()
	if op := s.status().Rewind; op.MovedIn != moved || op.Attempt != moved+1 {
		t.Fatalf("the rewind is %+v, want it carried out in attempt %d", op, moved)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "parent-back", FromCheckpoint: 9, ToCheckpoint: 3})
	s.wantState(v1alpha1.ReasonCompleted) // after the rewind
	s.rewoundBefore("parent-back", 9).followsTo(parentUndoes("forth", "back"), "parent-forth", 11, true)
	if last := s.lastAttempt(); last.BackTo != 0 {
		t.Errorf("attempt %d ends as attempt %d", last.Number, last.BackTo)
	}
	s.wantState(v1alpha1.ReasonRewound)
}

func TestAResumeGoesOnFromWhereAChildHasEndedAgain(t *testing.T) {
	s := completedInSet(t).followsTo(parentRewindsTo(1, v1alpha1.RewindBoth), "parent-back", 9, true)
	s.change(builders.Resume("on")).step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation) // without a prompt
	s.change(builders.Resume("on2"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "other" }).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "on2"})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	s.podGone()
	if last := s.status().Attempts[len(s.status().Attempts)-1]; last.Trigger != v1alpha1.AttemptAfterPodLost {
		t.Errorf("a lost pod is not followed: %+v", last)
	}
}
