package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var setTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// hasAttempt gives a task attempts of which the last one runs, or has ended, and a last checkpoint.
func hasAttempt(t *v1alpha1.Task, number, checkpoint int64, outcome v1alpha1.AttemptOutcome) *v1alpha1.Task {
	t.Status.Attempts = []v1alpha1.Attempt{{Number: number, Purpose: v1alpha1.AttemptForAgent, Outcome: outcome}}
	t.Status.LatestCheckpoint = nil
	if checkpoint != 0 {
		t.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: t.Name + "-last", Number: checkpoint}
	}
	return t
}

// setOf is an observation of the set "evening" of the supervisor "lead", which runs, as do its children
// "docs" and "tests"; "done" has completed with checkpoint 4.
func setOf() ObservedSet {
	child := func(name string) *v1alpha1.Task {
		return inState(builders.Task(name, builders.WithUID("uid-"+name), childOf("lead")), metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	}
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "evening", UID: "0a1b2c3d-4e5f-6789"},
		Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "lead"}, Scope: v1alpha1.CheckpointOfContract}}
	return ObservedSet{Checkpoint: c, Task: hasAttempt(leading("lead", v1alpha1.PhaseExecute), 1, 1, ""), Children: []v1alpha1.Task{
		*hasAttempt(child("docs"), 1, 0, ""), *hasAttempt(child("done"), 2, 4, v1alpha1.AttemptCompleted), *hasAttempt(child("tests"), 3, 6, ""),
		*child("queued"),
	}, Members: map[string]ObservedMember{}}
}

// begun is the same once the set has begun.
func begun() ObservedSet {
	o := setOf()
	o.Checkpoint.Status.Set = DecideSet(o, setTime).Set
	o.Members["uid-lead"] = ObservedMember{Task: o.Task}
	for i := range o.Children {
		o.Members[string(o.Children[i].UID)] = ObservedMember{Task: &o.Children[i]}
	}
	return o
}

// allTaken is the same once all have their checkpoint.
func allTaken() ObservedSet {
	o := begun()
	for name, number := range map[string]int64{"uid-lead": 2, "uid-docs": 1, "uid-tests": 7} {
		o.is(name, func(m *ObservedMember) { m.Taken = number })
	}
	o.decide(time.Second)
	return o
}

func (o ObservedSet) is(uid string, change func(*ObservedMember)) ObservedSet {
	m := o.Members[uid]
	change(&m)
	o.Members[uid] = m
	return o
}

// ends records how the hold of a member's agent ended.
func (o ObservedSet) ends(uid string, number int64, released, inCall bool) ObservedSet {
	return o.is(uid, func(m *ObservedMember) {
		m.Holds = []history.HoldEnd{{Set: "another", Checkpoint: number - 1}, {Set: "0a1b2c3d-4e5f-6789", Checkpoint: number, Released: released, InCall: inCall}}
	})
}

// decide decides and keeps the outcome.
func (o ObservedSet) decide(after time.Duration) SetPlan {
	p := DecideSet(o, setTime.Add(after))
	o.Checkpoint.Status.Set = p.Set
	return p
}

func wantSet(t *testing.T, p SetPlan, state v1alpha1.CheckpointSetState, reason string, parts ...string) {
	t.Helper()
	if p.Set == nil || p.Set.State != state || p.Ready.Reason != reason {
		t.Fatalf("the set is %+v, %+v; want %s, %s", p.Set, p.Ready, state, reason)
	}
	for _, part := range parts {
		if !strings.Contains(p.Ready.Message, part) {
			t.Errorf("%q does not say %q", p.Ready.Message, part)
		}
	}
}

