package plan

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// A limit of the spec bounds what a task may use in all its attempts together. When it is reached, the
// agent is stopped with a checkpoint, and no other attempt starts, until a resume comes with a higher one:
// at a deadline the task has failed with its reason, and at a budget it rests with that. Neither retries
// nor rewinds nor resumes give anything back. A pod that only rewinds the task uses nothing, and starts
// all the same.

// usage is what a task has used of what limits bound.
type usage struct {
	// active is how long its agent has run.
	active time.Duration
	// budgets are those that the task works under, with what is spent of them.
	budgets []budget.Budget
}

// reachedLimit returns the reason of the limit of the spec that is reached; "" if none is.
func reachedLimit(spec *v1alpha1.TaskSpec, used usage) string {
	switch limit := spec.DeadlineSeconds; {
	case limit != nil && used.active >= time.Duration(*limit)*time.Second:
		return v1alpha1.ReasonDeadlineExceeded
	case budget.Exceeded(used.budgets) != nil:
		return v1alpha1.ReasonBudgetExceeded
	}
	return ""
}

// limitMessage says that the limit of a reason is reached, and what was used.
func limitMessage(reason string, used usage) string {
	switch over := budget.Exceeded(used.budgets); {
	case reason == v1alpha1.ReasonDeadlineExceeded:
		return fmt.Sprintf("deadlineSeconds has passed: the agent has run for %d seconds in all", int64(used.active/time.Second))
	case over != nil:
		return over.String()
	}
	return "a budget was spent, and the task has not been resumed since"
}

// limitAdvice returns what to do about a task that a limit has stopped; "" for any other reason.
func limitAdvice(reason string, used usage) string {
	switch over := budget.Exceeded(used.budgets); {
	case reason == v1alpha1.ReasonDeadlineExceeded:
		return "; to continue, raise deadlineSeconds and resume the task in one change"
	case reason != v1alpha1.ReasonBudgetExceeded:
		return ""
	case over != nil:
		return over.Advice()
	}
	return "; to continue, resume the task"
}

// isLimit reports whether the reason is that of a limit.
func isLimit(reason string) bool {
	return reason == v1alpha1.ReasonDeadlineExceeded || reason == v1alpha1.ReasonBudgetExceeded
}

// used returns what the task has used until now: what the status says of it, or what the history has been
// told, if that is more. The status may have been restored from an older copy.
func (d *decision) used() usage {
	used := usage{active: time.Duration(d.s.ActiveSeconds) * time.Second, budgets: d.budgets()}
	if a := d.active(); a != nil {
		used.active += d.activeTime(a)
	}
	used.active = max(used.active, time.Duration(d.o.History.State.ActiveSeconds)*time.Second)
	return used
}

// activeTime returns how long the agent of the active attempt has run, without the time in which it only
// waited for a person.
func (d *decision) activeTime(a *v1alpha1.Attempt) time.Duration {
	if a.AgentStartTime == nil {
		return 0
	}
	seen := d.agentSeen(a)
	return max(seen.Sub(a.AgentStartTime.Time)-d.waited(a, seen), 0)
}

// agentSeen returns when the agent of the active attempt, which has started, was last known to run, in
// whole seconds.
func (d *decision) agentSeen(a *v1alpha1.Attempt) time.Time {
	seen := d.now
	switch v := d.views[a.Number]; {
	case v != nil && v.agent != nil && !v.agent.FinishedAt.IsZero():
		seen = v.agent.FinishedAt.Time
	case v != nil && d.superseded(a): // its pod belongs to an older copy of the cluster
		seen = d.heardOf(a)
	case v != nil && d.podAbsence(v) != nil: // nobody knows whether it runs
		seen = d.podAbsence(v).since
		if heard := d.heardOf(a); heard.After(seen) {
			seen = heard
		}
	case v != nil && v.agentRuns && !v.finished:
		if v.deleting && v.pod.DeletionTimestamp.Time.Before(seen) { // its node may be lost
			seen = v.pod.DeletionTimestamp.Time
		}
	default: // its pod was lost
		seen = d.heardOf(a)
	}
	if seen.After(d.now) {
		seen = d.now
	}
	if seen = seen.Truncate(time.Second); seen.Before(a.AgentStartTime.Time) {
		return a.AgentStartTime.Time
	}
	return seen
}

// superseded reports whether the history has a later attempt than one of the status, which was restored
// from an older copy.
func (d *decision) superseded(a *v1alpha1.Attempt) bool { return d.o.History.State.Attempt > a.Number }

// heardOf returns when status and history have last heard of the agent of an attempt. When the history
// has later ones, its last activity is theirs.
func (d *decision) heardOf(a *v1alpha1.Attempt) time.Time {
	var last time.Time
	if a.AgentSeenTime != nil {
		last = a.AgentSeenTime.Time
	}
	state := d.o.History.State
	if state.Attempt == a.Number && state.ActiveAt.After(last) {
		last = state.ActiveAt
	}
	if c := state.Latest; c != nil && c.Attempt == a.Number && c.Time.After(last) {
		last = c.Time
	}
	return last
}

// noteAgentStart notes when the agent of the active attempt started.
func (d *decision) noteAgentStart(a *v1alpha1.Attempt, v *podView) {
	started := v.agentStart()
	if a.AgentStartTime == nil && !started.IsZero() {
		a.AgentStartTime = ptr.To(metav1.NewTime(started))
	}
}

// noteAgentSeen notes when the agent of the active attempt was last known to run.
func (d *decision) noteAgentSeen() {
	if a := d.active(); a != nil && a.AgentStartTime != nil {
		a.AgentSeenTime = ptr.To(metav1.NewTime(d.agentSeen(a)))
	}
}

