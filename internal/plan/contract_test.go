package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// supervisor makes the task the supervisor of the contract "port".
func supervisor(phase string, phases ...string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Role = v1alpha1.RoleSupervisor
		t.Spec.Contract = &v1alpha1.Contract{Name: "port", Phase: phase, Phases: phases}
	}
}

// member makes the task a worker of the contract "port".
func member(phase string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Contract = &v1alpha1.Contract{Name: "port", Phase: phase} }
}

// childOf makes the task a child.
func childOf(parent string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent} }
}

// leading returns a supervisor that leads the contract "port" in a phase.
func leading(name, phase string, options ...builders.TaskOption) *v1alpha1.Task {
	t := builders.Task(name, append([]builders.TaskOption{builders.WithUID("uid-" + name), supervisor("")}, options...)...)
	t.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: phase, LeadingSince: ptr.To(metav1.Now())}
	return t
}

// inState sets the condition Succeeded of a task.
func inState(t *v1alpha1.Task, status metav1.ConditionStatus, reason string) *v1alpha1.Task {
	t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason}}
	return t
}

func (s *scene) lastEntry(reason string) v1alpha1.HistoryEntry {
	s.Helper()
	found := v1alpha1.HistoryEntry{}
	for _, e := range s.status().History {
		if e.Reason == reason {
			found = e
		}
	}
	if found.Reason == "" {
		s.Errorf("no entry %s in %v", reason, s.status().History)
	}
	return found
}

func TestASupervisorLeadsItsContractThroughItsPhases(t *testing.T) {
	s := newScene(t, supervisor(""))
	s.o.Contract.Room, s.o.Stamped = true, true
	s.step()
	s.wantStarted(1)
	if c := s.status().Contract; c == nil || c.Name != "port" || c.Phase != v1alpha1.PhaseResearch || c.Since == nil {
		t.Fatalf("the contract is %+v, want port in its first phase", c)
	}
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Actor != Clew || e.Message != "the contract port begins in phase Research" {
		t.Errorf("the entry is %+v", e)
	}

	s.now = s.now.Add(time.Minute)
	s.o.Task.Spec.Contract.Phase, s.o.Task.Spec.RequestedBy = v1alpha1.PhasePlan, &v1alpha1.TaskRequesters{Contract: "ada"}
	s.step()
	if c := s.status().Contract; c.Phase != v1alpha1.PhasePlan || c.SpecPhase != v1alpha1.PhasePlan || !c.Since.Time.Equal(s.now) {
		t.Errorf("after the spec's phase was changed the contract is %+v", c)
	}
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Actor != "ada" || e.Message != "the contract port goes from phase Research to Plan" {
		t.Errorf("the entry is %+v", e)
	}

	writes, status := s.writes, s.o.Task.Status.DeepCopy()
	status.Contract.Phase = v1alpha1.PhaseReview // as a tool does
	s.o.Task.Status = *status
	s.step()
	if c := s.status().Contract; c.Phase != v1alpha1.PhaseReview || s.writes != writes {
		t.Errorf("a phase that the spec did not ask for is moved back to %+v, with %d writes", c, s.writes-writes)
	}
}

// TestAToolMovesTheContractOnce: neither the call again nor the spec, which has not changed, moves it
// after that.
func TestAToolMovesTheContractOnce(t *testing.T) {
	s := newScene(t, supervisor(v1alpha1.PhaseSpecify))
	s.o.Contract.Room = true
	s.step()
	s.o.PhaseCall = &PhaseCall{ID: "call-1", Phase: v1alpha1.PhaseExecute}
	s.step()
	if c := s.status().Contract; c.Phase != v1alpha1.PhaseExecute || c.SpecPhase != v1alpha1.PhaseSpecify || c.LeadingSince == nil || !PhaseCallHandled(s.o.Task, "call-1") {
		t.Fatalf("after the call the contract is %+v", c)
	}
	if e := s.lastEntry(v1alpha1.EventPhaseChanged); e.Actor != "task tidy-up" || e.Message != "the contract port goes from phase Specify to Execute" {
		t.Errorf("the entry is %+v", e)
	}
	writes := s.writes
	s.step()
	if s.writes != writes {
		t.Error("the same call was carried out again")
	}

	s.o.Task.Spec.Contract.Phase = v1alpha1.PhaseReview // a person, meanwhile
	s.step()
	if c := s.status().Contract; c.Phase != v1alpha1.PhaseReview || !PhaseCallHandled(s.o.Task, "call-1") {
		t.Errorf("after the spec's phase was changed the contract is %+v", c)
	}
}

