package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// goesTo has the contract enter a phase by a call, with the checkpoint that is taken for it.
func (s *scene) goesTo(call, phase string) *scene {
	s.Helper()
	s.wants(call, phase).o.PhaseCall.Attempt = newest(*s.status())
	s.after(time.Minute).step()
	s.startTaken(true)
	s.step()
	s.wantPhase(phase, s.o.History.State.CheckpointCount)
	s.o.PhaseCall = nil
	return s
}

// goesBackTo rewinds the supervisor to a checkpoint, with the agent at work again afterwards.
func (s *scene) goesBackTo(number int64, scope v1alpha1.RewindScope) *scene {
	s.Helper()
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: number, Commit: "c"}}
	s.rewindTo("back", scope, toNumber(number)).step()
	s.podGone()
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: number})
	s.agentRuns()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	return s
}

func TestACallIsNotFollowedThatARewindTakesBack(t *testing.T) {
	for name, c := range map[string]struct {
		scope v1alpha1.RewindScope
		phase string
	}{
		"of the conversation": {v1alpha1.RewindBoth, v1alpha1.PhasePlan},
		"of the files alone":  {v1alpha1.RewindCode, v1alpha1.PhaseExecute},
	} {
		t.Run(name, func(t *testing.T) {
			s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan)
			s.wants("b", v1alpha1.PhaseExecute).o.PhaseCall.Attempt = 1
			s.step()
			s.startTaken(false) // the gitstore is slow
			s.goesBackTo(2, c.scope)
			s.startIs(true, "", "")
			s.step()
			if got := s.status().Contract.Phase; got != c.phase || PhaseCallHandled(s.o.Task, "b") != (c.phase == v1alpha1.PhaseExecute) {
				t.Errorf("the contract is %+v, want it in %s", s.status().Contract, c.phase)
			}
		})
	}
}

func TestAPhaseThatARewindTakesBackBeginsAnew(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
	s.goesBackTo(2, v1alpha1.RewindBoth)
	s.wantPhase(v1alpha1.PhasePlan, 2)
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Message != "the contract port is in phase Plan again, as it was at checkpoint 2, and no more in Execute" {
		t.Errorf("the entry is %+v", e)
	}
	s.record(v1alpha1.TriggerInterval)
	s.goesTo("c", v1alpha1.PhaseExecute)
	start, b := phaseStart(s.o.Task, s.status().Contract, &v1alpha1.Resume{})
	if b != nil || start.Start() != s.o.History.State.CheckpointCount {
		t.Errorf("the phase begins again with checkpoint %d (%v), want %d", start.Start(), b, s.o.History.State.CheckpointCount)
	}
}

// undoes undoes the last rewind of the supervisor, which kept the state before it as a checkpoint.
func (s *scene) undoes(id, rewind string, from int64) *scene {
	s.Helper()
	s.rewoundBefore(rewind, from)
	s.rewindTo(id, v1alpha1.RewindBoth, v1alpha1.RewindTarget{UndoOf: rewind}).step()
	s.podGone()
	s.prepared(daemonapi.PrepareResult{Operation: id, FromCheckpoint: from + 1, ToCheckpoint: from})
	s.agentRuns()
	s.wantOperation(s.status().Rewind, id, v1alpha1.OperationCompleted, "")
	return s
}

func TestAnUndoBringsPhasesBack(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
	start := s.o.History.State.CheckpointCount
	s.goesBackTo(2, v1alpha1.RewindBoth)
	s.wantPhase(v1alpha1.PhasePlan, 2)
	s.undoes("forth", "back", 9)
	s.wantPhase(v1alpha1.PhaseExecute, start)
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Message != "the contract port is in phase Execute again, as it was before the rewind back, and no more in Plan" {
		t.Errorf("the entry is %+v", e)
	}
	if all := s.status().Contract.Entered; len(all) < 2 || all[len(all)-2].Phase != v1alpha1.PhasePlan {
		t.Errorf("the phases are %+v", all)
	}
	s.undoes("again", "forth", 10) // and the undo of that takes them again
	s.wantPhase(v1alpha1.PhasePlan, 2)
}

func TestAnUndoOfARestartBringsPhasesBack(t *testing.T) {
	s := supervising(t).knows(1)
	entered := len(s.status().Contract.Entered)
	s.change(builders.Running, builders.Resume("on"), func(t *v1alpha1.Task) {
		t.Spec.Resume.Mode, t.Spec.Resume.Phase = v1alpha1.ResumeRestartPhase, v1alpha1.PhaseResearch
	}).step()
	s.prepared(daemonapi.PrepareResult{Operation: "on", FromCheckpoint: 5, ToCheckpoint: 1})
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	s.agentRuns()
	s.undoes("forth", "resume:on", 5)
	if all := s.status().Contract; all.Phase != v1alpha1.PhaseSpecify || len(all.Entered) != entered {
		t.Errorf("the contract is %+v", all)
	}
}

func TestOnlyTheLastPhasesBeforeAreKept(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan)
	d := newDecision(s.o, s.now)
	for i := range maxPhasesBefore + 2 {
		d.keepPhases(d.s.Contract, &v1alpha1.OperationStatus{ID: fmt.Sprint(i)})
	}
	if kept := d.s.Contract.Before; len(kept) != maxPhasesBefore || kept[0].Rewind != "2" {
		t.Errorf("kept is %+v", kept)
	}
}

func TestARewindBeforeAllPhasesThatAreKnown(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan)
	s.status().Contract.Entered = s.status().Contract.Entered[1:]
	s.goesBackTo(1, v1alpha1.RewindBoth)
	s.wantPhase(v1alpha1.PhasePlan, 1)
}

func TestARewindOfTheFilesLeavesThePhase(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesBackTo(1, v1alpha1.RewindCode)
	s.wantPhase(v1alpha1.PhasePlan, 2)
}

func TestAResumeFromACheckpointTakesPhasesBack(t *testing.T) {
	s := supervising(t).knows(1)
	s.change(builders.Running, builders.Resume("on"), func(t *v1alpha1.Task) {
		one := int64(1)
		t.Spec.Resume.Mode, t.Spec.Resume.CheckpointNumber = v1alpha1.ResumeFromCheckpoint, &one
	}).step()
	s.wantPhase(v1alpha1.PhaseSpecify, 2)
	s.prepared(daemonapi.PrepareResult{Operation: "on", ToCheckpoint: 1})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
	s.wantPhase(v1alpha1.PhaseResearch, 0)
}
