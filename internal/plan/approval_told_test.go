package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// An answer is good for one agent, also for one whose pod nobody has seen.
func TestAnAnswerIsToldToOneAgent(t *testing.T) {
	answered := func(t *testing.T) *scene {
		return running(t).asks("1-a", stopsAgent).agentIsStopped()
	}
	told := func(s *scene) {
		s.o.History.State.Attempt, s.o.History.State.AgentAttempt, s.o.History.State.AgentSince = 2, 2, s.now
	}
	wantAnswers := func(s *scene, attempt int64, n int) {
		s.Helper()
		if pod := s.wantStarted(attempt); len(pod.Answers) != n {
			s.Errorf("the pod of attempt %d is told %+v", attempt, pod.Answers)
		}
	}
	t.Run("whose pod went while no manager ran", func(t *testing.T) {
		s := answered(t).decides("1-a", v1alpha1.AnswerApprove, "")
		wantAnswers(s, 2, 1)
		told(s)
		s.managerRestarts().after(time.Minute).podGone()
		wantAnswers(s, 3, 0)
	})
	t.Run("whose agent had not begun", func(t *testing.T) {
		s := answered(t).decides("1-a", v1alpha1.AnswerApprove, "")
		wantAnswers(s, 2, 1)
		s.managerRestarts().after(time.Minute).podGone()
		wantAnswers(s, 3, 1)
	})
	t.Run("which only the history knows of", func(t *testing.T) {
		s := answered(t).decides("1-a", v1alpha1.AnswerApprove, "")
		wantAnswers(s, 2, 1)
		s.managerRestarts().after(time.Minute).o.History.Known = false
		s.o.Attempts = Attempts{Known: true, Highest: 2}
		s.podGone()
		s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonPending, "whether an agent was told")
		s.o.History.Known = true
		told(s)
		s.after(time.Minute).step()
		wantAnswers(s, 3, 0)
	})
	t.Run("after which the status was put back", func(t *testing.T) {
		s := answered(t)
		told(s)
		s.managerRestarts().after(time.Minute).step()
		wantAnswers(s, 3, 0)
		if s.status().Requests != nil {
			t.Errorf("the status still waits for %+v", s.status().Requests)
		}
	})
}

// Nothing waits for an answer to a call that a resume takes back, and the agent hears nothing of it.
func TestAResumeThatGoesBackTakesACallBack(t *testing.T) {
	for name, mode := range map[string]builders.TaskOption{
		"to a checkpoint": fromNumber(1),
		"to the start":    func(t *v1alpha1.Task) { t.Spec.Resume.Mode = v1alpha1.ResumeClean },
	} {
		for state, answered := range map[string]bool{"open": false, "answered": true} {
			t.Run(name+", "+state, func(t *testing.T) {
				s := running(t)
				s.record(v1alpha1.TriggerInterval)
				s.step()
				s.asks("1-a", stopsAgent).agentIsStopped().change(builders.Suspended).step()
				withdrawn := 1
				if answered {
					withdrawn = 0
					s.decides("1-a", v1alpha1.AnswerDeny, "not that way")
				}
				s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
				s.after(time.Minute).change(builders.Running, builders.Resume("anew"), mode).step()
				if pod := s.wantStarted(2); pod.Answers != nil || pod.Prompt != "" {
					t.Errorf("the pod is told %+v, and its prompt is %q", pod.Answers, pod.Prompt)
				}
				if s.status().Requests != nil {
					t.Errorf("the status still lists %+v", s.status().Requests)
				}
				if n := len(s.entries(v1alpha1.EventRequestWithdrawn)); n != withdrawn {
					t.Errorf("%d requests are withdrawn, want %d", n, withdrawn)
				}
			})
		}
	}
}

// A resume that goes on from where the task is leaves the call where it was.
func TestAResumeThatGoesOnWaitsForTheAnswer(t *testing.T) {
	s := running(t).asks("1-a", stopsAgent).agentIsStopped()
	s.change(builders.Suspended).step()
	s.change(builders.Running, builders.Resume("on")).step()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.decides("1-a", v1alpha1.AnswerApprove, "")
	if pod := s.wantStarted(2); len(pod.Answers) != 1 {
		t.Errorf("the pod is told %+v", pod.Answers)
	}
}

// stopsAtPushes has an agent stopped at its pushes, about which a person is asked.
func stopsAtPushes(t *v1alpha1.Task) {
	t.Spec.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{{Tool: "^Bash$", Input: "git push", Action: v1alpha1.RiskyToolAsk}}
}

// That an agent was stopped is no failure. Only the history knows it, and may be away for longer than
// anybody waits for the cause of a failure.
func TestAnAgentThatMayHaveBeenStoppedHasNotFailedBeforeThatIsKnown(t *testing.T) {
	ended := func(t *testing.T, h History) *scene {
		s := running(t, builders.BackoffLimit(0), stopsAtPushes)
		s.o.Task.Status.RecordSequence = 9
		s.o.History = h
		s.agentExits(137)
		s.podFinishes()
		s.after(s.o.Limits.RecordWait - time.Second).step()
		if a := s.lastAttempt(); a.Outcome != "" {
			t.Fatalf("the attempt has ended: %+v", a)
		}
		s.after(time.Hour).step()
		return s
	}
	request := history.ToolRequest{ID: "1-a", Attempt: 1, Tool: "Bash", StopsAgent: true, Since: s0, Deadline: s0.Add(24 * time.Hour)}
	t.Run("while the history is away", func(t *testing.T) {
		s := ended(t, History{})
		s.wantState(v1alpha1.ReasonHistoryUnavailable)
		s.o.History = History{Known: true, State: history.TaskState{Attempt: 1, LastSequence: 9, Requests: []history.ToolRequest{request}}}
		s.step()
		s.wantState(v1alpha1.ReasonWaitingForApproval)
		if n := s.status().Failures; n != 0 {
			t.Errorf("%d failures are counted", n)
		}
	})
	t.Run("in an older copy that knows it", func(t *testing.T) {
		s := running(t, builders.BackoffLimit(0), stopsAtPushes)
		s.o.Task.Status.RecordSequence = 9
		s.o.History.State = history.TaskState{Attempt: 1, LastSequence: 3, Requests: []history.ToolRequest{request}}
		s.agentExits(137)
		s.podFinishes()
		s.after(time.Hour).step()
		s.wantState(v1alpha1.ReasonWaitingForApproval)
	})
	t.Run("in an older copy that does not", func(t *testing.T) {
		s := ended(t, History{Known: true, State: history.TaskState{Attempt: 1, LastSequence: 3}})
		s.wantOutcomes(v1alpha1.AttemptPodLost, "")
		if n := s.status().Failures; n != 0 {
			t.Errorf("%d failures are counted", n)
		}
	})
	t.Run("but without such a rule", func(t *testing.T) {
		s := running(t, builders.BackoffLimit(0))
		s.o.History = History{}
		s.agentExits(137)
		s.podFinishes()
		s.after(time.Hour).step()
		s.wantState(v1alpha1.ReasonAgentFailed)
	})
}
