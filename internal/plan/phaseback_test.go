package plan

import (
	"fmt"
	"slices"
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

// isRewound has the pod of a rewind of the supervisor carry it out, and the agent work again: the state before it
// and the one that it restores have a checkpoint each.
func (s *scene) isRewound(id string, to int64) *scene {
	s.Helper()
	s.record(v1alpha1.TriggerPreRewind)
	from := s.o.History.State.CheckpointCount
	if s.pod().DeletionTimestamp != nil {
		s.podGone()
	}
	s.record(v1alpha1.TriggerRewound)
	s.prepared(daemonapi.PrepareResult{Operation: id, FromCheckpoint: from, ToCheckpoint: to})
	s.agentRuns()
	s.wantOperation(s.status().Rewind, id, v1alpha1.OperationCompleted, "")
	return s
}

// goesBackTo rewinds the supervisor to a checkpoint, with the agent at work again afterwards.
func (s *scene) goesBackTo(number int64, scope v1alpha1.RewindScope) *scene {
	s.Helper()
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: number, Commit: "c"}}
	s.rewindTo(fmt.Sprint("back", s.now.Unix()), scope, toNumber(number)).step()
	return s.isRewound(s.status().Rewind.ID, number).after(time.Minute)
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
func (s *scene) undoes(rewind string, from int64) *scene {
	s.Helper()
	id := fmt.Sprint("undo", s.now.Unix())
	s.rewoundBefore(rewind, from)
	s.rewindTo(id, v1alpha1.RewindBoth, v1alpha1.RewindTarget{UndoOf: rewind}).step()
	return s.isRewound(id, from).after(time.Minute)
}

func TestAnUndoBringsPhasesBack(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
	start := s.o.History.State.CheckpointCount
	s.goesBackTo(2, v1alpha1.RewindBoth)
	s.wantPhase(v1alpha1.PhasePlan, 2)
	s.undoes(s.status().Rewind.ID, s.status().Rewind.FromCheckpoint)
	s.wantPhase(v1alpha1.PhaseExecute, start)
	s.wantMessage(s.lastEntry(v1alpha1.EventPhaseChanged).Message, "the contract port is in phase Execute again", "no more in Plan")
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseExecute)
	s.undoes(s.status().Rewind.ID, s.status().Rewind.FromCheckpoint) // and the undo of that takes them again
	s.wantPhase(v1alpha1.PhasePlan, 2)
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhasePlan)
}

func TestAnUndoOfARestartBringsPhasesBack(t *testing.T) {
	s := supervising(t).knows(1)
	s.change(builders.Running, builders.Resume("on"), func(t *v1alpha1.Task) {
		t.Spec.Resume.Mode, t.Spec.Resume.Phase = v1alpha1.ResumeRestartPhase, v1alpha1.PhaseResearch
	}).step()
	s.record(v1alpha1.TriggerRewound)
	s.prepared(daemonapi.PrepareResult{Operation: "on", FromCheckpoint: 3, ToCheckpoint: 1})
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	s.wantLine(v1alpha1.PhaseResearch)
	s.agentRuns()
	s.undoes("resume:on", 3)
	s.wantPhase(v1alpha1.PhaseSpecify, 2)
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhaseSpecify)
}

// wantLine compares the phases that have led to the current one.
func (s *scene) wantLine(phases ...string) {
	s.Helper()
	if got := enteredPhases(s.status().Contract); !slices.Equal(got, phases) {
		s.Errorf("the phases are %q, want %q: %+v", got, phases, s.status().Contract.Entered)
	}
}