func TestTheMembersOfASet(t *testing.T) {
	p := DecideSet(setOf(), setTime)
	wantSet(t, p, v1alpha1.SetTaking, v1alpha1.ReasonTakingTogether, "4 tasks", "waiting for that of lead, docs, tests")
	want := []v1alpha1.CheckpointSetMember{
		{Task: "lead", UID: "uid-lead", Checkpoint: "evening", State: v1alpha1.MemberPending},
		{Task: "docs", UID: "uid-docs", Checkpoint: "docs-set-0a1b2c3d4e5f", State: v1alpha1.MemberPending},
		{Task: "done", UID: "uid-done", Checkpoint: "done-last", Number: 4, Attempt: 2, State: v1alpha1.MemberAtRest},
		{Task: "tests", UID: "uid-tests", Checkpoint: "tests-set-0a1b2c3d4e5f", State: v1alpha1.MemberPending},
	}
	if diff := cmp.Diff(want, p.Set.Members); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestOneSetOfASupervisorIsTakenAtATime(t *testing.T) {
	other := v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "noon"}, Status: v1alpha1.CheckpointStatus{Set: &v1alpha1.CheckpointSet{State: v1alpha1.SetReleasing}}}
	o := setOf()
	o.Others = []v1alpha1.Checkpoint{other}
	if p := DecideSet(o, setTime); p.Set != nil || p.Ready.Reason != v1alpha1.ReasonAnotherSet || p.RequeueAfter != 0 {
		t.Errorf("beside one that is being taken, whose end is heard of: %+v", p)
	}
	if p := AwaitSet("noon"); p.Set != nil || p.Ready.Reason != v1alpha1.ReasonAnotherSet || p.RequeueAfter == 0 {
		t.Errorf("beside one that the cache does not show: %+v", p)
	}
	ended := SetReady(&v1alpha1.CheckpointSet{State: v1alpha1.SetTogether})
	ended.LastTransitionTime = metav1.NewTime(setTime)
	other.Status.Set.State, other.Status.Conditions = v1alpha1.SetTogether, []metav1.Condition{ended}
	o.Others[0] = other
	if p := DecideSet(o, setTime.Add(20*time.Second)); p.Set != nil || p.RequeueAfter != 40*time.Second {
		t.Errorf("after one that has just ended: %+v", p)
	}
	if p := DecideSet(o, setTime.Add(time.Minute)); p.Set == nil {
		t.Errorf("a minute after that: %+v", p)
	}
}

func TestASetThatNobodyHasLookedAtEndsByWhatWasRecorded(t *testing.T) {
	o := allTaken()
	o.ends("uid-lead", 2, true, false).ends("uid-docs", 1, true, false).ends("uid-tests", 7, true, false)
	wantSet(t, o.decide(200*time.Second), v1alpha1.SetTogether, v1alpha1.ReasonTakenTogether)
	o = allTaken()
	o.ends("uid-lead", 2, true, false)
	wantSet(t, o.decide(170*time.Second), v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, ": docs, tests did not stand still")
}

func TestASetOfWhichACheckpointCannotBeRequestedFailsAtOnce(t *testing.T) {
	o := begun()
	o.Checkpoint.Status.Set = RefusedSet(o.Checkpoint.Status.Set, map[string]string{"uid-docs": "exceeded quota: clew" + strings.Repeat("x", 600)}, setTime).Set
	wantSet(t, o.decide(time.Second), v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether,
		"none could be requested of docs (exceeded quota: clew", "none was taken of lead, tests. Those")
	if m := o.Checkpoint.Status.Set.Members[1]; m.State != v1alpha1.MemberFailed || len(m.Message) > 512 {
		t.Errorf("the member is %+v", m)
	}
}

func TestASetThatIsAppliedAgainStandsForTheSupervisorsCheckpoint(t *testing.T) {
	o := setOf()
	p := RecalledSet(o.Task, "evening", 2)
	wantSet(t, p, v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, "checkpoint 2 was taken", "not known any more")
	if len(p.Set.Members) != 1 || p.Set.Members[0].Number != 2 {
		t.Errorf("its members are %+v", p.Set.Members)
	}
}

func TestNoServerSeesASetWithTheLabelOfClewsObjects(t *testing.T) {
	o := setOf()
	o.Checkpoint.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
	if p := DecideSet(o, setTime); p.Set != nil || !strings.Contains(p.Ready.Message, "remove the label") {
		t.Errorf("decided %+v", p)
	}
}

