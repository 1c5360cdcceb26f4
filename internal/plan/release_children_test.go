package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// child returns a child of the observed task that runs.
func child(name string) v1alpha1.Task {
	c := *inState(builders.Task(name, builders.WithUID("uid-of-"+name), childOf("tidy-up")), metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	c.ResourceVersion, c.Status.ClaimUID = "7", "claim-of-"+name
	c.Status.Parent = &v1alpha1.ParentStatus{Name: "tidy-up", UID: "uid-of-task"}
	return c
}

// finish ends children.
func (s *scene) finish(names ...string) *scene {
	for i := range s.o.Children {
		for _, name := range names {
			if c := &s.o.Children[i]; c.Name == name {
				inState(c, metav1.ConditionTrue, v1alpha1.ReasonCompleted)
				c.Status.FinishedTime = ptr.To(metav1.NewTime(s.now))
			}
		}
	}
	return s
}

// release lets children give their volumes back.
func (s *scene) release(names ...string) *scene {
	for i := range s.o.Children {
		for _, name := range names {
			if c := &s.o.Children[i]; c.Name == name {
				c.Status.Released, c.Status.ClaimUID = &v1alpha1.ReleaseStatus{Cause: v1alpha1.ReleasedWithParent}, ""
			}
		}
	}
	return s
}

// finishedSupervisor returns a supervisor that has completed and is to be deleted at once, and whose
// children run.
func finishedSupervisor(t *testing.T, onDelete v1alpha1.ChildrenOnDelete, children ...string) *scene {
	t.Helper()
	s := newScene(t, supervisor(""), func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{OnDelete: onDelete} })
	s.o.Contract.Room, s.stored.Known = true, true
	s.step().begins()
	s.record(v1alpha1.TriggerCompletion)
	s.drained().agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	for _, name := range children {
		s.o.Children = append(s.o.Children, child(name))
	}
	s.after(time.Minute).change(onFinish(0, v1alpha1.FinishDelete))
	return s
}

func (s *scene) wantHeld(reason string, parts ...string) {
	s.Helper()
	if s.deleted {
		s.Fatal("the Task was deleted")
	}
	s.wantStatus(v1alpha1.TaskVolumeReleased, metav1.ConditionFalse, reason, parts...)
}

func TestASupervisorIsDeletedOnceNothingOfItsChildrenIsLost(t *testing.T) {
	s := finishedSupervisor(t, v1alpha1.ChildrenDelete, "a", "b")
	s.step().wantHeld(v1alpha1.ReasonReleasePending, "its children would be deleted with it", "2 of them have not finished: a, b")
	s.after(time.Minute).finish("a").step()
	s.wantHeld(v1alpha1.ReasonReleasePending, "1 of them has not finished: b")
	s.after(time.Minute).finish("b").step()
	s.wantHeld(v1alpha1.ReasonReleasingChildren, "2 of them have not: a, b")
	s.after(time.Minute).release("a").step()
	s.wantHeld(v1alpha1.ReasonReleasingChildren, "1 of them has not: b", "the condition VolumeReleased of each")
	s.wantNothingRequested()
	s.after(time.Minute).release("b").verified()
	if !s.deleted {
		t.Fatalf("it was not deleted: %+v", s.wantCondition(v1alpha1.TaskVolumeReleased))
	}
	want := []ObjectRef{{Name: "a", UID: "uid-of-a", Version: "7"}, {Name: "b", UID: "uid-of-b", Version: "7"}}
	if diff := cmp.Diff(want, s.plans[len(s.plans)-2].DeleteChildren); diff != "" {
		t.Errorf("the children that go with it (-want +got):\n%s", diff)
	}
}

func TestChildrenThatStayDoNotHoldTheirParent(t *testing.T) {
	s := finishedSupervisor(t, v1alpha1.ChildrenOrphan, "a").verified()
	if !s.deleted {
		t.Errorf("it was not deleted: %+v", s.wantCondition(v1alpha1.TaskVolumeReleased))
	}
}

func TestOfManyUnfinishedChildrenSomeAreNamed(t *testing.T) {
	var names []string
	for n := range 8 {
		names = append(names, fmt.Sprintf("c-%d", n))
	}
	s := finishedSupervisor(t, v1alpha1.ChildrenDelete, names...)
	s.step().wantHeld(v1alpha1.ReasonReleasePending, "8 of them have not finished: c-0, c-1, c-2, c-3, c-4 and 3 more")
	writes := s.writes
	for n := range 3 {
		s.finish(names[n]).step()
	}
	if s.writes != writes {
		t.Errorf("%d writes for three children that have finished in one moment", s.writes-writes)
	}
	s.after(s.o.Limits.RefreshEvery).step()
	s.wantHeld(v1alpha1.ReasonReleasePending, "5 of them have not finished")
}