// Each number is that of the checkpoint with which a phase begins, or to which the supervisor is rewound.
func TestARewindLeadsIntoThePhaseOfItsCheckpoint(t *testing.T) {
	// Research with 1, Plan with 2, Execute with 3, and Plan again with 4.
	revisited := func(t *testing.T) *scene {
		return leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute).goesTo("c", v1alpha1.PhasePlan)
	}
	// Research with 1, Plan with 2, Execute with 3 and a checkpoint 4; rewound to 2 (5 and 6), and Execute again with 7.
	branched := func(t *testing.T) *scene {
		s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
		s.record(v1alpha1.TriggerInterval)
		return s.goesBackTo(2, v1alpha1.RewindBoth).goesTo("c", v1alpha1.PhaseExecute)
	}
	for name, c := range map[string]struct {
		scene func(*testing.T) *scene
		to    int64
		phase string
		start int64
		line  []string
	}{
		"the first time in a phase":      {revisited, 2, v1alpha1.PhasePlan, 2, []string{v1alpha1.PhaseResearch, v1alpha1.PhasePlan}},
		"the second time in it":          {revisited, 4, v1alpha1.PhasePlan, 4, []string{v1alpha1.PhaseResearch, v1alpha1.PhaseExecute, v1alpha1.PhasePlan}},
		"between the two":                {revisited, 3, v1alpha1.PhaseExecute, 3, []string{v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseExecute}},
		"on another branch":              {branched, 4, v1alpha1.PhaseExecute, 3, []string{v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseExecute}},
		"what a rewind has left":         {branched, 5, v1alpha1.PhaseExecute, 3, []string{v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseExecute}},
		"what a rewind has restored":     {branched, 6, v1alpha1.PhasePlan, 2, []string{v1alpha1.PhaseResearch, v1alpha1.PhasePlan}},
		"before a rewind, in both lines": {branched, 1, v1alpha1.PhaseResearch, 0, []string{v1alpha1.PhaseResearch}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.scene(t).goesBackTo(c.to, v1alpha1.RewindBoth)
			s.wantPhase(c.phase, c.start)
			s.wantLine(c.line...)
		})
	}
}

// A manager of an older release noted each phase once, where it was entered last, and no at.
func TestPhasesThatAnOlderManagerHasNotedAreRead(t *testing.T) {
	c := &v1alpha1.ContractStatus{Phase: v1alpha1.PhasePlan, Entered: []v1alpha1.EnteredPhase{
		{Phase: v1alpha1.PhaseResearch}, {Phase: v1alpha1.PhaseExecute, Checkpoint: 10}, {Phase: v1alpha1.PhasePlan, Checkpoint: 20}}}
	for checkpoint, phase := range map[int64]string{0: v1alpha1.PhaseResearch, 7: v1alpha1.PhaseResearch, 10: v1alpha1.PhaseExecute, 25: v1alpha1.PhasePlan} {
		if got := phaseAt(c, checkpoint); got.Phase != phase {
			t.Errorf("at checkpoint %d it was in %s, want %s", checkpoint, got.Phase, phase)
		}
	}
	if line := c.Line(); !slices.Equal(line, []int{0, 1, 2}) || c.Find("") != 2 || c.Find(v1alpha1.PhaseReview) >= 0 {
		t.Errorf("the line is %v", line)
	}
}

func TestTheLogOfPhasesIsBounded(t *testing.T) {
	c := &v1alpha1.ContractStatus{}
	logPhase(c, v1alpha1.EnteredPhase{Phase: v1alpha1.PhaseResearch})
	logPhase(c, v1alpha1.EnteredPhase{Phase: v1alpha1.PhaseReview, Checkpoint: 2})
	logPhase(c, v1alpha1.EnteredPhase{Phase: v1alpha1.PhaseResearch, At: 3})
	for i := range int64(2 * maxEntered) {
		logPhase(c, v1alpha1.EnteredPhase{Phase: []string{v1alpha1.PhasePlan, v1alpha1.PhaseExecute}[i%2], Checkpoint: 10 + i})
	}
	if len(c.Entered) != maxEntered || c.Find(v1alpha1.PhaseResearch) != 0 || c.Find(v1alpha1.PhaseReview) >= 0 {
		t.Errorf("the log has %d entries: %+v", len(c.Entered), c.Entered[:4])
	}
	if last := c.Entered[maxEntered-1]; last.Checkpoint != 10+2*maxEntered-1 {
		t.Errorf("the last one is %+v", last)
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

// What the spec asks for with the rewind is none of what that takes back.
func TestAPhaseThatTheSpecAsksForBeginsAfterTheRewindOfTheSameChange(t *testing.T) {
	for name, atWork := range map[string]bool{"of an agent at work": true, "of a task at rest": false} {
		t.Run(name, func(t *testing.T) {
			s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
			if !atWork {
				s.change(builders.Suspended).step()
				s.podGone()
			}
			s.wants("", v1alpha1.PhaseReview)
			s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 2, Commit: "c"}}
			s.rewindTo("back", v1alpha1.RewindBoth, toNumber(2)).change(builders.Running).step()
			if !atWork {
				s.wantPhase(v1alpha1.PhaseExecute, 3)
			}
			s.isRewound("back", 2)
			s.wantPhase(v1alpha1.PhaseReview, s.o.History.State.CheckpointCount)
			s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseReview)
			if c := s.status().Contract; c.SpecPhase != v1alpha1.PhaseReview || c.Wished != nil {
				t.Errorf("the contract is %+v", c)
			}
		})
	}
}

