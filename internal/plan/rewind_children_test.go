package plan

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// toSet requests that the supervisor and its children are rewound to a set in a state.
func (s *scene) toSet(id string, state v1alpha1.CheckpointSetState) *scene {
	s.rewind(id, 2)
	s.o.RewindTarget.Status.Set = &v1alpha1.CheckpointSet{State: state, Members: []v1alpha1.CheckpointSetMember{
		{Task: "tidy-up", UID: "uid-of-task", Number: 2}, {Task: "docs", UID: "uid-docs", Number: 5}, {Task: "tests", UID: "uid-tests", Number: 7},
	}}
	return s.change(func(t *v1alpha1.Task) { t.Spec.Rewind.Children = v1alpha1.ChildrenRewind })
}

func TestARewindOfASupervisorTakesTheChildrenOfASetAlong(t *testing.T) {
	s := supervising(t)
	s.o.Children = []v1alpha1.Task{
		childIn("docs", metav1.ConditionUnknown, v1alpha1.ReasonRunning), childIn("since", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
	s.toSet("back", v1alpha1.SetTogether).step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
	if led := s.status().SetRewind; led == nil || led.State != v1alpha1.OperationInProgress || s.status().Rewind.Set != s.o.RewindTarget.Name {
		t.Fatalf("before the supervisor is rewound: %+v, %+v", led, s.status().Rewind)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "back", FromCheckpoint: 4, ToCheckpoint: 2})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	s.wantMessage(s.status().Rewind.Message, "docs to checkpoint 5", "gone: tests", "stay as they are, since they are not in the set: since")
	if led := s.status().SetRewind; led.State != v1alpha1.OperationCompleted || len(led.Children) != 2 || led.Scope != v1alpha1.RewindBoth {
		t.Errorf("the children are led by %+v", led)
	}
	if r := RelationsOf(s.o.Task); r.Rewind != "back" {
		t.Errorf("the children are not woken: %+v", r)
	}
}

func TestWhichSetsARewindTakesChildrenTo(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(*v1alpha1.Checkpoint)
		reason string
	}{
		"one that was not taken together": {func(c *v1alpha1.Checkpoint) { c.Status.Set.State = v1alpha1.SetApart }, v1alpha1.ReasonNotTakenTogether},
		"one that is being taken":         {func(c *v1alpha1.Checkpoint) { c.Status.Set.State = v1alpha1.SetReleasing }, v1alpha1.ReasonInvalidState},
		"no set at all":                   {func(c *v1alpha1.Checkpoint) { c.Status.Set = nil }, v1alpha1.ReasonInvalidOperation},
	} {
		t.Run(name, func(t *testing.T) {
			s := supervising(t)
			s.toSet("back", v1alpha1.SetTogether)
			c.set(s.o.RewindTarget)
			s.step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, c.reason)
			if s.status().SetRewind != nil {
				t.Errorf("children follow: %+v", s.status().SetRewind)
			}
		})
	}
}

func TestARewindToASetWaitsForChildrenToSeeTheLastOne(t *testing.T) {
	s := rewoundToSet(t)
	docs, since := followed("docs", ""), childIn("since", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	s.o.Children = []v1alpha1.Task{docs, since}
	s.toSet("again", v1alpha1.SetTogether).step()
	s.wantOperation(s.status().Rewind, "again", v1alpha1.OperationPending, v1alpha1.ReasonChildrenFollow)
	s.wantMessage(s.status().Rewind.Message, "the last one, back", "docs")
	if led := s.status().SetRewind; led.ID != "back" || led.State != v1alpha1.OperationCompleted {
		t.Fatalf("docs cannot follow any more: %+v", led)
	}
	s.o.Children[0] = followed("docs", "back")
	s.after(time.Second).step()
	s.wantOperation(s.status().Rewind, "again", v1alpha1.OperationInProgress, "")
}

func TestARewindWithoutChildrenDoesNotWaitForThem(t *testing.T) {
	s := rewoundToSet(t)
	s.o.Children = []v1alpha1.Task{followed("docs", "")}
	s.rewind("alone", 2).step()
	s.wantOperation(s.status().Rewind, "alone", v1alpha1.OperationInProgress, "")
	if s.status().SetRewind.ID != "back" {
		t.Errorf("docs cannot follow any more: %+v", s.status().SetRewind)
	}
}

// parentRewinds returns a parent that was rewound to a set with the scene's task.
func parentRewinds(id string, state v1alpha1.OperationState) *v1alpha1.Task {
	p := leading("lead", v1alpha1.PhaseExecute)
	p.Status.SetRewind = &v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: id, Set: "evening", State: state, RequestedBy: "ada", Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch,
		OnDrift: v1alpha1.OnDriftFail, Children: []v1alpha1.SetRewindChild{{Name: "tidy-up", UID: "uid-of-task", Checkpoint: 3}}}}
	return p
}

