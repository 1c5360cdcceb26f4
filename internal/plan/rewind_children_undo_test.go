package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// rewoundBefore makes the history store answer that a rewind can be undone, to a checkpoint from before it.
func (s *scene) rewoundBefore(rewind string, from int64) *scene {
	s.o.RewindUndone = RewindUndone{Known: true, Found: history.Rewind{
		ID: rewind, Completed: true, Rewound: &history.Rewound{Scope: string(v1alpha1.RewindBoth), From: from, To: 2}}}
	s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: from, Commit: "c"}}
	return s
}

// undoWithChildren requests that the supervisor and its children go back to before a rewind.
func (s *scene) undoWithChildren(id, rewind string) *scene {
	return s.rewoundBefore(rewind, 4).rewindTo(id, v1alpha1.RewindBoth, v1alpha1.RewindTarget{UndoOf: rewind}).
		change(func(t *v1alpha1.Task) { t.Spec.Rewind.Children = v1alpha1.ChildrenRewind })
}

// followed returns a child whose last operation is the rewind by which it has followed one of its parent.
func followed(name, rewind string) v1alpha1.Task {
	t := childIn(name, metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	id := v1alpha1.ParentRewindID(rewind)
	t.Status.Parent = &v1alpha1.ParentStatus{Name: "tidy-up", UID: "uid-of-task", FollowedRewind: rewind}
	t.Status.HandledOperations = []string{daemonapi.OperationKey(daemonapi.OperationRewind, id)}
	t.Status.Rewind = &v1alpha1.OperationStatus{ID: id, State: v1alpha1.OperationCompleted, Attempt: 2, FromCheckpoint: 9, ToCheckpoint: 5}
	return t
}

// rewoundToSet returns a supervisor that was rewound to a set with its children.
func rewoundToSet(t *testing.T) *scene {
	t.Helper()
	s := supervising(t)
	s.toSet("back", v1alpha1.SetTogether).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "back", FromCheckpoint: 4, ToCheckpoint: 2})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	return s
}

func TestAnUndoOfASupervisorTakesTheChildrenBack(t *testing.T) {
	s := rewoundToSet(t)
	moved := followed("tests", "back")
	moved.Status.HandledOperations = append(moved.Status.HandledOperations, "Rewind/own")
	moved.Status.Rewind = &v1alpha1.OperationStatus{ID: "own", State: v1alpha1.OperationCompleted, Attempt: 3}
	s.o.Children = []v1alpha1.Task{followed("docs", "back"), moved}
	s.undoWithChildren("forth", "back").step()
	s.wantOperation(s.status().Rewind, "forth", v1alpha1.OperationInProgress, "")
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "forth", FromCheckpoint: 6, ToCheckpoint: 4})
	s.wantMessage(s.status().Rewind.Message, "back from the set", "docs to checkpoint 9", "rewound or resumed by another request since: tests")
	led := s.status().SetRewind
	if led.ID != "forth" || led.UndoOf != "back" || led.State != v1alpha1.OperationCompleted || len(led.Children) != 2 || led.Former != nil {
		t.Errorf("the children are led by %+v", led)
	}
	if r := RelationsOf(s.o.Task); r.Rewind != "forth" {
		t.Errorf("the children are not woken: %+v", r)
	}
}

