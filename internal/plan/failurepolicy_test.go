package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func onCodes(codes ...int32) *v1alpha1.FailureMatcher {
	return &v1alpha1.FailureMatcher{ExitCodes: codes}
}

func onReasons(reasons ...v1alpha1.AgentFailureReason) *v1alpha1.FailureMatcher {
	return &v1alpha1.FailureMatcher{Reasons: reasons}
}

// The agent exits with code 1.
func TestRetryOnAndFailOnDecideAboutTheEndOfAnAgent(t *testing.T) {
	for name, c := range map[string]struct {
		retryOn, failOn *v1alpha1.FailureMatcher
		cause           agent.Cause
		// reason is that of the attempt.
		reason  string
		retried bool
		says    string
	}{
		"an exit code fails":                      {nil, onCodes(2, 1), "", v1alpha1.ReasonAgentFailed, false, "it is not retried, since failOn has the exit code 1: the agent exited with code 1: its words"},
		"another exit code does not":              {nil, onCodes(2), "", v1alpha1.ReasonRetrying, true, "the agent exited with code 1: its words"},
		"any failure fails":                       {nil, onReasons("AgentFailed"), "", v1alpha1.ReasonAgentFailed, false, "since failOn has AgentFailed: "},
		"any failure is none with a reason":       {nil, onReasons("AgentFailed"), agent.CauseModelUnavailable, v1alpha1.ReasonRetrying, true, "fails or cannot be reached"},
		"errors of the model fail":                {nil, onReasons("ModelErrors"), agent.CauseModelUnavailable, v1alpha1.ReasonAgentFailed, false, "since failOn has ModelErrors: "},
		"a rate limit fails":                      {nil, onReasons("AgentRateLimited"), agent.CauseRateLimited, v1alpha1.ReasonAgentFailed, false, "since failOn has AgentRateLimited: "},
		"no credentials fail as ever":             {nil, onReasons("AgentUnauthorized"), agent.CauseUnauthorized, v1alpha1.ReasonAgentUnauthorized, false, "since failOn has AgentUnauthorized: "},
		"no credentials are retried":              {onReasons("AgentUnauthorized"), nil, agent.CauseUnauthorized, v1alpha1.ReasonRetrying, true, "it counts towards backoffLimit, since retryOn has AgentUnauthorized: "},
		"no credit is retried":                    {onReasons("AgentOutOfCredit"), nil, agent.CauseOutOfCredit, v1alpha1.ReasonRetrying, true, "since retryOn has AgentOutOfCredit: "},
		"bad options are retried":                 {onReasons("AgentOptionsInvalid"), nil, agent.CauseInvalidOptions, v1alpha1.ReasonRetrying, true, "since retryOn has AgentOptionsInvalid: "},
		"an old program is retried":               {onReasons("AgentTooOld"), nil, agent.CauseTooOld, v1alpha1.ReasonRetrying, true, "since retryOn has AgentTooOld: "},
		"one that is not there is retried":        {onReasons("ProgramNotFound"), nil, agent.CauseProgramNotFound, v1alpha1.ReasonRetrying, true, "since retryOn has ProgramNotFound: "},
		"one that cannot run is retried":          {onReasons("ProgramNotExecutable"), nil, agent.CauseProgramNotExecutable, v1alpha1.ReasonRetrying, true, "since retryOn has ProgramNotExecutable: "},
		"one that gave up is retried":             {onReasons("AgentFailed"), nil, agent.CauseGaveUp, v1alpha1.ReasonRetrying, true, "since retryOn has AgentFailed: "},
		"a rate limit is counted":                 {onReasons("AgentRateLimited"), nil, agent.CauseRateLimited, v1alpha1.ReasonRetrying, true, "since retryOn has AgentRateLimited: "},
		"an exit code is retried":                 {onCodes(1), nil, agent.CauseOutOfCredit, v1alpha1.ReasonRetrying, true, "since retryOn has the exit code 1: "},
		"a reason is stronger than an exit code":  {onReasons("AgentOutOfCredit"), onCodes(1), agent.CauseOutOfCredit, v1alpha1.ReasonRetrying, true, "since retryOn has AgentOutOfCredit: "},
		"and so is one that fails":                {onCodes(1), onReasons("AgentRateLimited"), agent.CauseRateLimited, v1alpha1.ReasonAgentFailed, false, "since failOn has AgentRateLimited: "},
		"an exit code is stronger than no reason": {onCodes(1), onReasons("AgentFailed"), "", v1alpha1.ReasonRetrying, true, "since retryOn has the exit code 1: "},
		"and so is one of those that fail":        {onReasons("AgentFailed"), onCodes(1), "", v1alpha1.ReasonAgentFailed, false, "since failOn has the exit code 1: "},
		"another reason leaves it as it is":       {onReasons("AgentUnauthorized"), onReasons("AgentRateLimited"), agent.CauseOutOfCredit, v1alpha1.ReasonAgentOutOfCredit, false, "no credit or quota left: its words"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, func(t *v1alpha1.Task) { t.Spec.RetryOn, t.Spec.FailOn = c.retryOn, c.failOn })
			s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(c.cause), Message: "its words"})
			status := metav1.ConditionFalse
			if c.retried {
				status = metav1.ConditionUnknown
			}
			s.wantStatus(v1alpha1.TaskSucceeded, status, c.reason, c.says)
			if a := s.lastAttempt(); a.Outcome != v1alpha1.AttemptAgentFailed || a.Reason != c.reason {
				t.Errorf("the attempt ended %s, %s; want %s", a.Outcome, a.Reason, c.reason)
			}
			if s.status().Failures != 1 {
				t.Errorf("%d failures are counted", s.status().Failures)
			}
			if s.after(24 * time.Hour).step(); (s.started() != nil) != c.retried {
				t.Errorf("a day later another attempt was started: %v", s.started() != nil)
			}
		})
	}
}