// While the history cannot be read, the newest checkpoint that is known is one of what was taken back.
func TestAPhaseThatBeginsAfterARewindWaitsForTheHistory(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan).goesTo("b", v1alpha1.PhaseExecute)
	s.wants("", v1alpha1.PhaseReview)
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 2, Commit: "c"}}
	s.rewindTo("back", v1alpha1.RewindBoth, toNumber(2)).step()
	s.record(v1alpha1.TriggerPreRewind)
	from := s.o.History.State.CheckpointCount
	s.podGone()
	s.record(v1alpha1.TriggerRewound)
	known := s.o.History
	s.o.History = History{}
	s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: from, ToCheckpoint: 2})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhasePlan)
	if last := s.plans[len(s.plans)-1]; last.RequeueAfter == 0 {
		t.Error("nobody looks again")
	}
	s.o.History = known
	s.step()
	s.wantPhase(v1alpha1.PhaseReview, known.State.CheckpointCount)
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhasePlan, v1alpha1.PhaseReview)
}

// Git says both: that the phase begins again, and that the contract is in it.
func TestAPhaseThatBeginsAgainAndThatTheSpecNamesBeginsWhereItDid(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhaseExecute).goesTo("b", v1alpha1.PhaseReview)
	s.change(builders.Suspended).step()
	s.record(v1alpha1.TriggerSuspend)
	s.podGone()
	s.knows(2).wants("", v1alpha1.PhaseExecute).change(restart("again", v1alpha1.PhaseExecute)).step()
	if op := s.status().Resume; op.ToCheckpoint != 2 {
		t.Errorf("the phase begins again with %+v, want checkpoint 2", op)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "again", FromCheckpoint: 4, ToCheckpoint: 2})
	s.agentRuns()
	s.wantPhase(v1alpha1.PhaseExecute, 2)
	s.wantLine(v1alpha1.PhaseResearch, v1alpha1.PhaseExecute)
	if c := s.status().Contract; c.SpecPhase != v1alpha1.PhaseExecute || c.Wished != nil {
		t.Errorf("the contract is %+v", c)
	}
}

func TestARewindThatNobodySawTakesBackWhatWasCalledBeforeItAlone(t *testing.T) {
	s := leadingNow(t).goesTo("a", v1alpha1.PhasePlan)
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 2, Commit: "c"}}
	s.rewindTo("back", v1alpha1.RewindBoth, toNumber(2)).step()
	s.podGone()
	s.wantStarted(2)
	s.o.History.State.CompletedOperations = []string{daemonapi.OperationDoneKey(daemonapi.OperationRewind, "back")}
	s.o.History.State.Attempt = 2
	s.managerRestarts().after(time.Minute).podGone() // its agent has called by then
	s.wantStarted(3)
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 2})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	if s := s.status(); !takenBack(s, 1) || takenBack(s, 2) {
		t.Errorf("of the attempts 1 and 2, %v and %v are taken back: %+v", takenBack(s, 1), takenBack(s, 2), s.Rewind)
	}
	c := newCall(t, v1alpha1.ToolTaskStop, `{"task":"a"}`)
	c.Task.Status.Rewind = s.status().Rewind
	c.Call.Attempt = 2
	c.changed()
	c.Call.Attempt = 1
	c.wantRefusal("is taken back")
}