func TestWhichCallsOfPhaseSetAreCarriedOut(t *testing.T) {
	for name, c := range map[string]struct {
		task    []builders.TaskOption
		call    PhaseCall
		entries int
		handled bool
	}{
		"to a later phase":          {[]builders.TaskOption{supervisor("")}, PhaseCall{ID: "a", Phase: v1alpha1.PhasePlan}, 2, true},
		"to the one it is in":       {[]builders.TaskOption{supervisor("")}, PhaseCall{ID: "a", Phase: v1alpha1.PhaseResearch}, 1, true},
		"to none of the contract":   {[]builders.TaskOption{supervisor("", "One", "Two")}, PhaseCall{ID: "a", Phase: v1alpha1.PhasePlan}, 1, false},
		"of a worker, which cannot": {[]builders.TaskOption{member("")}, PhaseCall{ID: "a", Phase: v1alpha1.PhasePlan}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, c.task...)
			s.o.Contract.Room = true
			s.step()
			s.o.PhaseCall = &c.call
			s.step()
			entries := 0
			for _, e := range s.status().History {
				if e.Reason == v1alpha1.EventPhaseChanged {
					entries++
				}
			}
			if entries != c.entries || PhaseCallHandled(s.o.Task, "a") != c.handled {
				t.Errorf("%d changes of the phase, handled %v; want %d and %v", entries, PhaseCallHandled(s.o.Task, "a"), c.entries, c.handled)
			}
		})
	}
}

func TestTheStatusRemembersTheNewestCalls(t *testing.T) {
	s := newScene(t, supervisor(""))
	s.o.Contract.Room = true
	s.step()
	for i := range 40 {
		s.o.PhaseCall = &PhaseCall{ID: fmt.Sprint(i), Phase: v1alpha1.DefaultPhases()[i%2]}
		s.o.Recorded = s.status().HistorySequence
		s.step()
	}
	if calls := s.status().Contract.HandledCalls; len(calls) != 32 || calls[0] != "8" || calls[31] != "39" {
		t.Errorf("it remembers %v", calls)
	}
}

func TestAContractHasOneUnfinishedSupervisor(t *testing.T) {
	s := newScene(t, supervisor(v1alpha1.PhasePlan))
	s.o.Contract = Contract{Leader: leading("first", v1alpha1.PhaseExecute), Room: true}
	s.step()
	s.wantState(v1alpha1.ReasonWaitingForContract)
	s.wantMessage(s.lastEntry(v1alpha1.EventTaskWaiting).Message, "first")
	if s.status().Contract != nil || s.o.Claim != nil || len(s.o.Pods) > 0 {
		t.Error("a supervisor that waits has a volume, a pod, or the contract")
	}
	if after := s.plans[len(s.plans)-1].RequeueAfter; after != 0 {
		t.Errorf("it looks again after %v, though the other's end wakes it", after)
	}
	s.o.Contract.Leader = nil
	s.step()
	s.wantStarted(1)
	if c := s.status().Contract; c.Phase != v1alpha1.PhasePlan {
		t.Errorf("the contract is %+v, want it in the phase of the spec", c)
	}
}

// A supervisor leads from the start of its agent until it has finished; neither a suspension nor a lost
// pod takes the lead from it, and a rewind of one that has finished does not give it back.
func TestHowLongASupervisorLeads(t *testing.T) {
	s := newScene(t, supervisor(""))
	s.o.Contract.Room = true
	leads := func(want bool, when string) {
		t.Helper()
		if got := Leads(s.o.Task); got != want {
			t.Errorf("%s it leads: %v, want %v", when, got, want)
		}
	}
	leads(false, "before it starts")
	s.step()
	leads(true, "once it starts")
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	builders.Suspended(s.o.Task)
	s.step()
	s.podFinishes()
	s.wantState(v1alpha1.ReasonSuspended)
	leads(true, "while it is suspended")

	builders.Running(s.o.Task)
	s.step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	leads(false, "once it has completed")

	s.o.Contract.Leader = leading("next", "Plan")
	s.rewind("back", 1).step()
	if p := s.started(); p == nil || !p.PrepareOnly {
		t.Fatalf("the rewind of a supervisor that has finished waits for the next one: %+v, %+v", s.status().Rewind, succeededOf(s.o.Task))
	}
	leads(false, "while it is rewound")
}