func TestWhichRewindsAnUndoTakesChildrenBackFrom(t *testing.T) {
	set := func(id, undoOf string, state v1alpha1.OperationState) *v1alpha1.SetRewind {
		return &v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: id, UndoOf: undoOf, State: state}}
	}
	for name, c := range map[string]struct {
		led  *v1alpha1.SetRewind
		want bool
	}{
		"the last one":                     {set("back", "", v1alpha1.OperationCompleted), true},
		"one whose undo had failed before": {set("forth", "back", v1alpha1.OperationFailed), true},
		"one that was undone":              {set("forth", "back", v1alpha1.OperationCompleted), false},
		"one before another":               {set("later", "", v1alpha1.OperationCompleted), false},
		"one that has failed":              {set("back", "", v1alpha1.OperationFailed), false},
		"one that has taken none":          {nil, false},
		"one that is not complete itself":  {set("back", "", v1alpha1.OperationInProgress), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := UndoesSet(c.led, "back"); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	s := rewoundToSet(t).undoWithChildren("forth", "another").step()
	s.wantOperation(s.status().Rewind, "forth", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	if s.status().SetRewind.ID != "back" {
		t.Errorf("what led the children is forgotten: %+v", s.status().SetRewind)
	}
}

func TestARewindToASetThatFailsLeavesTheOneBeforeToUndo(t *testing.T) {
	toAgain := func(s *scene) *scene { return s.toSet("again", v1alpha1.SetTogether) }
	undo := func(s *scene) *scene { return s.undoWithChildren("again", "back") }
	for name, c := range map[string]struct {
		request func(*scene) *scene
		fail    func(*scene)
	}{
		"to another set":            {toAgain, fails},
		"to another set, withdrawn": {toAgain, withdrawn},
		"that undoes it":            {undo, fails},
		"that undoes it, withdrawn": {undo, withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			s := rewoundToSet(t)
			before := s.status().SetRewind.DeepCopy()
			c.request(s).after(time.Minute).step()
			if led := s.status().SetRewind; led.ID != "again" || led.Former == nil || led.Former.ID != "back" {
				t.Fatalf("the children are led by %+v", led)
			}
			c.fail(s)
			s.wantOperation(s.status().Rewind, "again", v1alpha1.OperationFailed, s.status().Rewind.Reason)
			if diff := cmp.Diff(before, s.status().SetRewind); diff != "" {
				t.Errorf("what leads the children (-want +got):\n%s", diff)
			}
			s.undoWithChildren("forth", "back").after(time.Minute).step()
			s.wantOperation(s.status().Rewind, "forth", v1alpha1.OperationInProgress, "")
			if led := s.status().SetRewind; led.UndoOf != "back" {
				t.Errorf("the children are led by %+v", led)
			}
		})
	}
}

// fails has the pod of the rewind again undo it for good.
func fails(s *scene) {
	s.Helper()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "again", Failed: &daemonapi.OperationFailure{
		Kind: daemonapi.OperationRewind, ID: "again", Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "a.txt is missing"}})
}

// withdrawn has the rewind again taken out of the spec before a pod has begun with it.
func withdrawn(s *scene) {
	s.Helper()
	s.o.Task.Status.Rewind.Attempt = 0
	s.change(func(t *v1alpha1.Task) { t.Spec.Rewind = nil }).step()
}

func TestWhatAnUndoDoesWithEachChild(t *testing.T) {
	underWay, refused, gone := followed("under-way", "back"), followed("refused", "back"), "gone"
	underWay.Status.Rewind.State, refused.Status.Rewind.State = v1alpha1.OperationInProgress, v1alpha1.OperationRefused
	resumed := followed("resumed", "back")
	resumed.Status.HandledOperations = append(resumed.Status.HandledOperations, "Resume/on")
	resumed.Status.Resume = &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, Attempt: 3}
	there := childIn("there", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	children := []v1alpha1.Task{followed("docs", "back"), underWay, refused, resumed, there, childIn("since", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
	var members []v1alpha1.SetRewindChild
	for _, name := range []string{"docs", "under-way", "refused", "resumed", "there", gone} {
		members = append(members, v1alpha1.SetRewindChild{Name: name, UID: "uid-" + name, Checkpoint: 5})
	}
	led := LedBackBy("back", members, children)
	var follow []string
	for _, c := range led.Follow {
		follow = append(follow, c.Task.Name)
	}
	for what, names := range map[string][2][]string{
		"follow": {follow, {"docs", "under-way"}}, "there": {led.There, {"refused", "there"}}, "moved on": {led.MovedOn, {"resumed"}},
		"gone": {led.Gone, {gone}}, "stay": {led.Stay, {"since"}},
	} {
		if !slices.Equal(names[0], names[1]) {
			t.Errorf("%s: %v, want %v", what, names[0], names[1])
		}
	}
}

// followedBack returns a child that has followed its parent to checkpoint 3 of a set, and works from there.
func followedBack(t *testing.T) *scene {
	t.Helper()
	s := runningChild(t)
	s.o.RewindRecord = recorded()
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.podGone()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "parent-back", FromCheckpoint: 9, ToCheckpoint: 3})
	s.agentRuns()
	return s
}

