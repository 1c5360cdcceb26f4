package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

func (s *scene) problem(reason, message string) *scene {
	s.Helper()
	s.o.History.State.Attempt, s.o.History.State.Problem = 1, nil
	if reason != "" {
		s.o.History.State.Problem = &history.Problem{Reason: reason, Message: message}
	}
	return s.after(time.Second).step()
}

func (s *scene) hindered() (n int) {
	for _, e := range s.status().History {
		if e.Reason == v1alpha1.EventTaskHindered {
			n++
		}
	}
	return n
}

func TestAProblemOfTheDaemonShowsUntilItIsSolved(t *testing.T) {
	s := running(t)
	before := s.writes
	s.problem(v1alpha1.ReasonVolumeFull, "enlarge\x1bit")
	s.wantState(v1alpha1.ReasonVolumeFull)
	c := s.wantCondition(v1alpha1.TaskSucceeded)
	if c.Status != metav1.ConditionUnknown {
		t.Errorf("Succeeded is %s, want Unknown", c.Status)
	}
	if !strings.HasPrefix(c.Message, "enlarge") || strings.ContainsRune(c.Message, '\x1b') {
		t.Errorf("the message is %q, want that of the daemon without control characters", c.Message)
	}
	s.after(time.Minute).step()
	s.o.History = History{} // an outage of the history store
	s.after(time.Minute).step()
	s.wantState(v1alpha1.ReasonVolumeFull)
	if s.writes != before+1 || s.hindered() != 1 {
		t.Errorf("%d writes, and reported %d times", s.writes-before, s.hindered())
	}
	s.o.History.Known = true
	s.problem("", "")
	s.wantState(v1alpha1.ReasonRunning)
	if s.problem(v1alpha1.ReasonVolumeFull, "again"); s.hindered() != 2 {
		t.Errorf("the problem was reported %d times", s.hindered())
	}
}

// A pod may report another text as often as the history store lets it.
func TestAnotherTextAboutAProblemIsToldAtIntervals(t *testing.T) {
	s := running(t)
	s.problem(v1alpha1.ReasonVolumeFull, "file 0")
	before := s.writes
	for n := range 9 {
		s.o.History.State.Problem = &history.Problem{Reason: v1alpha1.ReasonVolumeFull, Message: fmt.Sprintf("file %d", n+1)}
		s.after(100 * time.Millisecond).step()
	}
	if wait := s.plans[0].RequeueAfter; s.writes != before || wait <= 0 || wait > s.o.Limits.RefreshEvery {
		t.Errorf("%d writes, and it looks again after %s", s.writes-before, wait)
	}
	s.after(s.o.Limits.RefreshEvery).step()
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Message != "file 9" || s.writes != before+1 {
		t.Errorf("after %d writes, the message is %q", s.writes-before, c.Message)
	}
}

func TestAProblemUnknownToThisManagerIsReportedOnce(t *testing.T) {
	s := running(t)
	s.problem("SomethingNew", "from a newer daemon")
	s.wantState("SomethingNew")
	if s.after(time.Minute).step(); s.hindered() != 1 {
		t.Errorf("the problem was reported %d times", s.hindered())
	}
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Status != metav1.ConditionUnknown {
		t.Errorf("the condition is %+v", c)
	}
}

func TestAProblemOfAnAttemptThatEndedIsNone(t *testing.T) {
	s := running(t)
	s.problem(v1alpha1.ReasonCheckpointFailed, "too many files")
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.wantState(v1alpha1.ReasonCompleted)
}

func TestAProblemOfPrepareIsReportedInsteadOfPreparing(t *testing.T) {
	s := newScene(t)
	s.step()
	s.problem(v1alpha1.ReasonRepositoryUnreachable, "could not resolve host: git.invalid; retrying")
	s.wantState(v1alpha1.ReasonRepositoryUnreachable)
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "git.invalid") {
		t.Errorf("the condition is %+v", c)
	}
	s.problem("", "")
	s.wantState(v1alpha1.ReasonPreparing)
}

// The kubelet keeps trying, and the oldest transitions leave the status.
func TestAPodsProblemIsReportedOncePerAttempt(t *testing.T) {
	s := newScene(t)
	s.step()
	reported := 0
	pulls := func(reason string) {
		s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}})
		s.after(time.Minute).step()
		for _, p := range s.plans {
			reported += len(p.Entries)
		}
	}
	pulls("ImagePullBackOff")
	s.wantState(v1alpha1.ReasonImageUnavailable)
	pulls("ContainerCreating")
	for range keepEntries + 10 {
		s.problem(v1alpha1.ReasonRepositoryUnreachable, "retrying").problem("", "")
		s.recorded()
	}
	pulls("ImagePullBackOff")
	s.wantState(v1alpha1.ReasonImageUnavailable)
	if reported != 1 {
		t.Errorf("the problem was reported %d times", reported)
	}
	if got := s.lastAttempt().Hindrances; !slices.Equal(got, []string{v1alpha1.ReasonImageUnavailable}) {
		t.Errorf("the reasons are %q", got)
	}
}
