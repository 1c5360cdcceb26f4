package plan

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/history"
)

// agentEnding returns the ending of an agent that failed; nil and a deadline while the
// history store, which has the cause, cannot be asked. The sidecar reported the cause
// before the agent's container ended, unless it was killed as well. The container's own
// termination message is ignored: the agent can write it.
func (d *decision) agentEnding(a *v1alpha1.Attempt, v *podView) (e *ending, deadline time.Time) {
	code := v.agent.ExitCode
	if e := d.unstartable(v1alpha1.AgentContainer, v.agent); e != nil {
		d.applyPolicy(e, v1alpha1.AgentFailureReason(e.reason))
		return e, time.Time{}
	}
	known, stops := d.o.History.Known, d.stopsAtCalls()
	if !known || stops && d.behind() {
		switch deadline := v.agent.FinishedAt.Add(d.o.Limits.RecordWait); {
		case d.now.Before(deadline):
			return nil, deadline
		case !stops:
		case !known: // no other attempt could start either
			return nil, time.Time{}
		default: // the next pod sends again what the store lacks
			return ptr.To(d.lostEnding(a, "the history store was restored from an older copy, and it is not known whether the agent was stopped at a call")), time.Time{}
		}
	}
	if why := d.endedByDaemon(a); why != "" {
		return ptr.To(d.lostEnding(a, why)), time.Time{}
	}
	if r := d.stoppedFor(a); r != nil {
		return d.stoppedEnding(code, r), time.Time{}
	}
	end := d.agentEnd(a)
	if agent.Cause(end.Cause) == agent.CauseBudgetSpent {
		return &ending{outcome: v1alpha1.AttemptLimitReached, reason: v1alpha1.ReasonBudgetExceeded, message: end.Message}, time.Time{}
	}
	return d.reportedEnding(code, v.agent.Reason, end), time.Time{}
}

// stopsAtCalls reports whether rules of the task have its agent stopped at some calls, as they do with one
// that has no hooks. That it was is no failure, and only the history knows it.
func (d *decision) stopsAtCalls() bool {
	adapter, err := agent.For(d.task.Spec.Agent.Type)
	return err == nil && !adapter.AsksBeforeTools() && slices.ContainsFunc(d.task.Spec.CheckpointPolicy.BeforeRiskyTools, func(r v1alpha1.RiskyToolPattern) bool {
		return r.Action == v1alpha1.RiskyToolAsk || r.Action == v1alpha1.RiskyToolDeny
	})
}

// endedByDaemon returns why the sidecar itself ended the agent of this attempt, which is
// not a failure of the agent; "" if it did not.
func (d *decision) endedByDaemon(a *v1alpha1.Attempt) string {
	if p := d.problem(a); p != nil && slices.Contains([]string{v1alpha1.ReasonVolumeOutdated, v1alpha1.ReasonFenced}, p.Reason) {
		return p.Message
	}
	if d.o.History.Known && d.o.History.State.Attempt > a.Number {
		return fmt.Sprintf("attempt %d had begun, so this attempt's daemon terminated its agent", d.o.History.State.Attempt)
	}
	return ""
}

// reportedEnding returns the ending of an agent that exited with a code other than 0 and
// whose sidecar reported why.
func (d *decision) reportedEnding(code int32, reason string, end history.AgentEnd) *ending {
	e := d.failedEnding(code, failureMessage(code, reason, end))
	switch why, cause := reasonOf(agent.Cause(end.Cause)), agent.Cause(end.Cause); {
	case d.applyPolicy(&e, why):
	case cause == agent.CauseRateLimited:
		d.applyRateLimit(&e)
	case cause == agent.CauseGaveUp, why != v1alpha1.ReasonAgentFailed && why != v1alpha1.ReasonModelErrors:
		e.reason = failedFor(why)
	}
	if end.RetryAfter > 0 && retriedFor(e.reason) {
		e.retryTime = ptr.To(metav1.NewTime(d.now.Add(end.RetryAfter)))
	}
	return &e
}