// parentUndoes returns a parent that has undone its rewind to a set.
func parentUndoes(id, undone string) *v1alpha1.Task {
	p := parentRewinds(id, v1alpha1.OperationCompleted)
	p.Status.SetRewind.UndoOf, p.Status.SetRewind.Scope = undone, ""
	return p
}

func TestAChildFollowsAnUndoOfItsParent(t *testing.T) {
	s := followedBack(t).rewoundBefore("parent-back", 9)
	s.o.Parent.Task = parentUndoes("forth", "back")
	s.step()
	s.step()
	s.wantOperation(s.status().Rewind, "parent-forth", v1alpha1.OperationInProgress, "")
	if r := s.status().Rewind; r.UndoOf != "parent-back" || r.ToCheckpoint != 9 || r.RequestedBy != "ada" {
		t.Errorf("the rewind is %+v", r)
	}
	s.wantMessage(s.lastEntry(v1alpha1.EventRewoundByParent).Message, "has undone its rewind back", "to its checkpoint 9 from before that")
	s.podGone()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "parent-forth", FromCheckpoint: 11, ToCheckpoint: 9})
	s.wantOperation(s.status().Rewind, "parent-forth", v1alpha1.OperationCompleted, "")
	s.agentRuns()
	s.managerRestarts().after(time.Hour).step()
	s.wantState(v1alpha1.ReasonRunning)

	s.rewoundBefore("parent-forth", 11) // and the undo of that
	s.o.Parent.Task = parentUndoes("again", "forth")
	s.step()
	s.step()
	s.wantOperation(s.status().Rewind, "parent-again", v1alpha1.OperationInProgress, "")
}

func TestAChildThatHasMovedOnDoesNotFollowAnUndo(t *testing.T) {
	s := followedBack(t)
	s.rewindTo("own", v1alpha1.RewindBoth, toNumber(3)).step()
	s.podGone()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "own", FromCheckpoint: 10, ToCheckpoint: 3})
	s.agentRuns()
	s.o.Parent.Task = parentUndoes("forth", "back")
	s.step()
	s.wantState(v1alpha1.ReasonRunning)
	s.wantOperation(s.status().Rewind, "own", v1alpha1.OperationCompleted, "")
	s.wantMessage(s.lastEntry(v1alpha1.EventRewoundByParent).Message, "stays as it is")
}

func TestAChildOnItsWayToTheSetFollowsTheUndoAfterwards(t *testing.T) {
	s := runningChild(t)
	s.o.RewindRecord = recorded()
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.podGone()
	s.rewoundBefore("parent-back", 9).o.Parent.Task = parentUndoes("forth", "back")
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
	if s.status().Parent.FollowedRewind != "back" || s.status().Parent.Rewind.ID != "parent-back" {
		t.Fatalf("the rewind in progress is withdrawn: %+v", s.status().Parent)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "parent-back", FromCheckpoint: 9, ToCheckpoint: 3})
	s.agentRuns()
	s.step()
	s.wantOperation(s.status().Rewind, "parent-forth", v1alpha1.OperationInProgress, "")
}

func TestAChildThatWaitsToFollowDoesNotOnceTheParentHasUndoneIt(t *testing.T) {
	s := runningChild(t)
	s.o.RewindRecord = RewindRecord{}
	s.o.Parent.Task = parentRewinds("back", v1alpha1.OperationCompleted)
	s.step()
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.o.Parent.Task = parentUndoes("forth", "back")
	s.step()
	s.o.RewindRecord = recorded()
	s.step()
	s.wantState(v1alpha1.ReasonRunning)
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation)
}
