package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// The state behind the Kubernetes API may have been put back to an older copy,
// and the history store not. Then the store knows of attempts that the status
// does not tell of. How the newest of them ended counts before anything is
// started: an agent that has ended well since the copy was made is not run again.

// catchUp enters an attempt that the status does not tell of and whose end the
// history store knows.
func (d *decision) catchUp() {
	number, e := d.untoldEnd()
	if e == nil {
		return
	}
	if a := d.active(); a != nil {
		if v := d.views[a.Number]; v != nil && !v.finished {
			d.stop(v)
		}
		d.end(a, ending{outcome: v1alpha1.AttemptPodLost, message: fmt.Sprintf(
			"the Kubernetes API was put back to an older copy, and attempt %d came after this one", number)})
	}
	trigger := v1alpha1.AttemptAfterPodLost
	if d.last() == nil {
		trigger = v1alpha1.AttemptStart
	}
	d.enterAttempt(v1alpha1.Attempt{Number: number, PodName: resources.PodName(d.task.Name, number), Trigger: trigger})
	e.message += "; the Kubernetes API was put back to an older copy, which did not tell of this attempt"
	d.end(d.last(), *e)
	d.catchUpRewind(number)
	d.catchUpResume(number)
}

// enterSeen enters the newest attempt that a task's volume or the gitstore has
// seen, if the status does not tell of it. The history store does not either: it was
// put back as well. The next attempt must have a higher number to be let in; it
// carries on what the refused one was for.
func (d *decision) enterSeen(number int64, trigger v1alpha1.AttemptTrigger) {
	if number <= d.last().Number {
		return
	}
	d.enterAttempt(v1alpha1.Attempt{Number: number, PodName: resources.PodName(d.task.Name, number), Trigger: trigger})
	d.end(d.last(), ending{outcome: v1alpha1.AttemptPodLost, message: "the task's volume or the gitstore has seen this attempt; " +
		"the Kubernetes API and the history store were put back to older copies, which do not tell of it"})
}

// untoldEnd is how an attempt ended that came after those of the status; nil
// when the history store knows of none.
func (d *decision) untoldEnd() (int64, *ending) {
	told, state := int64(0), d.o.History.State
	if a := d.last(); a != nil {
		told = a.Number
	}
	if !d.o.History.Known {
		return 0, nil
	}
	if c := state.Latest; c != nil && c.Attempt > told && c.Trigger == string(v1alpha1.TriggerCompletion) {
		return c.Attempt, ptr.To(completed())
	}
	if end := state.AgentEnd; end != nil && end.Attempt > told && end.Attempt == state.Attempt {
		return end.Attempt, d.toldEnding(end.ExitCode, "", *end)
	}
	return 0, nil
}

// catchUpRewind closes a rewind that was carried out by the attempt that has been
// entered, or before it: each attempt carries out first what is in progress.
func (d *decision) catchUpRewind(attempt int64) {
	r := NewRewind(d.task)
	switch {
	case d.rewinding():
	case r != nil && (d.noted(daemonapi.OperationDoneKey(daemonapi.OperationRewind, r.ID)) || d.undone(r.ID)):
		d.markHandled(daemonapi.OperationRewind, r.ID)
		d.s.Rewind = d.untold(r.ID, d.rewindRequester())
	default:
		return
	}
	if d.undone(d.s.Rewind.ID) {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, v1alpha1.ReasonRewindUndone, "nothing was changed: "+outcomeUntold(attempt))
		return
	}
	d.closeOperation(d.s.Rewind, v1alpha1.OperationCompleted, "", outcomeUntold(attempt))
}

func (d *decision) catchUpResume(attempt int64) {
	r := d.task.Spec.Resume
	switch {
	case d.resuming():
	case r != nil && !handled(d.s, daemonapi.OperationResume, r.ID) && d.noted(daemonapi.OperationKey(daemonapi.OperationResume, r.ID)):
		d.markHandled(daemonapi.OperationResume, r.ID)
		d.s.Resume = d.untold(r.ID, d.resumeRequester())
	default:
		return
	}
	d.closeOperation(d.s.Resume, v1alpha1.OperationCompleted, "", outcomeUntold(attempt))
}

func (d *decision) untold(id, requester string) *v1alpha1.OperationStatus {
	return &v1alpha1.OperationStatus{ID: id, StartTime: ptr.To(metav1.NewTime(d.now)), RequestedBy: requester}
}

func outcomeUntold(attempt int64) string {
	return fmt.Sprintf("it ended in attempt %d or before it, as the timeline tells; the Kubernetes API was put back to an older copy since", attempt)
}

// noted says that the history store knows the end of an operation.
func (d *decision) noted(key string) bool {
	return slices.Contains(d.o.History.State.CompletedOperations, key)
}

func (d *decision) undone(rewind string) bool {
	return d.noted(daemonapi.OperationUndoneKey(daemonapi.OperationRewind, rewind))
}