// countUse adds what the active attempt, which ends, has used to what the task has.
func (d *decision) countUse(a *v1alpha1.Attempt) {
	d.recallAgentStart(a)
	d.noteAgentSeen()
	d.s.ActiveSeconds = int64(d.used().active / time.Second)
}

// recallAgentStart notes when the agent of an attempt was first heard of, if nobody has seen its pod: no
// manager ran meanwhile, or the status was restored from an older copy.
func (d *decision) recallAgentStart(a *v1alpha1.Attempt) {
	state := d.o.History.State
	former := state.AgentSince.Before(d.task.CreationTimestamp.Time) // it may be that of a task whose history this one adopted
	if a.AgentStartTime != nil || state.AgentAttempt != a.Number || former || state.AgentSince.After(d.now) {
		return
	}
	since := metav1.NewTime(state.AgentSince.Truncate(time.Second))
	if a.StartTime != nil && since.Before(a.StartTime) {
		since = *a.StartTime
	}
	a.AgentStartTime = &since
}

// useDue reports whether it is to be written until when the agent of a task with a limit of time was
// seen, which counts if its pod is lost; and asks for another decision then.
func (d *decision) useDue() bool {
	a, every := d.active(), d.o.Limits.ActivityEvery
	if a == nil || d.task.Spec.DeadlineSeconds == nil || a.AgentStartTime == nil || every == 0 || d.task.DeletionTimestamp != nil {
		return false
	}
	if v := d.views[a.Number]; v == nil || !v.agentRuns || v.finished {
		return false
	}
	seen := a.AgentStartTime
	if a.AgentSeenTime != nil {
		seen = a.AgentSeenTime
	}
	if at := seen.Add(every); d.now.Before(at) {
		d.requeueAt(at)
		return false
	}
	return d.agentSeen(a).Sub(seen.Time) >= every
}

// limitToStopFor returns the reason of the limit for which the active attempt must stop; "" if there is
// none. An agent that has exited needs no stop. A rewind is carried out first. A suspension stays one. A
// stop that has begun stays what it is, since the agent cannot be kept. At a budget, the agent's daemon ends
// it first.
func (d *decision) limitToStopFor(a *v1alpha1.Attempt, v *podView) string {
	exited := v != nil && (v.agent != nil || v.prepareOnly)
	switch {
	case isLimit(a.Reason) && v != nil && v.deleting:
		return a.Reason
	case exited, d.rewinding(), d.suspended():
		return ""
	}
	reason := reachedLimit(&d.task.Spec, d.used())
	if reason != v1alpha1.ReasonBudgetExceeded {
		a.BudgetSpentTime = nil
	} else if v != nil && v.agentRuns && !d.budgetGraceOver(a) {
		return ""
	}
	return reason
}

// requeueAtLimit asks for another decision when a running agent reaches a limit of time; one that waits
// for a person, when it does if nobody answers. News of what it does meanwhile ask for one as well.
func (d *decision) requeueAtLimit(a *v1alpha1.Attempt, v *podView) {
	limit := d.task.Spec.DeadlineSeconds
	if limit == nil || !v.agentRuns || a.AgentStartTime == nil || d.podAbsence(v) != nil {
		return
	}
	at := a.AgentStartTime.Add(time.Duration(*limit-d.s.ActiveSeconds+a.WaitedSeconds) * time.Second)
	if a.WaitingSince != nil {
		at = at.Add(d.leftToWait(a))
	}
	d.requeueAt(at)
}

// settledByLimit returns how a task between two attempts has ended since a limit lets no other one
// start; nil if none does. Once it has stopped for that, it stays so until it is resumed.
func (d *decision) settledByLimit() *settlement {
	last := d.last()
	if last == nil || d.active() != nil || d.suspended() {
		return nil
	}
	used := d.used()
	reason := reachedLimit(&d.task.Spec, used)
	if stored := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded); stored != nil && isLimit(stored.Reason) && !d.resuming() {
		reason = cmp.Or(reason, stored.Reason)
	}
	if reason == "" {
		return nil
	}
	return &settlement{reason, limitMessage(reason, used), last.Number}
}

// limitEntry returns the reason of the entry for a task that the limit of a reason has stopped, and the
// state after it.
func limitEntry(reason string) (entry, state string) {
	if reason == v1alpha1.ReasonBudgetExceeded {
		return v1alpha1.EventBudgetExceeded, stateSpent
	}
	return v1alpha1.EventTaskFailed, stateFailed
}

// limitEntryMessage returns the message of that entry, which says which limit it was.
func limitEntryMessage(reason, message string) string {
	if reason == v1alpha1.ReasonBudgetExceeded {
		return message
	}
	return reason + ": " + message
}

// addLimitEntry adds an entry for a task that a limit has stopped between two attempts, so that no end of
// an attempt has reported it.
func (d *decision) addLimitEntry(reason, message string) {
	if !isLimit(reason) || d.active() != nil || d.wasStopped(reason) {
		return
	}
	entry, _ := limitEntry(reason)
	d.addEntry(entry, clew, limitEntryMessage(reason, message))
}

// wasStopped reports whether the history has the task as stopped by the limit of a reason. If the status no
// longer has an entry that says so, the stored condition decides.
func (d *decision) wasStopped(reason string) bool {
	_, stopped := limitEntry(reason)
	state, stored := d.stateInHistory(), meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	return state == stopped || state == "" && stored != nil && stored.Reason == reason
}
