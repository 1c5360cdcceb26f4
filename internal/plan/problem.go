package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

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
	reasons := []string{
		v1alpha1.ReasonVolumeFull, v1alpha1.ReasonRecordingFailed, v1alpha1.ReasonCheckpointFailed, v1alpha1.ReasonGitStoreRefused,
		v1alpha1.ReasonGitStoreUnreachable, v1alpha1.ReasonRepositoryUnreachable,
		v1alpha1.ReasonHistoryLimitReached,
		v1alpha1.ReasonVolumeOutdated, v1alpha1.ReasonFenced, v1alpha1.ReasonModelErrors,
	}
	if c := d.standingOf(a); c != nil && c.Status == metav1.ConditionUnknown && slices.Contains(reasons, c.Reason) {
		return &history.Problem{Reason: c.Reason, Message: c.Message}
	}
	return nil
}

// enterProblem enters a problem of the daemon into the history when the task
// comes to stand there.
func (d *decision) enterProblem(reason, message string) {
	a := d.active()
	if a == nil {
		return
	}
	p, was := d.problem(a), d.standingOf(a)
	if p != nil && p.Reason == reason && (was == nil || was.Reason != reason) {
		d.entry(v1alpha1.EventTaskHindered, clew, reason+": "+message)
	}
}

// standingOf is the stored condition Succeeded if it tells of this attempt; else nil.
func (d *decision) standingOf(a *v1alpha1.Attempt) *metav1.Condition {
	if n := len(d.old.Attempts); n == 0 || d.old.Attempts[n-1].Number != a.Number {
		return nil
	}
	return meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
}