func TestWhatIsNoSet(t *testing.T) {
	for reason, change := range map[string]func(*ObservedSet){
		v1alpha1.ReasonTaskNotFound:   func(o *ObservedSet) { o.Task = nil },
		v1alpha1.ReasonNotASupervisor: func(o *ObservedSet) { o.Task.Spec.Role = v1alpha1.RoleWorker },
		v1alpha1.ReasonTaskNotStarted: func(o *ObservedSet) { o.Task.Status.Attempts, o.Task.Status.LatestCheckpoint = nil, nil },
		v1alpha1.ReasonNoChildren:     func(o *ObservedSet) { o.Children = o.Children[3:] },
		v1alpha1.ReasonTooManyChildren: func(o *ObservedSet) {
			for range v1alpha1.MaxSetChildren {
				o.Children = append(o.Children, o.Children[0])
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			o := setOf()
			change(&o)
			if p := DecideSet(o, setTime); p.Set != nil || p.Ready.Status != metav1.ConditionFalse || p.Ready.Reason != reason {
				t.Errorf("decided %+v", p)
			} else if p.RequeueAfter != 0 {
				t.Errorf("it is looked at again after %s, though whatever ends it is an event", p.RequeueAfter)
			}
		})
	}
}

func TestASetThatIsDeletedEndsWhoeverKeepsItsObject(t *testing.T) {
	o := begun()
	o.is("uid-lead", func(m *ObservedMember) { m.Taken = 2 })
	now := metav1.NewTime(setTime)
	o.Checkpoint.DeletionTimestamp, o.Checkpoint.Finalizers = &now, []string{"x.example/y"}
	wantSet(t, o.decide(time.Second), v1alpha1.SetReleasing, v1alpha1.ReasonTakingTogether, "told to continue")
	o.ends("uid-lead", 2, true, false)
	wantSet(t, o.decide(2*time.Second), v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, "none was taken of docs, tests")
}

func TestASetThatIsTakenTogether(t *testing.T) {
	o := begun()
	o.is("uid-lead", func(m *ObservedMember) { m.Taken = 2 }).is("uid-docs", func(m *ObservedMember) { m.Taken = 1 })
	wantSet(t, o.decide(time.Second), v1alpha1.SetTaking, v1alpha1.ReasonTakingTogether, "waiting for that of tests")
	o.is("uid-tests", func(m *ObservedMember) { m.Taken = 7 })
	wantSet(t, o.decide(2*time.Second), v1alpha1.SetReleasing, v1alpha1.ReasonTakingTogether, "told to continue")
	o.ends("uid-lead", 2, true, false).ends("uid-docs", 1, true, true)
	wantSet(t, o.decide(3*time.Second), v1alpha1.SetReleasing, v1alpha1.ReasonTakingTogether)
	o.ends("uid-tests", 7, true, false)
	p := o.decide(4 * time.Second)
	wantSet(t, p, v1alpha1.SetTogether, v1alpha1.ReasonTakenTogether, "4 tasks", "that of docs in the middle of a call")
	if p.Ready.Status != metav1.ConditionTrue || p.RequeueAfter != 0 {
		t.Errorf("decided %+v", p)
	}
}

func TestWhatParts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ObservedSet)
		after  time.Duration
		part   string
	}{
		"an agent that continued before":     {func(o ObservedSet) { o.ends("uid-tests", 7, false, false) }, time.Minute, "tests did not stand still"},
		"an agent of which nothing is heard": {func(ObservedSet) {}, setEnds, "tests did not stand still"},
		"the hold of another checkpoint":     {func(o ObservedSet) { o.ends("uid-tests", 8, true, false) }, setEnds, "tests did not stand still"},
		"a task at rest that runs again": {func(o ObservedSet) {
			hasAttempt(o.ends("uid-tests", 7, true, false).Members["uid-done"].Task, 3, 4, "")
		}, time.Minute, "done did not stand still"},
		"a task at rest that ran meanwhile": {func(o ObservedSet) {
			hasAttempt(o.ends("uid-tests", 7, true, false).Members["uid-done"].Task, 3, 5, v1alpha1.AttemptCompleted)
		}, time.Minute, "done did not"},
		"a task at rest whose pod is not listed": {func(o ObservedSet) {
			o.ends("uid-tests", 7, true, false).is("uid-done", func(m *ObservedMember) { m.Begun = 3 })
		}, time.Minute, "done did not"},
		"a task at rest that was deleted": {func(o ObservedSet) {
			o.ends("uid-tests", 7, true, false).is("uid-done", func(m *ObservedMember) { m.Task = nil })
		}, time.Minute, "done did not"},
		"an agent that continued, and a silence": {func(o ObservedSet) { o.ends("uid-docs", 1, false, false) }, setEnds, "docs, tests did not"},
	} {
		t.Run(name, func(t *testing.T) {
			o := allTaken()
			o.ends("uid-lead", 2, true, false).ends("uid-docs", 1, true, false)
			c.change(o)
			p := o.decide(c.after)
			wantSet(t, p, v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, c.part, "valid, each of its own task", "under another name")
			if p.Ready.Status != metav1.ConditionFalse {
				t.Errorf("decided %+v", p)
			}
		})
	}
}

