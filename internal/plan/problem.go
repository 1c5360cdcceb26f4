package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
)

// maxHindrances is the number of reasons that the schema allows.
const maxHindrances = 16

// problem returns what blocks the sidecar of an attempt; nil if nothing does. While the
// history store is down, it returns the store's last answer.
func (d *decision) problem(a *v1alpha1.Attempt) *history.Problem {
	if d.o.History.Known {
		p := d.o.History.State.Problem
		if p == nil || d.o.History.State.Attempt != a.Number {
			return nil
		}
		return &history.Problem{Reason: p.Reason, Message: d.pacedMessage(a, p.Reason, resources.PlainText(p.Message, maxMessage))}
	}
	if c := d.storedSucceeded(a); c != nil && c.Status == metav1.ConditionUnknown && reason.Find(c.Reason).DaemonProblem {
		return &history.Problem{Reason: c.Reason, Message: c.Message}
	}
	return nil
}

// pacedMessage returns what to say about a problem of the sidecar. Another text about the same one is told
// as new checkpoints are: not more often than RefreshEvery.
func (d *decision) pacedMessage(a *v1alpha1.Attempt, reason, message string) string {
	was, due := d.storedSucceeded(a), d.o.LastWrite.Add(d.o.Limits.RefreshEvery)
	if was == nil || was.Reason != reason || was.Message == message || !d.now.Before(due) {
		return message
	}
	d.requeueAt(due)
	return was.Message
}

// addProblemEntry adds an entry when something begins to block the attempt: for a problem
// of the sidecar each time, for a pod that does not start once per attempt, since the
// kubelet keeps trying.
func (d *decision) addProblemEntry(reason, message string) {
	a := d.active()
	if a == nil {
		return
	}
	p, was := d.problem(a), d.storedSucceeded(a)
	started := p != nil && p.Reason == reason && (was == nil || was.Reason != reason)
	b := d.podBlocker(a)
	hindered := b != nil && b.Reason == reason && reason != v1alpha1.ReasonQueued
	if started || hindered && !reported(a, reason) {
		d.addEntry(v1alpha1.EventTaskHindered, clew, reason+": "+message)
	}
	if hindered && !reported(a, reason) {
		a.Hindrances = append(a.Hindrances, reason)
	}
}

// podBlocker returns why the attempt's pod cannot be created or does not start; nil if
// nothing blocks it.
func (d *decision) podBlocker(a *v1alpha1.Attempt) *Blocker {
	if v := d.views[a.Number]; v != nil {
		return v.problem
	}
	return d.o.Blocker
}

// reported reports whether an entry already says that this blocks the attempt. A reason
// that no longer fits into the list counts as reported.
func reported(a *v1alpha1.Attempt, reason string) bool {
	return slices.Contains(a.Hindrances, reason) || len(a.Hindrances) >= maxHindrances
}

// storedSucceeded returns the stored condition Succeeded if it is about this attempt; nil
// otherwise.
func (d *decision) storedSucceeded(a *v1alpha1.Attempt) *metav1.Condition {
	if n := len(d.old.Attempts); n == 0 || d.old.Attempts[n-1].Number != a.Number {
		return nil
	}
	return meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
}
