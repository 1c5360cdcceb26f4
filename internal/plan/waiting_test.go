package plan

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// approvalDeadline sets how long a call waits.
func approvalDeadline(seconds int32) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.CheckpointPolicy.ApprovalDeadlineSeconds = ptr.To(seconds)
	}
}

func waitsFor(d time.Duration) func(*history.ToolRequest) {
	return func(q *history.ToolRequest) { q.Deadline = q.Since.Add(d) }
}

// passesAfter expects that the deadline of a task, a call of which waits, passes after a time and not before.
func (s *scene) passesAfter(d time.Duration) {
	s.Helper()
	s.runs(d - time.Second)
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	if at := s.plans[len(s.plans)-1].RequeueAfter; at != time.Second {
		s.Errorf("the deadline is looked at again after %s, want 1s", at)
	}
	s.runs(time.Second)
	s.wantState(v1alpha1.ReasonStopping)
}

func TestAnAgentThatWorksWhileACallWaitsUsesItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scene)
		active int64
	}{
		"it does nothing":              {func(*scene) {}, 60},
		"it worked until a minute ago": {func(s *scene) { s.o.History.State.WorkedAt = s.now.Add(-time.Minute) }, 60 + 9*60},
		"it works":                     {func(s *scene) { s.o.History.State.WorkedAt = s.now }, 60 + 10*60},
		"it worked before the wait":    {func(s *scene) { s.o.History.State.WorkedAt = s.now.Add(-10*time.Minute - time.Second) }, 60},
		"a former one worked": {func(s *scene) {
			s.o.History.State.WorkedAt, s.o.History.State.Attempt = s.now, 0
		}, 60},
		"others print, and Clew notes": {func(s *scene) { s.o.History.State.ActiveAt = s.now }, 60},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t).runs(time.Minute).asks("1-a").after(10 * time.Minute)
			c.change(s)
			s.step()
			s.change(builders.Suspended).step()
			s.stopped(0)
			s.wantActive(c.active)
		})
	}
}

func TestADeadlinePassesWhileACallWaitsAndTheAgentWorks(t *testing.T) {
	s := running(t, builders.Deadline(600)).runs(time.Minute).asks("1-a").after(9*time.Minute - time.Second)
	s.o.History.State.WorkedAt = s.now
	s.step()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.after(time.Second)
	s.o.History.State.WorkedAt = s.now
	s.step()
	s.wantState(v1alpha1.ReasonStopping)
}

// A call that waits after another one was answered has waited all the time, and what the first one does
// then takes nothing of that back.
func TestWhatHasWaitedBeforeAnAnswerStaysLeftOut(t *testing.T) {
	s := running(t).runs(time.Minute).asks("1-a").asks("1-b").runs(time.Hour)
	s.decides("1-a", v1alpha1.AnswerApprove, "").waitsNoLonger("1-a").after(time.Minute)
	s.o.History.State.WorkedAt = s.now
	s.step().runs(time.Hour)
	s.decides("1-b", v1alpha1.AnswerApprove, "").waitsNoLonger("1-b")
	if got := s.lastAttempt(); got.WaitedSeconds != 2*3600 || got.UnansweredSeconds != 0 {
		t.Errorf("it has waited for %d seconds, %d of them without an answer", got.WaitedSeconds, got.UnansweredSeconds)
	}
}

func TestWithoutAnAnswerNoMoreIsLeftOutThanOneCallMayWait(t *testing.T) {
	s := running(t, builders.Deadline(3600), approvalDeadline(600)).asks("1-a", waitsFor(10*time.Minute)).runs(10 * time.Minute)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, v1alpha1.EventToolDenied)
	s.waitsNoLonger("1-a").asks("1-b")
	s.passesAfter(time.Hour)
}

func TestAPersonsAnswerMakesRoomForOtherWaits(t *testing.T) {
	s := running(t, builders.Deadline(3600), approvalDeadline(600)).asks("1-a", waitsFor(10*time.Minute)).runs(10 * time.Minute)
	s.waitsNoLonger("1-a").asks("1-b").runs(30 * time.Minute)
	s.decides("1-b", v1alpha1.AnswerDeny, "").waitsNoLonger("1-b").asks("1-c")
	s.passesAfter(40 * time.Minute)
}

// A manager that was away learns of the call and of its answer at once.
func TestAWaitThatIsAnsweredWhenItIsFirstSeenDoesNotCount(t *testing.T) {
	s := running(t, builders.Deadline(600)).runs(time.Minute).after(time.Hour)
	s.asks("1-a", func(q *history.ToolRequest) {
		q.Since, q.Deadline = s.now.Add(-time.Hour), s.now
	})
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, v1alpha1.EventToolDenied)
	if got := s.lastAttempt().WaitedSeconds; got != 3600 {
		t.Errorf("it has waited for %d seconds", got)
	}
	s.wantState(v1alpha1.ReasonRunning)
}

// An agent that is resumed by another one, or fails and is tried again, has no more time for that.
func TestTheWaitsOfAllAttemptsAreLeftOutTogether(t *testing.T) {
	for name, c := range map[string]struct {
		by   string
		left time.Duration
	}{
		"when an agent resumes it": {"task:lead", 4 * time.Hour},
		"when a person resumes it": {"ada", 20 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.Stamped = true
			s.asks("1-a").runs(20 * time.Hour)
			s.record(v1alpha1.TriggerCompletion)
			s.agentExits(0)
			s.podFinishes()
			s.wantState(v1alpha1.ReasonCompleted)
			s.o.History.State.Requests = nil
			s.change(resumedWith("more", "Go on."), func(t *v1alpha1.Task) { t.Spec.RequestedBy = &v1alpha1.TaskRequesters{Resume: c.by} }).step()
			s.prepared(daemonapi.PrepareResult{Operation: "more"})
			s.agentRuns()
			s.asks("2-a").runs(20 * time.Hour)
			if got := time.Duration(s.lastAttempt().WaitedSeconds)*time.Second + s.idleNow(); got != c.left {
				t.Errorf("%s of the second attempt are left out, want %s", got, c.left)
			}
		})
	}
}

// idleNow returns for how long the calls that wait now have done so without counting.
func (s *scene) idleNow() time.Duration {
	d := newDecision(s.o, s.now)
	return d.idle(d.active(), s.now)
}
