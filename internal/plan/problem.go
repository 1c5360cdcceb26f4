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

// problem is what keeps the daemon of an attempt from its work; nil when nothing
// does. While the history store cannot be asked it is what was heard last.
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

// enterProblem enters into the history what keeps the attempt from its work, when
// the task comes to stand there: each time for a problem of the daemon, once an
// attempt for what keeps its pod from coming up, since the kubelet tries that
// again and again.
func (d *decision) enterProblem(reason, message string) {
	a := d.active()
	if a == nil {
		return
	}
	p, was := d.problem(a), d.standingOf(a)
	anew := p != nil && p.Reason == reason && (was == nil || was.Reason != reason)
	h := d.podHindrance(a)
	hindered := h != nil && h.Reason == reason
	if anew || hindered && !toldOf(a, reason) {
		d.entry(v1alpha1.EventTaskHindered, clew, reason+": "+message)
	}
	if hindered && !toldOf(a, reason) {
		a.Hindrances = append(a.Hindrances, reason)
	}
}

// podHindrance is what keeps the attempt's pod from being made, or from coming up;
// nil when nothing does.
func (d *decision) podHindrance(a *v1alpha1.Attempt) *Blocker {
	if v := d.views[a.Number]; v != nil {
		return v.problem
	}
	return d.o.Blocker
}

// toldOf says that the history tells already that this hinders the attempt. What is
// too much for the list counts as told.
func toldOf(a *v1alpha1.Attempt, reason string) bool {
	return slices.Contains(a.Hindrances, reason) || len(a.Hindrances) >= maxHindrances
}

// standingOf is the stored condition Succeeded if it tells of this attempt; else nil.
func (d *decision) standingOf(a *v1alpha1.Attempt) *metav1.Condition {
	if n := len(d.old.Attempts); n == 0 || d.old.Attempts[n-1].Number != a.Number {
		return nil
	}
	return meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
}
