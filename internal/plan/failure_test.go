package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// agentFails ends the newest attempt with what the daemon reported about its agent.
func (s *scene) agentFails(end history.AgentEnd) {
	s.Helper()
	end.Attempt = s.lastAttempt().Number
	s.o.History.State.AgentEnd = &end
	s.agentExits(1)
	s.podFinishes()
}

// nextAttempt waits for the next attempt and starts its agent.
func (s *scene) nextAttempt() *scene {
	s.Helper()
	before := s.lastAttempt().Number
	s.after(s.plans[len(s.plans)-1].RequeueAfter).step()
	if s.lastAttempt().Number != before+1 {
		s.Fatalf("no attempt follows attempt %d: %+v", before, s.wantCondition(v1alpha1.TaskSucceeded))
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	return s
}

func TestTheCauseOfAFailureDecides(t *testing.T) {
	for _, tt := range []struct {
		cause  agent.Cause
		reason string
		// failures is how many are counted; waits is true if another attempt follows.
		failures int32
		waits    bool
		says     string
	}{
		{agent.CauseUnknown, v1alpha1.ReasonRetrying, 1, true, "the agent exited with code 1: its words"},
		{agent.CauseModelUnavailable, v1alpha1.ReasonRetrying, 1, true, "the model's API fails or cannot be reached: its words"},
		{agent.CauseSessionUnknown, v1alpha1.ReasonRetrying, 1, true, "the agent does not have its session: its words"},
		{agent.CauseIdle, v1alpha1.ReasonRetrying, 1, true, "its words"},
		{agent.CauseRateLimited, v1alpha1.ReasonAgentRateLimited, 0, true, "the model's API asks for a pause: its words"},
		{agent.CauseUnauthorized, v1alpha1.ReasonAgentUnauthorized, 1, false, "does not accept the agent's credentials: its words"},
		{agent.CauseOutOfCredit, v1alpha1.ReasonAgentOutOfCredit, 1, false, "has no credit or quota left: its words"},
		{agent.CauseInvalidOptions, v1alpha1.ReasonAgentOptionsInvalid, 1, false, "does not accept its arguments: its words"},
		{agent.CauseGaveUp, v1alpha1.ReasonAgentFailed, 1, false, "the agent gave up: its words"},
		{agent.CauseTooOld, v1alpha1.ReasonAgentTooOld, 1, false, "its words"},
		{agent.CauseProgramNotFound, v1alpha1.ReasonProgramNotFound, 1, false, `its words: check the command of the container "agent", and its image`},
		{agent.CauseProgramNotExecutable, v1alpha1.ReasonProgramNotExecutable, 1, false, `its words: check the command of the container "agent", and its image`},
		{"OfALaterDaemon", v1alpha1.ReasonRetrying, 1, true, "its words"},
	} {
		t.Run(string(tt.cause), func(t *testing.T) {
			s := running(t, builders.BackoffLimit(2))
			s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(tt.cause), Message: "its words"})
			s.wantState(tt.reason)
			c := s.wantCondition(v1alpha1.TaskSucceeded)
			if waits := c.Status == metav1.ConditionUnknown; waits != tt.waits || !strings.Contains(c.Message, tt.says) {
				t.Errorf("the condition is %+v", c)
			}
			if got := s.status().Failures; got != tt.failures {
				t.Errorf("%d failures are counted, want %d", got, tt.failures)
			}
			if a := s.lastAttempt(); a.Reason != tt.reason || a.Outcome != v1alpha1.AttemptAgentFailed {
				t.Errorf("the attempt ended %s, %s; want %s, %s", a.Outcome, a.Reason, v1alpha1.AttemptAgentFailed, tt.reason)
			}
			s.after(24 * time.Hour).step()
			if started := s.started() != nil; started != tt.waits {
				t.Errorf("a day later another attempt was started: %v", started)
			}
		})
	}
}

// A program that the container runtime does not find will not exist next time either. An
// agent's own exit code and last output prove nothing.
func TestAProgramThatTheRuntimeDoesNotFindIsNotRetried(t *testing.T) {
	const missing = `failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container process: ` +
		`error during container init: exec: "no-such": executable file not found in $PATH`
	for name, c := range map[string]struct {
		container string
		end       corev1.ContainerStateTerminated
		reason    string
	}{
		"the agent's":                {"agent", corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: missing}, v1alpha1.ReasonProgramNotFound},
		"an init container's":        {"fetch", corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: missing}, v1alpha1.ReasonProgramNotFound},
		"by its path":                {"fetch", corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: `runc create failed: exec: "/no/such": stat /no/such: no such file or directory`}, v1alpha1.ReasonProgramNotFound},
		"by Docker's word":           {"fetch", corev1.ContainerStateTerminated{Reason: "ContainerCannotRun", ExitCode: 127, Message: missing}, v1alpha1.ReasonProgramNotFound},
		"one that is not executable": {"fetch", corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: `runc create failed: exec: "/etc/passwd": permission denied`}, v1alpha1.ReasonProgramNotExecutable},
		"another start that failed":  {"fetch", corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: "cgroup: no such file or directory"}, v1alpha1.ReasonRetrying},
		"the agent's own words":      {"agent", corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 127, Message: missing}, v1alpha1.ReasonRetrying},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			if c.container != v1alpha1.AgentContainer {
				s.pod().Status.ContainerStatuses = nil
				s.pod().Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: c.container, State: corev1.ContainerState{Terminated: &c.end}}}
			} else {
				s.setContainer(c.container, corev1.ContainerState{Terminated: &c.end})
			}
			s.podFinishes()
			s.wantState(c.reason)
			stopped := c.reason != v1alpha1.ReasonRetrying
			if s.after(24 * time.Hour).step(); (s.started() == nil) != stopped {
				t.Errorf("a day later the condition is %+v", s.wantCondition(v1alpha1.TaskSucceeded))
			}
			if failed := slices.ContainsFunc(s.status().History, func(e v1alpha1.HistoryEntry) bool {
				return e.Reason == v1alpha1.EventTaskFailed && strings.Contains(e.Message, c.container) && strings.Contains(e.Message, "image")
			}); failed != stopped {
				t.Errorf("status.history is %+v", s.status().History)
			}
		})
	}
}