func TestRetryOnRetriesUpToTheBackoffLimit(t *testing.T) {
	s := running(t, builders.BackoffLimit(1), func(t *v1alpha1.Task) { t.Spec.RetryOn = onReasons("AgentOutOfCredit") })
	end := history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseOutOfCredit), Message: "pay"}
	s.agentFails(end)
	s.nextAttempt()
	s.agentFails(end)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonBackoffLimit, "since retryOn has AgentOutOfCredit", "pay")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskRetried, v1alpha1.EventTaskFailed)

	s = running(t, builders.BackoffLimit(0), func(t *v1alpha1.Task) { t.Spec.RetryOn = onReasons("AgentOutOfCredit") })
	s.agentFails(end)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
}

func TestEveryRetryRespectsThePauseThatTheAPIAskedFor(t *testing.T) {
	for _, cause := range []agent.Cause{agent.CauseOutOfCredit, agent.CauseUnauthorized, agent.CauseModelUnavailable, agent.CauseRateLimited} {
		t.Run(string(cause), func(t *testing.T) {
			s := running(t, func(t *v1alpha1.Task) {
				t.Spec.RetryOn = onReasons("AgentOutOfCredit", "AgentUnauthorized", "AgentRateLimited")
			})
			s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(cause), RetryAfter: 2 * time.Hour})
			if s.after(2*time.Hour - time.Second).step(); s.started() != nil {
				t.Error("the next attempt starts too early")
			}
			if s.after(time.Second).step(); s.started() == nil {
				t.Error("no attempt starts when it should")
			}
		})
	}
}

// What they say when an agent ends counts, and nothing that ended before.
func TestRetryOnAndFailOnApplyToTheNextEnd(t *testing.T) {
	s := running(t)
	s.agentExits(3)
	s.podFinishes()
	s.change(func(t *v1alpha1.Task) { t.Spec.FailOn = onCodes(3) })
	s.nextAttempt()
	s.agentExits(3)
	s.wantState(v1alpha1.ReasonAgentFailed)
	s.change(func(t *v1alpha1.Task) { t.Spec.FailOn = nil }).after(time.Hour).step()
	s.wantState(v1alpha1.ReasonAgentFailed)
}

func TestRetryOnAndFailOnApplyToAProgramThatTheRuntimeDoesNotFind(t *testing.T) {
	missing := corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: `exec: "no-such": executable file not found in $PATH`}
	for name, c := range map[string]struct {
		container string
		change    builders.TaskOption
		reason    string
	}{
		"retried":              {"agent", func(t *v1alpha1.Task) { t.Spec.RetryOn = onReasons("ProgramNotFound") }, v1alpha1.ReasonRetrying},
		"not retried":          {"agent", func(t *v1alpha1.Task) { t.Spec.FailOn = onReasons("ProgramNotFound") }, v1alpha1.ReasonProgramNotFound},
		"of an init container": {"fetch", func(t *v1alpha1.Task) { t.Spec.RetryOn = onReasons("ProgramNotFound") }, v1alpha1.ReasonProgramNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, c.change)
			if c.container == v1alpha1.AgentContainer {
				s.setContainer(c.container, corev1.ContainerState{Terminated: &missing})
			} else {
				s.pod().Status.ContainerStatuses = nil
				s.pod().Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: c.container, State: corev1.ContainerState{Terminated: &missing}}}
			}
			s.podFinishes()
			s.wantState(c.reason)
		})
	}
}

// A pod that is lost, or stopped by Clew, is no end of an agent.
func TestFailOnDoesNotApplyToLostPods(t *testing.T) {
	s := running(t, func(t *v1alpha1.Task) { t.Spec.FailOn = onCodes(137, 143) })
	s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
	s.agentExits(143)
	s.podFinishes()
	s.wantOutcomes(v1alpha1.AttemptPodLost, "")
}