// A child that goes on while its parent is being deleted is no part of that any more.
func TestAChildThatHasGoneOnIsNotDeletedByATimer(t *testing.T) {
	s := finishedSupervisor(t, v1alpha1.ChildrenDelete, "a", "b").finish("a", "b").release("a", "b")
	s.step().answered(0)
	s.carryOut(s.decide())
	if !s.deleted {
		t.Fatal("it was not deleted")
	}
	s.o.Children[1] = child("b") // it was resumed
	s.o.Children = append(s.o.Children, child("c"))
	s.step()
	for _, p := range s.plans {
		if p.Farewell == nil {
			continue
		}
		if diff := cmp.Diff([]ObjectRef{{Name: "a", UID: "uid-of-a", Version: "7"}}, p.DeleteChildren); diff != "" {
			t.Errorf("the children that go with it (-want +got):\n%s", diff)
		}
		return
	}
	t.Error("its deletion does not end")
}

// releasingParent returns a Task that is to be deleted with its children.
func releasingParent() *v1alpha1.Task {
	parent := leading("lead", v1alpha1.PhaseExecute)
	parent.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskVolumeReleased, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReleasingChildren}}
	return parent
}

func TestAChildGivesItsVolumeBackBeforeItIsDeletedWithItsParent(t *testing.T) {
	s := newScene(t, childOf("lead"))
	s.stored.Known = true
	s.o.Parent, s.o.Contract = Parent{Task: leading("lead", v1alpha1.PhaseExecute), Room: true}, Contract{Room: true}
	s.step().begins()
	s.o.Parent.Task = releasingParent()
	s.step().wantRunning() // that is up to its parent
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.o.History.State.Attempt = 1
	s.step().wantKept("its last pod has not said that it had sent everything")
	s.drained().step().wantKept("until checkpoint 1 is verified")
	s.verified().wantReleased(v1alpha1.ReleasedWithParent)
	s.wantMessage(s.lastEntry(v1alpha1.EventVolumeReleased).Message, "the parent lead is to be deleted with its children")

	entries := s.status().HistorySequence
	s.o.Parent.Task = leading("lead", v1alpha1.PhaseExecute) // it was resumed
	s.step()
	if s.status().HistorySequence != entries || !s.status().IsReleased() {
		t.Error("a release was taken back")
	}
}

func TestWhoseReleaseAChildFollows(t *testing.T) {
	other := releasingParent()
	other.UID = "uid-of-another-of-that-name"
	for name, test := range map[string]struct {
		parent *v1alpha1.Task
		want   bool
	}{
		"that of its parent":                {releasingParent(), true},
		"no other one of that name":         {other, false},
		"nobody's, if its parent is gone":   {nil, false},
		"not of one that is not to be gone": {leading("lead", v1alpha1.PhaseExecute), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t)
			s.status().Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-lead"}
			s.o.Parent.Task = test.parent
			if got := newDecision(s.o, s.now).goesWithParent(); got != test.want {
				t.Errorf("it goes with its parent: %t, want %t", got, test.want)
			}
		})
	}
}

// A supervisor that goes with its own parent takes its children along.
func TestAChildHasItsOwnChildrenReleasedFirst(t *testing.T) {
	s := finishedSupervisor(t, v1alpha1.ChildrenDelete, "a")
	s.o.Task.Spec.OnFinish = nil
	s.status().Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-lead"}
	s.o.Parent.Task = releasingParent()
	s.step().wantHeld(v1alpha1.ReasonReleasePending, "1 of them has not finished: a")
	s.after(time.Minute).finish("a").step()
	s.wantHeld(v1alpha1.ReasonReleasingChildren, "a")
	s.after(time.Minute).release("a").verified().wantReleased(v1alpha1.ReleasedWithParent)
}

func TestWhoIsToldOfARelease(t *testing.T) {
	parent, others := releasingParent(), leading("lead", v1alpha1.PhaseExecute)
	waits := builders.Task("a", childOf("lead"))
	waits.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-lead"}
	follows := func(parent *v1alpha1.Task) bool { return RelationsOf(waits).FollowsParent(RelationsOf(parent)) }
	if !follows(parent) || follows(others) {
		t.Error("a child is to look at its parent when that releases its children, and not otherwise")
	}
	waits.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskVolumeReleased, Status: metav1.ConditionFalse}}
	if !follows(others) {
		t.Error("a child that waits for its own release is not told that it is not wanted any more")
	}
	if RelationsOf(waits).FollowsParent(Relations{}) != true {
		t.Error("a child that waits for its own release is not told that its parent is gone")
	}
	if RelationsOf(others).AsParent() == RelationsOf(parent).AsParent() {
		t.Error("the children do not see that their parent releases them")
	}
	now := metav1.Now()
	waits.Status.FinishedTime = &now
	finished := FamilyViewOf(waits)
	if waits.Status.Released = (&v1alpha1.ReleaseStatus{}); FamilyViewOf(waits) == finished || follows(parent) {
		t.Error("a parent does not see that a child is released, or that child is told of it")
	}
}

// Nobody could see any more that its work was not published.
func TestAChildWhoseWorkWasNotPublishedKeepsItsVolume(t *testing.T) {
	s := completedTask(t)
	s.o.Task.Spec.Publish = &v1alpha1.Publish{Branch: "b", When: v1alpha1.PublishCompleted}
	d := newDecision(s.o, s.now)
	d.setCondition(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonDiverged, "")
	if d.publishHold(releaseWithParent) == "" {
		t.Error("it goes with its parent")
	}
	if hold := d.publishHold(releaseFinished); hold != "" {
		t.Errorf("it is kept although its record stays: %s", hold)
	}
}
