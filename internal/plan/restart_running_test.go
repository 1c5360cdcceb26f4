package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// beginsAgain makes the pod that has started take the supervisor back to a checkpoint, and run its agent.
func (s *scene) beginsAgain(checkpoint int64) {
	s.Helper()
	op := s.startedOperation()
	if op.Rewind == nil || op.Rewind.Checkpoint != checkpoint {
		s.Fatalf("the resume begins with %+v, want a rewind to checkpoint %d", op.Rewind, checkpoint)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "again", ToCheckpoint: checkpoint, FromCheckpoint: 3})
	if r := s.status().Contract.Restart; r == nil || r.ID != "again" {
		s.Errorf("the contract's restart is %+v", r)
	}
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
}

func TestASupervisorThatRunsIsStoppedWhenItsPhaseBeginsAgain(t *testing.T) {
	s := leadingOn(t)
	s.o.Children = []v1alpha1.Task{childIn("busy", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
	s.knows(2).after(time.Minute).change(restart("again", ""), func(t *v1alpha1.Task) {
		t.Spec.RequestedBy = &v1alpha1.TaskRequesters{Resume: "ada"}
	}).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonRewinding, "being stopped before phase Specify begins again")
	if s.pod().DeletionTimestamp == nil || s.started() != nil {
		t.Error("its agent is not stopped first")
	}
	if s.status().Contract.Restart != nil {
		t.Error("the children are told before the workspace is back")
	}
	s.record(v1alpha1.TriggerSuspend)
	s.podGone()
	s.wantOutcomes(v1alpha1.AttemptStopped, "")
	if e := s.lastEntry(v1alpha1.EventTaskResumed); e.Actor != "ada" {
		t.Errorf("the entry is %+v", e)
	}
	s.beginsAgain(2)
	s.after(time.Hour).managerRestarts().step()
	s.wantState(v1alpha1.ReasonRunning) // once for each id
}

func TestAPhaseBeginsAgainWhateverTheSupervisorDoes(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*scene) // happens before the resume is requested
		stop   func(*scene) // happens while its agent is stopped
	}{
		"it works":                  {stop: func(s *scene) { s.podGone() }},
		"it completes at that time": {stop: func(s *scene) { s.record(v1alpha1.TriggerCompletion); s.agentExits(0); s.podFinishes(); s.podGone() }},
		"it fails at that time":     {stop: func(s *scene) { s.agentExits(1); s.podFinishes(); s.podGone() }},
		"it is about to be retried": {before: func(s *scene) { s.agentExits(1); s.podFinishes(); s.wantState(v1alpha1.ReasonRetrying) }},
		"it waits for an answer": {
			before: func(s *scene) { s.asks("1-a"); s.wantState(v1alpha1.ReasonWaitingForApproval) },
			stop:   func(s *scene) { s.podGone() },
		},
		"it asks at that time, for which it is ended": {stop: func(s *scene) { s.asks("1-a", stopsAgent); s.podGone() }},
	} {
		t.Run(name, func(t *testing.T) {
			s := leadingOn(t)
			if c.before != nil {
				c.before(s)
			}
			s.knows(2).after(time.Second).change(restart("again", "")).step()
			if c.stop != nil {
				s.wantState(v1alpha1.ReasonRewinding)
				c.stop(s)
			}
			s.beginsAgain(2)
			if len(s.status().Requests) != 0 {
				t.Errorf("a call that was taken back still waits: %+v", s.status().Requests)
			}
		})
	}
}

func TestASupervisorGoesOnUntilItIsKnownWhereItsPhaseBegan(t *testing.T) {
	s := leadingOn(t)
	s.o.ResumeRecord = RewindRecord{}
	s.change(restart("again", "")).step()
	s.wantState(v1alpha1.ReasonRunning)
	if r := s.status().Resume; r == nil || r.State != v1alpha1.OperationPending {
		t.Errorf("the resume is %+v", r)
	}
	s.knows(2).after(time.Minute).step()
	s.wantState(v1alpha1.ReasonRewinding)
	s.podGone()
	s.beginsAgain(2)
}

func TestARestartThatIsSuspendedMeanwhileFollowsLater(t *testing.T) {
	s := leadingOn(t)
	s.knows(2).change(restart("again", "")).step()
	s.change(builders.Suspended).step()
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	s.change(builders.Running).step()
	s.beginsAgain(2)
}

func TestWhatATaskThatRunsIsNotStoppedFor(t *testing.T) {
	for name, c := range map[string]struct {
		scene   func(*testing.T) *scene
		request builders.TaskOption
		says    string
	}{
		"a resume with another mode":          {leadingOn, builders.Resume("again"), "the task is running: suspend it first"},
		"a phase that it has not been in":     {leadingOn, restart("again", v1alpha1.PhaseReview), "name one of Research, Specify"},
		"the phase of a task that leads none": {func(t *testing.T) *scene { s := running(t); s.record(v1alpha1.TriggerInterval); return s }, restart("again", ""), "only a supervisor leads"},
		"a phase while another resume is carried out": {func(t *testing.T) *scene {
			return supervising(t).change(builders.Running, builders.Resume("first")).step()
		}, restart("again", ""), "the task is running: suspend it first"},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.scene(t)
			s.knows(2).change(c.request).step()
			r := s.status().Resume
			if r == nil || r.ID != "again" || r.State != v1alpha1.OperationRefused {
				t.Fatalf("the resume is %+v, want it refused", r)
			}
			s.wantMessage(r.Message, c.says)
			if s.pod().DeletionTimestamp != nil {
				t.Error("its pod is stopped")
			}
		})
	}
}

// The agent has its time to end, and the manager what it has called by then: until the next attempt starts, the try
// that is given up makes children.
func TestAChildThatTheTryMadeWhileItWasStoppedStopsToo(t *testing.T) {
	lead := leadingOn(t)
	lead.knows(2).after(time.Minute).change(restart("again", "")).step()
	accepted := lead.now
	lead.after(20 * time.Second).podGone()
	began := lead.now
	lead.after(10 * time.Second).beginsAgain(2)
	for name, c := range map[string]struct {
		made  time.Time
		stops bool
	}{
		"before it was stopped":    {accepted.Add(-time.Minute), true},
		"while it was stopped":     {accepted.Add(5 * time.Second), true},
		"when the next one begins": {began, true},
		"by the next one":          {began.Add(15 * time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := runningChild(t)
			s.now, s.o.Task.CreationTimestamp = c.made, metav1.NewTime(c.made)
			s.after(time.Minute)
			s.o.Parent.Task.Status.Contract.Restart = lead.status().Contract.Restart
			s.step()
			if p := s.status().Parent; p.FollowedRestart != "again" || (p.StoppedBy == "again") != c.stops {
				t.Errorf("the parent is %+v, want the child stopped: %v", p, c.stops)
			}
		})
	}
}
