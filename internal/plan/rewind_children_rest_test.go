package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// parentRewindsToRest returns a parent that was rewound, now, to a set in which the scene's task was at rest after
// an attempt.
func (s *scene) parentRewindsToRest(attempt int64) *v1alpha1.Task {
	p := parentRewinds("back", v1alpha1.OperationCompleted)
	p.Status.SetRewind.EndTime = ptr.To(metav1.NewTime(s.now))
	p.Status.SetRewind.Children[0].Attempt, p.Status.SetRewind.Children[0].Checkpoint = attempt, 1
	return p
}

// finishedChild returns a child that has completed in its first attempt.
func finishedChild(t *testing.T) *scene {
	t.Helper()
	s := runningChild(t)
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.o.RewindRecord = recorded()
	return s
}

// wantsStay expects that the task has seen the rewind of its parent, and is not rewound by it.
func (s *scene) wantsStay() {
	s.Helper()
	if p := s.status().Parent; s.status().Rewind != nil || p == nil || p.Rewind != nil || p.FollowedRewind != "back" {
		s.Errorf("it follows: %+v, %+v", s.status().Rewind, p)
	}
}

func TestAChildThatHasBeenAtRestSinceTheSetIsThereAlready(t *testing.T) {
	s := finishedChild(t)
	s.o.Parent.Task = s.parentRewindsToRest(1)
	s.step()
	s.wantState(v1alpha1.ReasonCompleted)
	s.wantsStay()
	if endedAs(s.o.Task) == nil {
		t.Error("what it had completed is taken back")
	}
	s.wantMessage(s.lastEntry(v1alpha1.EventRewoundByParent).Message, "at rest since", "stays as it is")

	s = finishedChild(t) // the set is of a former attempt's end
	s.o.Task.Status.Attempts[0].Number = 2
	s.o.Parent.Task = s.after(time.Hour).parentRewindsToRest(1)
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
}

// The Kubernetes API was put back to a time when the task was at rest in the set; the history was not.
func TestWhetherAChildWasAtRestIsAskedOfTheHistoryToo(t *testing.T) {
	s := finishedChild(t)
	s.o.Parent.Task = s.parentRewindsToRest(1)
	known := s.o.History
	s.o.History = History{}
	s.step()
	if s.status().Parent.FollowedRewind != "" || s.plans[len(s.plans)-1].RequeueAfter == 0 {
		t.Errorf("it does not wait for the history store: %+v", s.status().Parent)
	}
	s.o.History, s.o.History.State.Attempt = known, 2
	s.step()
	s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
}

func TestAChildThatWentOnAfterItsParentWasRewoundStays(t *testing.T) {
	s := finishedChild(t)
	s.o.Parent.Task = s.parentRewindsToRest(1)
	s.after(time.Minute)
	s.o.History.State.Attempt, s.o.History.State.AgentAttempt, s.o.History.State.AgentSince = 2, 2, s.now
	s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 3, Message: "the model is away"}
	s.after(time.Minute).step() // the status was put back to before it had seen the rewind
	s.wantOutcomes(v1alpha1.AttemptCompleted, v1alpha1.AttemptAgentFailed)
	s.wantsStay()
}

// madeAnew returns a task that was applied again, with adopt: Latest, and continues the member of a set, which had
// completed a later attempt.
func madeAnew(t *testing.T) *scene {
	t.Helper()
	s := newScene(t, adopting, childOf("lead"), builders.WithUID("uid-anew")).adoptedFrom("uid-of-task", v1alpha1.TriggerCompletion)
	s.o.Contract.Room, s.o.Parent.Room = true, true
	s.o.RewindRecord = recorded()
	s.o.Task.CreationTimestamp = metav1.NewTime(s.now)
	return s
}

func TestAChildThatWasMadeSinceDoesNotFollowARewindOfItsParent(t *testing.T) {
	for name, c := range map[string]struct {
		rewound time.Duration
		follows bool
	}{
		"it was made after the rewind":  {-time.Hour, false},
		"it was made before the rewind": {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := madeAnew(t)
			made := s.now
			s.o.Parent.Task = s.after(c.rewound).parentRewindsToRest(2)
			s.now = made
			s.step()
			s.wantState(v1alpha1.ReasonCompleted)
			s.after(2 * time.Hour).change(resumedWith("on", "Add an index.")).step()
			s.step()
			if !c.follows {
				s.wantsStay()
				s.wantOperation(s.status().Resume, "on", v1alpha1.OperationInProgress, "")
				return
			}
			s.wantOperation(s.status().Rewind, "parent-back", v1alpha1.OperationInProgress, "")
		})
	}
}
