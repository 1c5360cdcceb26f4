package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestALimitIsReachedWhenItIsUsedUp(t *testing.T) {
	for name, c := range map[string]struct {
		deadline *int64
		active   time.Duration
		want     string
	}{
		"no limit":      {nil, 1e6 * time.Hour, ""},
		"nothing used":  {ptr.To[int64](1), 0, ""},
		"a moment left": {ptr.To[int64](60), time.Minute - time.Millisecond, ""},
		"all used":      {ptr.To[int64](60), time.Minute, v1alpha1.ReasonDeadlineExceeded},
		"more used":     {ptr.To[int64](60), time.Hour, v1alpha1.ReasonDeadlineExceeded},
		"the longest":   {ptr.To[int64](31536000), 31536000 * time.Second, v1alpha1.ReasonDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			if got := reachedLimit(&v1alpha1.TaskSpec{DeadlineSeconds: c.deadline}, usage{active: c.active}); got != c.want {
				t.Errorf("the limit reached is %q, want %q", got, c.want)
			}
		})
	}
}

// runs lets the agent run for a time.
func (s *scene) runs(d time.Duration) *scene {
	s.Helper()
	return s.after(d).step()
}

// resumed prepares the pod that a resume has started, and starts its agent.
func (s *scene) resumed(id string, options ...builders.TaskOption) *scene {
	s.Helper()
	s.change(append(options, builders.Running, builders.Resume(id))...).step()
	return s.begins()
}

// begins prepares the pod that the last step has started, and starts its agent.
func (s *scene) begins() *scene {
	s.Helper()
	if s.started() == nil {
		s.Fatalf("no pod was started: %+v", s.wantCondition(v1alpha1.TaskSucceeded))
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	return s
}

// stopped ends the pod that is being stopped, some seconds later.
func (s *scene) stopped(grace time.Duration) *scene {
	s.Helper()
	if s.pod().DeletionTimestamp == nil {
		s.Fatalf("the pod is not being stopped: %+v", s.wantCondition(v1alpha1.TaskSucceeded))
	}
	s.pod().DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(time.Minute))) // the grace period's end
	s.after(grace).record(v1alpha1.TriggerSuspend)
	s.agentExits(143)
	s.podFinishes()
	return s
}

func (s *scene) wantActive(seconds int64) {
	s.Helper()
	if got := s.status().ActiveSeconds; got != seconds {
		s.Errorf("the agent has run for %d seconds by the status, want %d", got, seconds)
	}
}

// wantRunning fails unless the agent runs and is left alone.
func (s *scene) wantRunning() {
	s.Helper()
	s.wantState(v1alpha1.ReasonRunning)
	if s.pod().DeletionTimestamp != nil {
		s.Error("the pod is being stopped")
	}
}

// exceeded returns a task whose agent was stopped after a deadline of a minute.
func exceeded(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := running(t, append(options, builders.Deadline(60))...)
	s.runs(time.Minute).stopped(0)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	return s
}

func TestTheAgentIsStoppedWithACheckpointWhenTheDeadlinePasses(t *testing.T) {
	s := running(t, builders.Deadline(60))
	if got := s.plans[len(s.plans)-1].RequeueAfter; got != time.Minute {
		t.Errorf("the next decision is due after %s, want the deadline", got)
	}
	writes := s.writes
	s.runs(59 * time.Second).wantRunning()
	if s.writes != writes {
		t.Errorf("%d writes before the deadline", s.writes-writes)
	}
	s.runs(time.Second)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonStopping, "DeadlineExceeded")

	s.stopped(7 * time.Second)
	s.wantOutcomes(v1alpha1.AttemptLimitReached)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonDeadlineExceeded,
		"the agent has run for 67 seconds in all", "raise deadlineSeconds and resume the task")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed)
	entry := s.status().History[1]
	s.wantMessage(entry.Message, "DeadlineExceeded: ", "67 seconds")
	if state := StateAfter(s.status(), entry); state != stateFailed {
		t.Errorf("the state after it is %q", state)
	}
	s.wantActive(67)
	if s.o.Task.Spec.OperatingMode != v1alpha1.OperatingModeRunning {
		t.Error("the operating mode was changed")
	}
	s.managerRestarts().after(24 * time.Hour).step()
	if s.started() != nil {
		t.Error("it was started again")
	}
	s.wantActive(67)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed)
}

// Whichever end comes before the stop is the end.
func TestAnAgentThatEndsWhileItIsStoppedHasEnded(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(time.Minute)
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted)
}

