package plan

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The time in which calls wait for a person does not count as the agent's, if it does nothing else
// meanwhile. An agent that keeps a call waiting and works counts as one that works, as far as the history
// knows of its work. It may do what nobody sees: so what is left out without any person's answer is no
// more than one call may wait, in however many attempts.

// defaultApprovalDeadline is how long a call waits, in seconds, by a policy that does not say so.
const defaultApprovalDeadline = 24 * 60 * 60

// noteWaiting notes since when calls of the active attempt wait for answers, and for how long others have.
func (d *decision) noteWaiting() {
	a := d.active()
	if a == nil {
		return
	}
	switch since := d.waitingSince(a); {
	case since == nil:
		d.settleWait(a, d.now)
		a.WaitingSince = nil
	case a.WaitingSince == nil:
		a.WaitingSince = since
	}
}

// unanswered returns for how long calls of the attempts so far have waited without a person's answer, in
// seconds: with what the next one begins.
func (d *decision) unanswered() int64 {
	if last := d.last(); last != nil {
		return last.UnansweredSeconds
	}
	return 0
}

// noteResumer makes room for other waits when a person resumes the task, and no supervisor's agent does.
func (d *decision) noteResumer() {
	if last := d.last(); last != nil && !IsTaskRequester(d.stamps().Resume) && !IsTaskRequester(FieldManager(d.task, "spec", "resume", "id")) {
		last.UnansweredSeconds = 0
	}
}

// waitingSince returns since when calls of an attempt wait for answers; nil if none does.
func (d *decision) waitingSince(a *v1alpha1.Attempt) (since *metav1.Time) {
	for _, r := range d.s.Requests {
		if r.Attempt == a.Number && r.Waits == v1alpha1.WaitCall && r.Answer == nil && (since == nil || r.Since.Before(since)) {
			since = ptr.To(r.Since)
		}
	}
	if since != nil && a.AgentStartTime != nil && since.Before(a.AgentStartTime) {
		since = ptr.To(*a.AgentStartTime)
	}
	return since
}

// noteAnswered notes that a call of the active attempt has its answer. That of a person, who has let the
// agent wait until now, makes room for other waits.
func (d *decision) noteAnswered(r *v1alpha1.ToolRequest) {
	a := d.active()
	if a == nil || a.Number != r.Attempt || r.Waits != v1alpha1.WaitCall {
		return
	}
	d.settleWait(a, d.now)
	if r.Answer.By != clew {
		a.UnansweredSeconds = 0
	}
}

// settleWait adds the wait until a time to those before it. If it goes on, it does so from there.
func (d *decision) settleWait(a *v1alpha1.Attempt, at time.Time) {
	idle := int64(d.idle(a, at) / time.Second)
	a.WaitedSeconds, a.UnansweredSeconds = a.WaitedSeconds+idle, a.UnansweredSeconds+idle
	if a.WaitingSince != nil {
		a.WaitingSince = ptr.To(metav1.NewTime(at))
	}
}

// waited returns for how long calls of an attempt had waited for answers at a time, while its agent did
// nothing else.
func (d *decision) waited(a *v1alpha1.Attempt, at time.Time) time.Duration {
	return time.Duration(a.WaitedSeconds)*time.Second + d.idle(a, at)
}

// idle returns how much of that belongs to the calls that wait now. What the agent is known to have done
// meanwhile, it has done all the time until then.
func (d *decision) idle(a *v1alpha1.Attempt, at time.Time) time.Duration {
	if a.WaitingSince == nil {
		return 0
	}
	since := a.WaitingSince.Time
	if state := d.o.History.State; state.Attempt == a.Number && state.WorkedAt.After(since) {
		since = state.WorkedAt
	}
	return max(min(at.Sub(since), d.leftToWait(a)), 0)
}

// leftToWait returns for how long calls of an attempt may still wait without counting.
func (d *decision) leftToWait(a *v1alpha1.Attempt) time.Duration {
	most := ptr.Deref(d.task.Spec.CheckpointPolicy.ApprovalDeadlineSeconds, defaultApprovalDeadline)
	return time.Duration(max(int64(most)-a.UnansweredSeconds, 0)) * time.Second
}

// agentSeenOr returns when the agent of an attempt was last known to run; now if it has not started.
func (d *decision) agentSeenOr(a *v1alpha1.Attempt) time.Time {
	if a.AgentSeenTime != nil {
		return a.AgentSeenTime.Time
	}
	return d.now
}
