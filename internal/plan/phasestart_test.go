package plan

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// leadingNow returns a scene whose supervisor is at work in the phase Research, with a checkpoint from before.
func leadingNow(t *testing.T) *scene {
	t.Helper()
	s := newScene(t, supervisor(""))
	s.o.Contract.Room, s.o.Stamped = true, true
	s.step()
	s.record(v1alpha1.TriggerBeforeRun)
	s.agentRuns()
	return s
}

// wants has the contract go to a phase: by a call of the agent, or by the spec.
func (s *scene) wants(call, phase string) *scene {
	if call != "" {
		s.o.PhaseCall = &PhaseCall{ID: call, Phase: phase}
		return s
	}
	return s.change(func(t *v1alpha1.Task) {
		t.Spec.Contract.Phase, t.Spec.RequestedBy = phase, &v1alpha1.TaskRequesters{Contract: "ada"}
	})
}

// startTaken has the checkpoint taken with which a phase is to begin.
func (s *scene) startTaken(durable bool) {
	s.Helper()
	if s.o.PhaseStart == nil {
		s.Fatal("no checkpoint was requested")
	}
	s.record(v1alpha1.TriggerManual)
	c := s.o.PhaseStart
	c.Status.Number, c.Status.TaskUID = s.o.History.State.CheckpointCount, string(s.o.Task.UID)
	s.startIs(durable, v1alpha1.ReasonNotPushed, "it is being pushed to the gitstore")
}