func TestADeadlineMayBeChangedWhileTheAgentRuns(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(59 * time.Second)
	s.change(builders.Deadline(120)).runs(time.Minute).wantRunning()
	s.change(builders.Deadline(0)).runs(time.Hour).wantRunning()
	s.change(builders.Deadline(3600)).step().stopped(0)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	s.wantActive(3600 + 119)
}

// The agent of a pod that is being stopped cannot be kept.
func TestADeadlineThatIsRaisedTooLateTakesAResume(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(time.Minute)
	s.change(builders.Deadline(120)).step().stopped(time.Second)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	s.resumed("on").runs(58 * time.Second).wantRunning()
	s.runs(time.Second).wantState(v1alpha1.ReasonStopping)
}

func TestOnlyTheTimeCountsInWhichTheAgentRuns(t *testing.T) {
	s := newScene(t, builders.Deadline(1000))
	s.step()
	s.after(time.Hour).begins() // the pod waited for a node, and the workspace was prepared
	s.runs(10 * time.Second)
	s.agentExits(1)
	s.podFinishes()
	s.wantActive(10)
	s.after(time.Hour).step().begins() // a pause
	s.runs(20 * time.Second)
	s.change(builders.Suspended).step().stopped(5 * time.Second)
	s.wantActive(35)
	s.after(time.Hour).change(builders.Running).step()
	s.begins().runs(30 * time.Second)
	s.rewind("back", 1).step().stopped(0)
	s.wantActive(65)
	s.after(time.Hour).prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "back"})
	s.agentRuns()
	s.runs(934 * time.Second).wantRunning()
	s.runs(time.Second).stopped(0)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	s.wantActive(1000)
}

// A pod that is gone does not say when its agent ended, nor does one whose node is lost.
func TestTheAgentOfALostPodCountsForAsLongAsItIsKnownToHaveRun(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(*scene)
		want int64
	}{
		"the status was written": {func(s *scene) { s.change(builders.BackoffLimit(9)).runs(20 * time.Second) }, 20},
		"it was active": {func(s *scene) {
			s.o.History.State.Attempt, s.o.History.State.ActiveAt = 1, s.now.Add(30*time.Second)
		}, 30},
		"it had a checkpoint":  {func(s *scene) { s.after(40 * time.Second).record(v1alpha1.TriggerInterval) }, 40},
		"an earlier attempt's": {func(s *scene) { s.o.History.State.ActiveAt = s.now.Add(-time.Hour) }, 0},
		"it ended, by its pod": {func(s *scene) {
			s.pod().DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(50 * time.Second)))
			s.after(50 * time.Second).agentExits(137)
		}, 50},
		"its node does not answer": {func(s *scene) {
			s.pod().DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(60 * time.Second)))
			s.after(24 * time.Hour).step()
		}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			c.lose(s)
			s.managerRestarts().after(48 * time.Hour).podGone()
			s.wantOutcomes(v1alpha1.AttemptPodLost, "")
			s.wantActive(c.want)
		})
	}
}

func TestNoAttemptStartsWhenNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"after a failure": func(s *scene) {
			s.o.Task.Spec.DeadlineSeconds = nil // the manager was away when it passed
			s.runs(2 * time.Minute)
			builders.Deadline(60)(s.o.Task)
			s.agentExits(1)
			s.podFinishes()
		},
		"after a rate limit": func(s *scene) {
			s.runs(59 * time.Second).now = s.now.Add(time.Second)
			s.agentFails(history.AgentEnd{Cause: "RateLimited"})
		},
		"after a lost pod": func(s *scene) {
			s.runs(59 * time.Second).now = s.now.Add(2 * time.Second)
			s.pod().Status.Reason, s.pod().Status.Phase = "Evicted", corev1.PodFailed
			s.agentExits(143)
		},
		"after a suspension": func(s *scene) {
			s.runs(30 * time.Second).change(builders.Suspended).step().stopped(0)
			s.change(builders.Deadline(20)).step().wantState(v1alpha1.ReasonSuspended)
			s.change(builders.Running).step()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, builders.Deadline(60))
			end(s)
			s.after(24 * time.Hour).step()
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonDeadlineExceeded, "raise deadlineSeconds and resume")
			if s.started() != nil {
				t.Error("another attempt was started")
			}
			if last := s.status().History[len(s.status().History)-1]; last.Reason != v1alpha1.EventTaskFailed {
				t.Errorf("the last entry is %+v", last)
			}
			entries := s.status().HistorySequence
			s.managerRestarts().after(time.Hour).change(builders.Deadline(3600)).step() // it has failed: that takes a resume
			s.wantState(v1alpha1.ReasonDeadlineExceeded)
			if s.status().HistorySequence != entries {
				t.Error("it has failed twice")
			}
			s.resumed("on").wantRunning()
		})
	}
}

