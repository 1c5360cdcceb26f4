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

// maxHindrances is how many reasons the schema allows.
const maxHindrances = 16

// problem is what blocks the sidecar of an attempt; nil if nothing does. While the
// history store is down it is the last answer.
func (d *decision) problem(a *v1alpha1.Attempt) *history.Problem {
	if d.o.History.Known {
		p := d.o.History.State.Problem
		if p == nil || d.o.History.State.Attempt != a.Number {
			return nil
		}
		return &history.Problem{Reason: p.Reason, Message: resources.PlainText(p.Message, maxMessage)}
	}
	if c := d.standingOf(a); c != nil && c.Status == metav1.ConditionUnknown && reason.Find(c.Reason).DaemonProblem {
		return &history.Problem{Reason: c.Reason, Message: c.Message}
	}
	return nil
}

// enterProblem records in the history what blocks the attempt, when it begins to: a
// problem of the sidecar each time, a pod that does not start once for each attempt,
// since the kubelet keeps trying.
func (d *decision) enterProblem(reason, message string) {
	a := d.active()
	if a == nil {
		return
	}
	p, was := d.problem(a), d.standingOf(a)
	anew := p != nil && p.Reason == reason && (was == nil || was.Reason != reason)
	h := d.podBlocker(a)
	hindered := h != nil && h.Reason == reason
	if anew || hindered && !toldOf(a, reason) {
		d.entry(v1alpha1.EventTaskHindered, clew, reason+": "+message)
	}
	if hindered && !toldOf(a, reason) {
		a.Hindrances = append(a.Hindrances, reason)
	}
}

// podBlocker is why the attempt's pod cannot be made, or does not start; nil if
// nothing blocks it.
func (d *decision) podBlocker(a *v1alpha1.Attempt) *Blocker {
	if v := d.views[a.Number]; v != nil {
		return v.problem
	}
	return d.o.Blocker
}

// toldOf reports whether the history already says that this blocks the attempt. What
// does not fit into the list counts as told.
func toldOf(a *v1alpha1.Attempt, reason string) bool {
	return slices.Contains(a.Hindrances, reason) || len(a.Hindrances) >= maxHindrances
}

// standingOf is the stored condition Succeeded if it is about this attempt; else nil.
func (d *decision) standingOf(a *v1alpha1.Attempt) *metav1.Condition {
	if n := len(d.old.Attempts); n == 0 || d.old.Attempts[n-1].Number != a.Number {
		return nil
	}
	return meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
}
