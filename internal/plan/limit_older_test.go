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

// The status may have been restored from an older copy, and what the agent has used since must neither
// be given back nor grow.

// older returns a task whose status is five minutes old by its first attempt, which ended after ten; and
// whose second attempt has run for ten minutes hours later, as the history says.
func older(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := running(t, options...)
	began := s.now
	s.after(5 * time.Minute).change().step()
	s.o.Task.Status.Attempts[0].AgentSeenTime = ptr.To(metav1.NewTime(s.now))
	s.o.History.State = history.TaskState{
		Attempt: 2, ActiveAt: began.Add(8*time.Hour + 10*time.Minute),
		AgentAttempt: 2, AgentSince: began.Add(8 * time.Hour), ActiveSeconds: 1200,
	}
	s.o.Attempts = Attempts{Known: true, Highest: 2}
	return s.managerRestarts().after(9 * time.Hour)
}

func TestTheTimeBetweenAttemptsThatTheStatusDoesNotListIsNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*scene)
		want    int64
	}{
		"its pod is gone": {func(s *scene) { s.podGone() }, 1200},
		"its pod seems to run, as before": {func(s *scene) {
			s.change(builders.BackoffLimit(9)).step() // a write, which notes until when the agent was seen
			s.podGone()
		}, 1200},
		"the history was told of none": {func(s *scene) {
			s.o.History.State.ActiveSeconds = 0
			s.podGone()
		}, 300},
		"the second attempt's end is known": {func(s *scene) {
			s.o.History.State.ActiveSeconds = 0
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 1}
			s.podGone()
		}, 300 + 600},
	} {
		t.Run(name, func(t *testing.T) {
			s := older(t)
			c.happens(s)
			s.wantActive(c.want)
		})
	}
}

func TestWhatTheHistoryWasToldOfIsNotGivenBack(t *testing.T) {
	s := older(t, builders.Deadline(1200))
	s.podGone()
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	s.wantActive(1200)
	s.resumed("on", builders.Deadline(1260)).runs(59 * time.Second).wantRunning()
	s.runs(time.Second).stopped(0)
	s.wantActive(1260)
}

// It began and ended while no manager ran.
func TestAnAttemptThatNobodySawRunsFromItsFirstOutputOn(t *testing.T) {
	s := newScene(t)
	s.o.Task.CreationTimestamp = metav1.NewTime(s.now)
	s.step()
	s.o.History.State = history.TaskState{Attempt: 1, AgentAttempt: 1, AgentSince: s.now.Add(time.Minute), ActiveAt: s.now.Add(3 * time.Minute)}
	s.managerRestarts().after(time.Hour).podGone()
	s.wantActive(120)
}

// What a former task has used is that task's.
func TestATaskThatAdoptsAHistoryDoesNotCountItsAttempts(t *testing.T) {
	s := newScene(t)
	s.o.Task.CreationTimestamp = metav1.NewTime(s.now)
	s.o.History.State = history.TaskState{
		Attempt: 4, AgentAttempt: 4, AgentSince: s.now.Add(-time.Hour), ActiveAt: s.now.Add(-time.Minute),
		AgentEnd: &history.AgentEnd{Attempt: 4, ExitCode: 1},
	}
	s.step()
	if len(s.status().Attempts) == 0 {
		t.Fatal("the former task's attempt is not listed")
	}
	s.wantActive(0)
}

func TestTheTimeOfASilentAgentIsNotedIfItIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		options []builders.TaskOption
		noted   bool
	}{
		"with a deadline": {[]builders.TaskOption{builders.Deadline(3600)}, true},
		"without one":     {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, c.options...)
			every := s.o.Limits.ActivityEvery
			writes := s.writes
			if s.after(every - time.Second).step(); s.writes != writes {
				t.Errorf("%d writes before it is time", s.writes-writes)
			}
			s.after(time.Second).step()
			if noted := s.writes == writes+1; noted != c.noted {
				t.Errorf("%d writes when it is time, want one: %t", s.writes-writes, c.noted)
			}
			if !c.noted {
				return
			}
			if after := s.plans[len(s.plans)-1].RequeueAfter; after != every {
				t.Errorf("the next one follows after %s", after)
			}
			s.after(time.Minute).podGone()
			s.wantActive(int64(every / time.Second))
		})
	}
}