// Its daemon takes the checkpoint, and lets the agent continue at once.
func TestNoAgentStopsForASetWithAPodOfAFormerVersion(t *testing.T) {
	for name, former := range map[string]func(ObservedSet) *v1alpha1.Task{
		"lead": func(o ObservedSet) *v1alpha1.Task { return o.Task },
		"docs": func(o ObservedSet) *v1alpha1.Task { return &o.Children[0] },
	} {
		t.Run(name, func(t *testing.T) {
			o := setOf()
			former(o).Status.Attempts[0].Purpose = ""
			p := o.decide(0)
			wantSet(t, p, v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, "none could be requested of "+name, "of before the upgrade", "suspend and resume the task")
			if p.RequeueAfter != 0 || strings.Contains(p.Ready.Message, "in time") {
				t.Errorf("the plan is %+v", p)
			}
		})
	}
	o := setOf()
	hasAttempt(&o.Children[0], 1, 1, v1alpha1.AttemptSuspended).Status.Attempts[0].Purpose = ""
	wantSet(t, o.decide(0), v1alpha1.SetTaking, v1alpha1.ReasonTakingTogether)
}

func TestASetWhoseMemberCannotBeTakenLetsTheOthersContinue(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ObservedSet)
		after  time.Duration
	}{
		"in time":         {func(ObservedSet) {}, setTakes},
		"since it's gone": {func(o ObservedSet) { o.is("uid-tests", func(m *ObservedMember) { m.Task = nil }) }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			o := begun()
			o.is("uid-lead", func(m *ObservedMember) { m.Taken = 2 }).is("uid-docs", func(m *ObservedMember) { m.Taken = 1 })
			c.change(o)
			wantSet(t, o.decide(c.after), v1alpha1.SetReleasing, v1alpha1.ReasonTakingTogether, "cannot all be taken")
			o.ends("uid-lead", 2, true, false).ends("uid-docs", 1, true, false)
			wantSet(t, o.decide(c.after+time.Second), v1alpha1.SetApart, v1alpha1.ReasonNotTakenTogether, "none was taken of tests")
		})
	}
}

func TestATaskThatEndsBeforeItsTurnIsAtRest(t *testing.T) {
	o := begun()
	o.is("uid-lead", func(m *ObservedMember) { m.Taken = 2 }).is("uid-docs", func(m *ObservedMember) { m.Taken = 1 })
	hasAttempt(o.Members["uid-tests"].Task, 3, 8, v1alpha1.AttemptCompleted)
	p := o.decide(time.Second)
	wantSet(t, p, v1alpha1.SetReleasing, v1alpha1.ReasonTakingTogether)
	want := v1alpha1.CheckpointSetMember{Task: "tests", UID: "uid-tests", Checkpoint: "tests-set-0a1b2c3d4e5f", Number: 8, Attempt: 3, State: v1alpha1.MemberAtRest}
	if diff := cmp.Diff(want, p.Set.Members[3]); diff != "" {
		t.Errorf("the member (-want +got):\n%s", diff)
	}
	o.ends("uid-lead", 2, true, false).ends("uid-docs", 1, true, false)
	wantSet(t, o.decide(2*time.Second), v1alpha1.SetTogether, v1alpha1.ReasonTakenTogether)
}