func TestOfTwoSupervisorsThatLeadTheOlderOneDoes(t *testing.T) {
	older, younger, waiting := leading("older", "Plan"), leading("younger", "Plan"), builders.Task("waiting", supervisor(""))
	younger.CreationTimestamp = metav1.NewTime(older.CreationTimestamp.Add(time.Hour))
	deleted := leading("deleted", "Plan")
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		leader, other *v1alpha1.Task
		want          bool
	}{
		"before one that waits":     {younger, waiting, true},
		"before a younger one":      {older, younger, true},
		"before an older one":       {younger, older, false},
		"one that waits":            {waiting, older, false},
		"one that is being deleted": {deleted, waiting, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := LeadsBefore(test.leader, test.other); got != test.want {
				t.Errorf("leads: %v, want %v", got, test.want)
			}
		})
	}
}

func TestAWorkerJoinsItsContract(t *testing.T) {
	for name, test := range map[string]struct {
		options []builders.TaskOption
		found   Contract
		parent  *v1alpha1.Task
		want    *v1alpha1.ContractStatus
		reason  string
		message string
	}{
		"without a supervisor": {
			options: []builders.TaskOption{member("")}, found: Contract{Room: true},
			want: &v1alpha1.ContractStatus{Name: "port"},
		},
		"without a supervisor, in a phase": {
			options: []builders.TaskOption{member("Execute")}, found: Contract{Room: true},
			want: &v1alpha1.ContractStatus{Name: "port", Phase: "Execute", SpecPhase: "Execute"},
		},
		"in the current phase": {
			options: []builders.TaskOption{member("")}, found: Contract{Leader: leading("lead", "Specify"), Room: true},
			want: &v1alpha1.ContractStatus{Name: "port", Phase: "Specify"},
		},
		"in a phase of its own": {
			options: []builders.TaskOption{member("Review")}, found: Contract{Leader: leading("lead", "Specify"), Room: true},
			want: &v1alpha1.ContractStatus{Name: "port", Phase: "Review", SpecPhase: "Review"},
		},
		"in a phase that the contract does not have": {
			options: []builders.TaskOption{member("Ship")}, found: Contract{Leader: leading("lead", "Specify"), Room: true},
			reason: v1alpha1.ReasonPhaseUnknown, message: "Research, Specify, Plan, Execute, Review",
		},
		"of its parent": {
			options: []builders.TaskOption{childOf("lead")}, found: Contract{Room: true}, parent: leading("lead", "Plan"),
			want: &v1alpha1.ContractStatus{Name: "port", Phase: "Plan"},
		},
		"that is full": {
			options: []builders.TaskOption{member("")},
			reason:  v1alpha1.ReasonContractFull, message: "1000 tasks",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, test.options...)
			s.o.Contract, s.o.Parent = test.found, Parent{Task: test.parent, Room: true}
			s.step()
			if test.reason != "" {
				s.wantState(test.reason)
				s.wantMessage(succeededOf(s.o.Task).Message, test.message)
				s.wantMessage(s.lastEntry(v1alpha1.EventTaskHindered).Message, test.reason+": ")
				return
			}
			s.wantStarted(1)
			if diff := cmp.Diff(test.want, s.status().Contract); diff != "" {
				t.Errorf("the contract (-want +got):\n%s", diff)
			}
			s.lastEntry(v1alpha1.EventTaskJoined)
		})
	}
}