// startIs sets whether the gitstore has that checkpoint.
func (s *scene) startIs(durable bool, reason, message string) {
	condition := metav1.Condition{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if durable {
		condition.Status = metav1.ConditionTrue
	}
	s.o.PhaseStart.Status.Conditions = []metav1.Condition{condition}
}

// wantPhase compares the contract's phase, and the checkpoint with which it began.
func (s *scene) wantPhase(phase string, checkpoint int64) {
	s.Helper()
	c := s.status().Contract
	if i := c.Find(""); c.Phase != phase || i < 0 || c.Entered[i].Checkpoint != checkpoint {
		s.Errorf("the contract is in %s, entered %+v; want %s with checkpoint %d", c.Phase, c.Entered, phase, checkpoint)
	}
}

func TestAPhaseBeginsWithACheckpointOfTheAgentAtWork(t *testing.T) {
	for name, c := range map[string]struct{ call, actor, requester string }{
		"that the agent goes to": {"call", "task tidy-up", "task:tidy-up"},
		"that the spec asks for": {"", "ada", "ada"},
	} {
		t.Run(name, func(t *testing.T) {
			s := leadingNow(t).wants(c.call, v1alpha1.PhasePlan)
			s.after(time.Minute).step()
			s.wantPhase(v1alpha1.PhaseResearch, 0)
			start := s.o.PhaseStart
			if start == nil || start.Spec.TaskRef.Name != "tidy-up" || start.Spec.Message != "before the phase Plan" || start.Spec.RequestedBy != c.requester || start.Name != PhaseStartName(s.o.Task, s.o.PhaseCall) {
				t.Fatalf("the Checkpoint that is requested is %+v", start)
			}
			s.startTaken(false)
			s.step()
			s.wantPhase(v1alpha1.PhaseResearch, 0)
			if s.o.PhaseStart != start {
				t.Error("another one is requested")
			}
			s.startTaken(true)
			s.step()
			s.wantPhase(v1alpha1.PhasePlan, 3)
			e := s.lastEntry(v1alpha1.EventPhaseChanged)
			if e.Actor != c.actor || e.Message != "the contract port goes from phase Research to Plan, with checkpoint 3" {
				t.Errorf("the entry is %+v", e)
			}
			if c.call != "" && (!PhaseCallHandled(s.o.Task, c.call) || PhaseCallRefused(s.o.Task, c.call) != "") {
				t.Errorf("the contract is %+v", s.status().Contract)
			}
			if name := PhaseStartName(s.o.Task, s.o.PhaseCall); name != "" {
				t.Errorf("the contract is to go on, with %s", name)
			}
		})
	}
}

// What was taken for a wish that was withdrawn is too old for the same wish later.
func TestAPhaseThatIsWishedAgainBeginsWithAnotherCheckpoint(t *testing.T) {
	s := leadingNow(t).wants("", v1alpha1.PhasePlan)
	s.after(time.Minute).step()
	first := s.o.PhaseStart
	s.startTaken(false)
	s.wants("", v1alpha1.PhaseResearch).step()
	if w := s.status().Contract.Wished; w != nil {
		t.Fatalf("the contract is to go to %+v", w)
	}
	s.startIs(true, "", "")
	s.after(4 * time.Hour)
	s.record(v1alpha1.TriggerInterval)
	s.o.NewID = "another"
	s.wants("", v1alpha1.PhasePlan).step()
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	if s.o.PhaseStart.Name == first.Name {
		t.Fatal("the checkpoint of the first wish is to do")
	}
	s.startTaken(true)
	s.step()
	s.wantPhase(v1alpha1.PhasePlan, 4)
	if w := s.status().Contract.Wished; w != nil {
		t.Errorf("the contract is to go to %+v", w)
	}
}

// Who could foresee the name would have taken it before.
func TestTheNameOfTheCheckpointOfAPhaseCannotBeForeseen(t *testing.T) {
	names := map[string]bool{}
	for _, id := range []string{"one", "another"} {
		s := leadingNow(t)
		s.o.NewID = id
		s.wants("", v1alpha1.PhasePlan).step()
		names[s.o.PhaseStart.Name] = true
	}
	if len(names) != 2 {
		t.Errorf("the same task, phase and time make the name %v", names)
	}
}

// A former version has requested a Checkpoint of another name: another one is taken.
func TestAPhaseBeginsThatWasWishedInAFormerVersion(t *testing.T) {
	s := leadingNow(t).wants("", v1alpha1.PhasePlan)
	s.status().Contract.Wished = &v1alpha1.WishedPhase{Phase: v1alpha1.PhasePlan, Since: metav1.NewTime(s.now), After: 1}
	s.after(time.Minute).step()
	if w := s.status().Contract.Wished; w == nil || w.ID != s.o.NewID {
		t.Fatalf("the contract is to go to %+v", w)
	}
	s.startTaken(true)
	s.step()
	s.wantPhase(v1alpha1.PhasePlan, 2)
}

// The phase is set back and set again faster than anybody looks.
func TestWhoWishesForThePhaseMeanwhileWaitsForTheSameCheckpoint(t *testing.T) {
	s := leadingNow(t).wants("", v1alpha1.PhasePlan).step()
	start := s.o.PhaseStart
	s.change(func(task *v1alpha1.Task) { task.Spec.RequestedBy.Contract = "bob" }).step()
	if s.o.PhaseStart != start {
		t.Error("another one is requested")
	}
	s.startTaken(true)
	s.step()
	s.wantPhase(v1alpha1.PhasePlan, 2)
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Actor != "bob" {
		t.Errorf("the entry is %+v", e)
	}
}

// Whoever reads the status in the moment before the Checkpoint is requested can be faster.
func TestAnotherCheckpointIsRequestedWhereSomebodyElseWasFaster(t *testing.T) {
	s := leadingNow(t).wants("", v1alpha1.PhasePlan).step()
	s.o.PhaseStart.Spec.RequestedBy, s.o.Stamped = "mallory", true
	first := s.o.PhaseStart.Name
	s.o.NewID = "another"
	s.after(time.Second).step()
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	if s.o.PhaseStart.Name == first {
		t.Fatalf("the phase waits for %s, which is somebody else's", first)
	}
	s.startTaken(true)
	s.step()
	s.wantPhase(v1alpha1.PhasePlan, 2)
}

// A Checkpoint of that name, owned to the Task, may have been taken before.
func TestAPhaseDoesNotBeginWithACheckpointFromBeforeTheWish(t *testing.T) {
	s := leadingNow(t).wants("", v1alpha1.PhasePlan).step()
	s.record(v1alpha1.TriggerInterval)
	s.startTaken(true)
	s.o.PhaseStart.Status.Number = 1
	s.after(maxPhaseStart).step()
	s.wantPhase(v1alpha1.PhasePlan, 3)
	s.wantMessage(s.lastEntry(v1alpha1.EventPhaseStartMissing).Message, "somebody else's")
}

func TestACallDoesNotMoveTheContractWithACheckpointOfSomebodyElse(t *testing.T) {
	s := leadingNow(t).wants("call", v1alpha1.PhasePlan).step()
	s.startTaken(true)
	s.o.PhaseStart.Spec.RequestedBy = "mallory"
	s.step()
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	s.wantMessage(PhaseCallRefused(s.o.Task, "call"), "somebody else's")
}

// Another checkpoint is taken each time that the spec goes back and forth, and each time that the agent does.
func TestEachPhaseBeginsWithACheckpointOfItsOwn(t *testing.T) {
	s := leadingNow(t)
	names := map[string]bool{}
	for i, c := range []struct{ call, phase string }{
		{"a", v1alpha1.PhasePlan}, {"b", v1alpha1.PhaseResearch}, {"c", v1alpha1.PhasePlan}, {"", v1alpha1.PhaseReview}, {"", v1alpha1.PhasePlan}, {"", v1alpha1.PhaseReview},
	} {
		s.o.PhaseCall, s.o.NewID = nil, fmt.Sprint("random ", i)
		s.wants(c.call, c.phase).after(time.Minute).step()
		names[s.o.PhaseStart.Name] = true
		s.startTaken(true)
		s.step()
		s.wantPhase(c.phase, int64(i)+2)
	}
	if len(names) != 6 {
		t.Errorf("the Checkpoints are %v", names)
	}
}

func TestTheNewestCheckpointIsTheStateWhileNoAgentWorks(t *testing.T) {
	s := leadingNow(t).change(builders.Suspended).step()
	s.wants("", v1alpha1.PhasePlan).step()
	if s.o.PhaseStart != nil {
		t.Error("a checkpoint is requested of an agent that is being stopped")
	}
	s.wantPhase(v1alpha1.PhaseResearch, 0)
	s.record(v1alpha1.TriggerSuspend)
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	s.wantPhase(v1alpha1.PhasePlan, 2)
}

func TestWhenNoCheckpointCanBeTaken(t *testing.T) {
	for name, c := range map[string]struct {
		become func(*scene)
		why    string
	}{
		"the gitstore refuses it": {func(s *scene) {
			s.startTaken(false)
			s.startIs(false, v1alpha1.ReasonGitStoreRefused, "the gitstore refuses it: no room")
		}, "no room"},
		"it is lost": {func(s *scene) {
			s.startTaken(false)
			s.startIs(false, v1alpha1.ReasonCheckpointLost, "its objects are damaged")
		}, "its objects are damaged"},
		"it takes too long": {func(s *scene) {
			s.startTaken(false)
			s.after(maxPhaseStart)
		}, "within 3 minutes: it is being pushed"},
		"the daemon does not take it": {func(s *scene) {
			s.o.PhaseStart.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionUnknown, Message: "the volume is full"}}
			s.after(maxPhaseStart)
		}, "the volume is full"},
		"somebody else's has its name":   {func(s *scene) { s.after(maxPhaseStart).o.PhaseStart.OwnerReferences = nil }, "somebody else's: delete it"},
		"somebody else has requested it": {func(s *scene) { s.after(maxPhaseStart).o.PhaseStart.Spec.RequestedBy = "mallory" }, "somebody else's: delete it"},
	} {
		t.Run("and the agent asks, since "+name, func(t *testing.T) {
			s := leadingNow(t).wants("call", v1alpha1.PhasePlan).step()
			c.become(s)
			s.step()
			s.wantPhase(v1alpha1.PhaseResearch, 0)
			if !PhaseCallHandled(s.o.Task, "call") {
				t.Error("the call is not handled")
			}
			s.wantMessage(PhaseCallRefused(s.o.Task, "call"), c.why)
			s.startIs(true, "", "")
			s.step()
			s.wantPhase(v1alpha1.PhaseResearch, 0)
		})
		t.Run("and the spec asks, since "+name, func(t *testing.T) {
			s := leadingNow(t).wants("", v1alpha1.PhasePlan).step()
			c.become(s)
			s.step()
			s.wantPhase(v1alpha1.PhasePlan, s.o.History.State.CheckpointCount)
			s.wantMessage(s.lastEntry(v1alpha1.EventPhaseStartMissing).Message, c.why, "phase Plan")
		})
	}
}