func TestAChildFollowsARewindOfItsParentOnce(t *testing.T) {
	s := runningChild(t)
	s.o.RewindRecord = recorded()
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationInProgress)
	s.step()
	s.wantState(v1alpha1.ReasonRunning) // the parent is not there yet
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
	if e := s.lastEntry(v1alpha1.EventRewoundByParent); e.Actor != "ada" || s.status().Rewind.RequestedBy != "ada" {
		t.Errorf("the entry is %+v, and the rewind %+v", e, s.status().Rewind)
	}
	s.podGone()
	s.wantPod(Pod{Attempt: 2, Operation: &daemonapi.Operation{
		Kind: daemonapi.OperationRewind, ID: "parent-back", OnDrift: v1alpha1.OnDriftFail, Checkpoint: 3, Commit: "c3", CheckpointPosition: 6,
		Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch, Branch: "clew/before-parent-back",
	}})
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "parent-back", FromCheckpoint: 9, ToCheckpoint: 3})
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationCompleted, "")
	if s.o.Task.Spec.Rewind != nil {
		t.Error("the spec was changed")
	}
	s.agentRuns()
	s.managerRestarts().after(time.Hour).step()
	s.wantState(v1alpha1.ReasonRunning)
	s.rewindTo("own", v1alpha1.RewindBoth, toNumber(3)).step()
	s.wantOperation(s.status().Rewind, "own", v1alpha1.OperationInProgress, "") // one of its own comes after
}

func TestAChildThatHasFollowedIsNotSaidToFollowAgain(t *testing.T) {
	s := runningChild(t)
	s.o.Task.Status.HandledOperations = []string{daemonapi.OperationKey(daemonapi.OperationRewind, "parent-back")}
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.wantState(v1alpha1.ReasonRunning)
	if s.status().Parent.FollowedRewind != "back" || s.status().Parent.Rewind != nil {
		t.Errorf("it follows again: %+v", s.status().Parent)
	}
}

func TestARewindThatFailsLeadsNobody(t *testing.T) {
	s := supervising(t)
	s.toSet("back", v1alpha1.SetTogether).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "back", Failed: &daemonapi.OperationFailure{
		Kind: daemonapi.OperationRewind, ID: "back", Reason: v1alpha1.ReasonDriftDetected, Message: "a file was changed"}})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonDriftDetected)
	if state := s.status().SetRewind.State; state != v1alpha1.OperationFailed {
		t.Errorf("the children wait for a rewind that is %s", state)
	}
}

func TestWhichChildrenARewindLeads(t *testing.T) {
	docs := childIn("docs", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	docs.Status.Adoption = &v1alpha1.AdoptionStatus{TaskUID: "uid-former"}
	rested := childIn("rested", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	rested.Status.Attempts = []v1alpha1.Attempt{{Number: 2, Outcome: v1alpha1.AttemptCompleted}}
	led := LedBy([]v1alpha1.SetRewindChild{
		{Name: "docs", UID: "uid-former", Checkpoint: 7}, {Name: "rested", UID: "uid-rested", Checkpoint: 4, Attempt: 2}, {Name: "tests", UID: "uid-tests"},
	}, []v1alpha1.Task{docs, rested, childIn("since", metav1.ConditionUnknown, v1alpha1.ReasonRunning)})
	if len(led.Follow) != 1 || led.Follow[0].Task.Name != "docs" || led.Follow[0].Child.Checkpoint != 7 {
		t.Errorf("follow: %+v", led.Follow)
	}
	for what, names := range map[string][][]string{
		"there": {led.There, {"rested"}}, "gone": {led.Gone, {"tests"}}, "stay": {led.Stay, {"since"}},
	} {
		if !slices.Equal(names[0], names[1]) {
			t.Errorf("%s: %v", what, names[0])
		}
	}
}

func TestAChildThatCannotFollowTellsWhy(t *testing.T) {
	s := runningChild(t)
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 3, Integrity: history.Integrity{Damage: "an object is missing"}}}
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationRefused, v1alpha1.ReasonCheckpointCorrupted)
	s.wantState(v1alpha1.ReasonRunning)
}

func TestAChildThatIsNoMemberStays(t *testing.T) {
	s := runningChild(t)
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.o.Parent.Task.Status.SetRewind.Children[0].UID = "another"
	s.step()
	s.wantState(v1alpha1.ReasonRunning)
	if s.status().Rewind != nil || s.status().Parent.FollowedRewind != "back" {
		t.Errorf("it follows: %+v, %+v", s.status().Rewind, s.status().Parent)
	}
	if parent := RelationsOf(s.o.Parent.Task); RelationsOf(s.o.Task).FollowsParent(parent) && parent.Rewind != "back" {
		t.Error("it is woken again and again")
	}
	s.change(builders.Suspended).step()
	s.wantState(v1alpha1.ReasonSuspending)
}