func TestAChildFindsItsParent(t *testing.T) {
	worker := builders.Task("lead", builders.WithUID("uid-lead"))
	deleted := leading("lead", "Plan")
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	orphan := leading("lead", "Plan", childOf("above"))
	deep := leading("lead", "Plan", childOf("above"))
	deep.Status.Parent = &v1alpha1.ParentStatus{Name: "above", UID: "u", Depth: v1alpha1.MaxTaskDepth}
	nested := leading("lead", "Plan", childOf("above"))
	nested.Status.Parent = &v1alpha1.ParentStatus{Name: "above", UID: "u", Depth: 1}
	for name, test := range map[string]struct {
		options []builders.TaskOption
		found   Parent
		want    *v1alpha1.ParentStatus
		reason  string
		message string
	}{
		"one that leads":                 {found: Parent{Task: leading("lead", "Plan"), Room: true}, want: &v1alpha1.ParentStatus{Name: "lead", UID: "uid-lead", Depth: 1}},
		"one that has a parent":          {found: Parent{Task: nested, Room: true}, want: &v1alpha1.ParentStatus{Name: "lead", UID: "uid-lead", Depth: 2}},
		"none":                           {reason: v1alpha1.ReasonParentNotFound, message: "lead does not exist"},
		"one that has not started":       {found: Parent{Task: builders.Task("lead", supervisor("")), Room: true}, reason: v1alpha1.ReasonParentNotFound, message: "has not started"},
		"one that waits for its own":     {found: Parent{Task: orphan, Room: true}, reason: v1alpha1.ReasonParentNotFound, message: "has not started"},
		"a worker":                       {found: Parent{Task: worker, Room: true}, reason: v1alpha1.ReasonParentRefused, message: "only a supervisor has children"},
		"one that is being deleted":      {found: Parent{Task: deleted, Room: true}, reason: v1alpha1.ReasonParentRefused, message: "being deleted"},
		"one that is nested too deep":    {found: Parent{Task: deep, Room: true}, reason: v1alpha1.ReasonParentRefused, message: "nested 4 deep"},
		"one that has too many children": {found: Parent{Task: leading("lead", "Plan")}, reason: v1alpha1.ReasonChildLimitReached, message: "as many children as its children.maximum allows"},
		"a circle":                       {found: Parent{Task: orphan, Room: true, Circle: []string{"tidy-up", "lead"}}, reason: v1alpha1.ReasonParentRefused, message: "tidy-up → lead → tidy-up"},
		"one of another contract": {
			options: []builders.TaskOption{func(t *v1alpha1.Task) { t.Spec.Contract = &v1alpha1.Contract{Name: "other"} }},
			found:   Parent{Task: leading("lead", "Plan"), Room: true}, reason: v1alpha1.ReasonParentRefused, message: "the contract port, and this task to other",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, append([]builders.TaskOption{childOf("lead")}, test.options...)...)
			s.o.Parent, s.o.Contract.Room = test.found, true
			s.step()
			if test.reason == "" {
				s.wantStarted(1)
				if diff := cmp.Diff(test.want, s.status().Parent); diff != "" {
					t.Errorf("the parent (-want +got):\n%s", diff)
				}
				return
			}
			s.wantState(test.reason)
			s.wantMessage(succeededOf(s.o.Task).Message, test.message)
			if s.status().Parent != nil || s.status().Contract != nil || s.o.Claim != nil || len(s.o.Pods) > 0 {
				t.Error("something was made for a child that must wait")
			}
			entry := v1alpha1.EventTaskHindered
			if test.reason == v1alpha1.ReasonParentNotFound {
				entry = v1alpha1.EventTaskWaiting
			}
			s.wantMessage(s.lastEntry(entry).Message, test.message)
			if after := s.plans[len(s.plans)-1].RequeueAfter; after != 0 {
				t.Errorf("it looks again after %v, though its parent's news wakes it", after)
			}
		})
	}
}

func TestAChildFollowsAParentThatWasAppliedAnew(t *testing.T) {
	s := newScene(t, childOf("lead"))
	s.o.Parent, s.o.Contract.Room = Parent{Task: leading("lead", "Plan"), Room: true}, true
	s.step()
	anew := leading("lead", "Plan", builders.WithUID("uid-anew"))
	s.o.Parent.Task = anew
	s.step()
	if p := s.status().Parent; p.UID != "uid-lead" {
		t.Errorf("the child follows a stranger of its parent's name: %+v", p)
	}
	anew.Status.Adoption = &v1alpha1.AdoptionStatus{TaskUID: "uid-lead"}
	s.step()
	if p := s.status().Parent; p.UID != "uid-anew" || p.Depth != 1 {
		t.Errorf("the parent is %+v, want the one that continues the former one", p)
	}
}

