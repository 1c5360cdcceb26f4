package plan

import (
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
)

// policyDecision is what spec.retryOn and spec.failOn say of the end of an agent.
type policyDecision int

const (
	// policySilent: neither of them selects it.
	policySilent policyDecision = iota
	policyRetry
	policyFail
)

// failurePolicy returns what retryOn and failOn say of the end of an agent with an exit code and a
// reason, and which of their words decides. From the most specific to the least: a reason that the
// adapter has found, the exit code, the reason AgentFailed. Both cannot have the same.
func failurePolicy(spec *v1alpha1.TaskSpec, code int32, reason v1alpha1.AgentFailureReason) (policyDecision, string) {
	byReason := func(m *v1alpha1.FailureMatcher) bool { return m != nil && slices.Contains(m.Reasons, reason) }
	byCode := func(m *v1alpha1.FailureMatcher) bool { return m != nil && slices.Contains(m.ExitCodes, code) }
	found := reason != v1alpha1.ReasonAgentFailed
	exit := fmt.Sprintf("the exit code %d", code)
	switch {
	case found && byReason(spec.FailOn):
		return policyFail, "failOn has " + string(reason)
	case found && byReason(spec.RetryOn):
		return policyRetry, "retryOn has " + string(reason)
	case byCode(spec.FailOn):
		return policyFail, "failOn has " + exit
	case byCode(spec.RetryOn):
		return policyRetry, "retryOn has " + exit
	case byReason(spec.FailOn):
		return policyFail, "failOn has " + string(reason)
	case byReason(spec.RetryOn):
		return policyRetry, "retryOn has " + string(reason)
	}
	return policySilent, ""
}

// applyPolicy changes the ending of an agent that failed to what retryOn or failOn says, and reports
// whether either says anything. What decided comes first in the message, where no long words of the
// agent push it out.
func (d *decision) applyPolicy(e *ending, reason v1alpha1.AgentFailureReason) bool {
	what, since := failurePolicy(&d.task.Spec, *e.exitCode, reason)
	switch what {
	case policyRetry:
		e.reason, e.message = d.retryReason(), "it counts towards backoffLimit, since "+since+": "+e.message
	case policyFail:
		e.reason, e.message = failedFor(reason), "it is not retried, since "+since+": "+e.message
	}
	return what != policySilent
}

// reasonOf returns the reason for which an agent failed, by the cause that its adapter found.
func reasonOf(cause agent.Cause) v1alpha1.AgentFailureReason {
	switch cause {
	case agent.CauseUnauthorized:
		return v1alpha1.ReasonAgentUnauthorized
	case agent.CauseOutOfCredit:
		return v1alpha1.ReasonAgentOutOfCredit
	case agent.CauseRateLimited:
		return v1alpha1.ReasonAgentRateLimited
	case agent.CauseModelUnavailable:
		return v1alpha1.ReasonModelErrors
	case agent.CauseTooOld:
		return v1alpha1.ReasonAgentTooOld
	case agent.CauseInvalidOptions:
		return v1alpha1.ReasonAgentOptionsInvalid
	case agent.CauseProgramNotFound:
		return v1alpha1.ReasonProgramNotFound
	case agent.CauseProgramNotExecutable:
		return v1alpha1.ReasonProgramNotExecutable
	}
	return v1alpha1.ReasonAgentFailed
}

// failedFor returns the reason with which a task fails whose agent failed for a reason. Those of a
// model that may answer again later are states of a task that goes on.
func failedFor(reason v1alpha1.AgentFailureReason) string {
	switch reason {
	case v1alpha1.ReasonAgentRateLimited, v1alpha1.ReasonModelErrors:
		return v1alpha1.ReasonAgentFailed
	}
	return string(reason)
}