// Admission refuses that, unless the status said otherwise a moment before.
func TestAResumeIsRefusedUnlessTheDeadlineIsRaised(t *testing.T) {
	s := exceeded(t)
	s.change(builders.Resume("too-early")).step()
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	if r := s.status().Resume; r.State != v1alpha1.OperationRefused || r.Reason != v1alpha1.ReasonInvalidOperation {
		t.Errorf("the resume is %+v", r)
	}
	s.wantMessage(s.status().Resume.Message, "the agent has run for 60 seconds", "raise deadlineSeconds", "new id")
	s.resumed("on", builders.Deadline(90)).runs(29 * time.Second).wantRunning()
	s.runs(time.Second).stopped(0)
	s.wantOutcomes(v1alpha1.AttemptLimitReached, v1alpha1.AttemptLimitReached)
	s.wantActive(90)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed, v1alpha1.EventOperationRefused, v1alpha1.EventTaskResumed, v1alpha1.EventTaskFailed)
}

// A resume that has yet to be carried out waits for a higher deadline, as everything does.
func TestAResumeWhoseDeadlineIsLoweredBeforeItStartsDoesNotStart(t *testing.T) {
	s := exceeded(t)
	s.change(builders.Deadline(90), builders.Resume("on")).step()
	s.wantStarted(2)
	s.change(builders.Deadline(30)).step()
	s.podGone() // prepare was stopped
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	s.wantOutcomes(v1alpha1.AttemptLimitReached, v1alpha1.AttemptStopped)
	s.resumed("again", builders.Deadline(90)).wantRunning()
}

func TestATaskIsRewoundAfterItsDeadline(t *testing.T) {
	s := exceeded(t)
	s.rewind("back", 1).step()
	if p := s.wantStarted(2); !p.PrepareOnly {
		t.Error("the pod has an agent")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "back"})
	s.wantState(v1alpha1.ReasonRewound)
	s.wantActive(60)
	s.resumed("on", builders.Deadline(120)).wantRunning()
}

func TestARewindWaitsForTheStopAtTheDeadline(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(time.Minute)
	s.rewind("back", 1).step().stopped(0)
	if p := s.wantStarted(2); !p.PrepareOnly {
		t.Error("the pod has an agent")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "back"})
	s.wantOutcomes(v1alpha1.AttemptLimitReached, v1alpha1.AttemptRewound)
	s.wantState(v1alpha1.ReasonRewound)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed, v1alpha1.EventTaskRewound)
}

// The rewind is carried out, but its pod has no agent.
func TestARewindDuringWhichTheDeadlinePassesStartsNoAgent(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(59 * time.Second)
	s.rewind("back", 1).step().stopped(5 * time.Second)
	if p := s.wantStarted(2); !p.PrepareOnly {
		t.Error("the pod has an agent")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "back"})
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	if s.status().Rewind.State != v1alpha1.OperationCompleted {
		t.Errorf("the rewind is %+v", s.status().Rewind)
	}
}

func TestASuspensionDuringWhichTheDeadlinePassesStaysOne(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(59 * time.Second)
	s.change(builders.Suspended).step()
	s.runs(5 * time.Second).stopped(0)
	s.wantState(v1alpha1.ReasonSuspended)
	s.wantOutcomes(v1alpha1.AttemptSuspended)
	s.wantActive(64)
}

// A task that somebody suspends when it was too late has reached its limit.
func TestATaskThatIsSuspendedWhileItsDeadlineStopsItHasFailed(t *testing.T) {
	s := running(t, builders.Deadline(60)).runs(time.Minute)
	s.change(builders.Suspended).step().stopped(0)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
}

// Killed between writing why a pod is stopped and deleting it, the manager deletes it afterwards.
func TestAManagerThatIsKilledWhileItStopsAnAgentForALimitStopsItLater(t *testing.T) {
	s := running(t, builders.Deadline(60)).after(time.Minute)
	p := Decide(s.o, s.now)
	if p.StopPods == nil {
		t.Fatalf("the pod is not stopped: %+v", p)
	}
	p.StopPods = nil
	s.carryOut(p)
	s.managerRestarts().after(time.Hour).step().stopped(0)
	s.wantOutcomes(v1alpha1.AttemptLimitReached)
	s.wantActive(3660)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed)
}