// What the daemon reported about another attempt's agent says nothing about this one.
func TestTheEndOfAnotherAttemptsAgentIsNotThisOnes(t *testing.T) {
	s := running(t)
	s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 7, Cause: string(agent.CauseUnauthorized), Message: "no"}
	s.agentExits(1)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonRetrying)
}

// The history store has the cause of a failure: while it is down, the decision waits for
// it, but not for long.
func TestTheCauseOfAFailureIsWaitedFor(t *testing.T) {
	s := running(t)
	s.o.History.Known = false
	s.agentExits(1)
	s.podFinishes()
	if a := s.lastAttempt(); a.Outcome != "" {
		t.Fatalf("the attempt ended at once: %+v", a)
	}
	s.after(s.o.Limits.RecordWait).step()
	if a := s.lastAttempt(); a.Outcome != v1alpha1.AttemptAgentFailed || a.Reason != v1alpha1.ReasonRetrying {
		t.Errorf("the attempt is %+v", a)
	}
}

func TestTheRetryStartsWhenTheAPISays(t *testing.T) {
	s := running(t, builders.BackoffLimit(0))
	s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited), Message: "slow down", RetryAfter: 5 * time.Hour})
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonAgentRateLimited, "attempt 2 follows at 2026-01-02T08:04:05Z")
	if s.after(5*time.Hour - time.Second).step(); s.started() != nil {
		t.Error("the next attempt starts too early")
	}
	if s.after(time.Second).step(); s.started() == nil {
		t.Error("no attempt starts when it should")
	}
}

func TestPausesGrowWithRateLimitsInARow(t *testing.T) {
	s := running(t)
	var pauses []time.Duration
	for range 8 {
		s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited)})
		pauses = append(pauses, s.plans[len(s.plans)-1].RequeueAfter)
		s.nextAttempt()
	}
	want := []time.Duration{s.o.Limits.RetryBase, 2 * s.o.Limits.RetryBase, s.o.Limits.RetryCap}
	if diff := cmp.Diff(want, []time.Duration{pauses[0], pauses[1], pauses[7]}); diff != "" {
		t.Errorf("first, second and last pause (-want +got):\n%s", diff)
	}
}

// A key without any quota answers every attempt with a rate limit. What an agent says that it has called
// shows no progress.
func TestRateLimitsThatDoNotEndCountAsFailures(t *testing.T) {
	s := running(t, builders.BackoffLimit(2))
	s.record(v1alpha1.TriggerManual)
	s.o.History.State.Latest.Tree = "t1"
	begin := s.now
	limited := history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited), Message: "slow down", RetryAfter: time.Hour}
	for s.agentFails(limited); s.wantCondition(v1alpha1.TaskSucceeded).Status == metav1.ConditionUnknown; s.agentFails(limited) {
		s.o.History.State.Totals.ToolCalls++
		s.o.History.State.Latest.Number++ // a checkpoint of the same files
		if s.nextAttempt(); s.now.Sub(begin) > 48*time.Hour {
			t.Fatal("the attempts do not end")
		}
	}
	if took := s.now.Sub(begin); took != s.o.Limits.RateLimitPatience+2*time.Hour {
		t.Errorf("the task failed after %s", took)
	}
	s.wantState(v1alpha1.ReasonBackoffLimit)
	if m := s.lastAttempt().Message; !strings.Contains(m, "since 2026-01-02T03:04:05Z") || !strings.Contains(m, "slow down") {
		t.Errorf("the message is %s", m)
	}

	// A resume restarts the count.
	s.change(builders.Resume("again")).step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.agentFails(limited)
	s.wantState(v1alpha1.ReasonAgentRateLimited)
}

// An agent that makes progress between rate limits has not failed.
func TestRateLimitsOfAnAgentThatMakesProgressDoNotCount(t *testing.T) {
	s := running(t, builders.BackoffLimit(0))
	for i := range 30 {
		s.record(v1alpha1.TriggerFailure)
		s.o.History.State.Latest.Tree = fmt.Sprint("t", i)
		s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited), RetryAfter: 2 * time.Hour})
		s.wantState(v1alpha1.ReasonAgentRateLimited)
		s.nextAttempt()
	}
	if s.status().Failures != 0 {
		t.Errorf("%d failures are counted", s.status().Failures)
	}
}