func TestASupervisorKnowsItsChildren(t *testing.T) {
	s := newScene(t, supervisor(""))
	s.o.Contract.Room = true
	s.step()
	child := func(name string, status metav1.ConditionStatus, reason string) v1alpha1.Task {
		return *inState(builders.Task(name, builders.WithUID("uid-"+name), childOf("tidy-up")), status, reason)
	}
	running := child("b-runs", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	running.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
	s.o.Children = []v1alpha1.Task{
		child("a-waits", metav1.ConditionUnknown, v1alpha1.ReasonPending), running,
		child("c-rests", metav1.ConditionUnknown, v1alpha1.ReasonSuspended),
		child("d-done", metav1.ConditionTrue, v1alpha1.ReasonCompleted),
		child("e-failed", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed),
	}
	s.step()
	if s.status().Children != nil {
		t.Error("the children are written at once, however often they change")
	}
	s.now = s.now.Add(s.o.Limits.RefreshEvery)
	s.step()
	want := &v1alpha1.ChildrenStatus{Total: 5, Waiting: 1, Running: 1, Stopped: 1, Completed: 1, Failed: 1, Unfinished: []string{"a-waits", "b-runs", "c-rests"}}
	if diff := cmp.Diff(want, s.status().Children); diff != "" {
		t.Errorf("the children (-want +got):\n%s", diff)
	}
}

func TestWhatBecomesOfChildrenWhenTheirParentIsDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		children *v1alpha1.Children
		want     int
		message  string
	}{
		"by default": {nil, 2, "its 2 children are deleted with it"},
		"Delete":     {&v1alpha1.Children{OnDelete: v1alpha1.ChildrenDelete}, 2, "its 2 children are deleted with it"},
		"Orphan":     {&v1alpha1.Children{OnDelete: v1alpha1.ChildrenOrphan}, 0, "its history is kept"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, supervisor(""), func(t *v1alpha1.Task) { t.Spec.Children = test.children })
			s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
			s.o.Children = []v1alpha1.Task{*builders.Task("a", builders.WithUID("a")), *builders.Task("b", builders.WithUID("b"))}
			s.step()
			p := s.plans[0]
			if len(p.DeleteChildren) != test.want || !strings.Contains(p.Farewell.Message, test.message) {
				t.Errorf("%d children are deleted, and the last entry says %q", len(p.DeleteChildren), p.Farewell.Message)
			}
		})
	}
}

func TestASupervisorThatIsDeletedWaitsForWhoMayHaveBecomeItsChild(t *testing.T) {
	s := newScene(t, supervisor(""))
	s.o.Task.DeletionTimestamp, s.o.Joining = ptr.To(metav1.NewTime(s.now)), 1
	s.step()
	if p := s.plans[0]; p.Farewell != nil || p.RequeueAfter == 0 {
		t.Errorf("the plan is %+v, want it to look again", p)
	}
	s.o.Joining, s.o.Children = 0, []v1alpha1.Task{*builders.Task("a", builders.WithUID("a"))}
	s.step()
	if p := s.plans[0]; p.Farewell == nil || len(p.DeleteChildren) != 1 {
		t.Errorf("the plan is %+v, want the child deleted", p)
	}
}

func TestASupervisorThatIsAppliedAnewGoesOnInItsPhase(t *testing.T) {
	s := newScene(t, supervisor(v1alpha1.PhaseResearch), func(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest })
	s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "former", Done: true, Phase: v1alpha1.PhaseExecute}}
	s.step()
	if c := succeededOf(s.o.Task); c.Reason != v1alpha1.ReasonContractFull || s.status().Adoption != nil || s.status().Contract != nil {
		t.Errorf("a contract without room is joined: %+v, %+v", c, s.status().Contract)
	}
	s.o.Contract.Room = true
	s.step()
	if c := s.status().Contract; c == nil || c.Phase != v1alpha1.PhaseExecute || c.SpecPhase != v1alpha1.PhaseResearch {
		t.Errorf("the contract is %+v, want it where the former task had led it", c)
	}
}