// applyRateLimit turns an ending into that of an agent whose model API asked it to slow down.
// It does not count as a failure, unless this has gone on for too long: there is no point
// in waiting for an API that never accepts a request, for example for a key without quota. An agent
// says by itself that it is limited and which tools it has called; only other files in a checkpoint
// show that it makes progress.
func (d *decision) applyRateLimit(e *ending) {
	e.rateLimit = d.s.RateLimit
	tree := d.latestTree()
	if e.rateLimit == nil || tree != "" && e.rateLimit.Tree != tree {
		e.rateLimit = &v1alpha1.RateLimitStatus{Since: metav1.NewTime(d.now), Tree: tree}
	}
	since := e.rateLimit.Since
	if d.now.Before(since.Add(d.o.Limits.RateLimitPatience)) {
		e.reason = v1alpha1.ReasonAgentRateLimited
		return
	}
	e.message = fmt.Sprintf("the agent has changed nothing and its model's API has asked for pauses since %s, so they now count as failures: %s",
		since.UTC().Format(time.RFC3339), e.message)
}

// latestTree returns the tree of the latest checkpoint; "" if there is none, or none is known.
func (d *decision) latestTree() string {
	if latest := d.o.History.State.Latest; d.o.History.Known && latest != nil {
		return latest.Tree
	}
	return ""
}

// agentEnd returns what the sidecar of an attempt reported about its agent's end.
func (d *decision) agentEnd(a *v1alpha1.Attempt) history.AgentEnd {
	if end := d.o.History.State.AgentEnd; d.o.History.Known && end != nil && end.Attempt == a.Number {
		return *end
	}
	return history.AgentEnd{}
}

// failureMessage describes how an agent ended, and quotes the reported cause.
func failureMessage(code int32, reason string, end history.AgentEnd) string {
	message := agent.ExitMeaning(int(code))
	if reason != "" && reason != "Error" {
		message += " (" + reason + ")"
	}
	switch c := agent.Cause(end.Cause); {
	case end.Message == "":
		return message
	case c == agent.CauseProgramNotFound, c == agent.CauseProgramNotExecutable:
		return end.Message + ": " + checkProgram(v1alpha1.AgentContainer)
	case c == agent.CauseTooOld, code == 126, code == 127:
		return end.Message // it never started
	case meaning(c) != "":
		return fmt.Sprintf("%s: %s: %s", message, meaning(c), end.Message)
	}
	return message + ": " + end.Message
}

// meaning explains a cause to users; "" if there is nothing to explain.
func meaning(c agent.Cause) string {
	switch c {
	case agent.CauseUnauthorized:
		return "the model's API does not accept the agent's credentials"
	case agent.CauseOutOfCredit:
		return "the account at the model's API has no credit or quota left"
	case agent.CauseRateLimited:
		return "the model's API asks for a pause"
	case agent.CauseModelUnavailable:
		return "the model's API fails or cannot be reached"
	case agent.CauseInvalidOptions:
		return "the agent's program does not accept its arguments"
	case agent.CauseSessionUnknown:
		return "the agent does not have its session"
	case agent.CauseGaveUp:
		return "the agent gave up"
	}
	return ""
}

// retried reports whether another attempt follows a failed one automatically.
func retried(a v1alpha1.Attempt) bool { return retriedFor(a.Reason) }

// retriedFor reports whether another attempt follows one that failed with this reason.
func retriedFor(reason string) bool {
	return slices.Contains([]string{v1alpha1.ReasonRetrying, v1alpha1.ReasonAgentRateLimited}, reason)
}

// failurePause returns the pause between an agent's failure and the next attempt.
func (d *decision) failurePause(last *v1alpha1.Attempt) time.Duration {
	failures := int(d.s.Failures)
	if last.Reason == v1alpha1.ReasonAgentRateLimited {
		failures = 0
		for i := len(d.s.Attempts) - 1; i >= 0 && d.s.Attempts[i].Reason == v1alpha1.ReasonAgentRateLimited; i-- {
			failures++
		}
	}
	pause := backoff(d.o.Limits.RetryBase, d.o.Limits.RetryCap, failures)
	if last.RetryTime != nil {
		pause = max(pause, last.RetryTime.Sub(last.EndTime.Time))
	}
	return pause
}
