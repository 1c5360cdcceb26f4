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

// The state of the Kubernetes API may have been restored from an older copy while the
// history store was not. The store then knows of attempts that the status does not list.
// How the newest of them ended is taken into account before anything is started: an agent
// that completed after the copy was made is not run again.

// catchUp adds an attempt that the status does not list and whose end the history store
// knows.
func (d *decision) catchUp() {
	number, e := d.unlistedEnd()
	if e == nil {
		return
	}
	if a := d.active(); a != nil {
		if v := d.views[a.Number]; v != nil && !v.finished {
			d.stop(v)
		}
		d.end(a, ending{outcome: v1alpha1.AttemptPodLost, message: fmt.Sprintf(
			"the Kubernetes API was restored from an older copy, and attempt %d followed this one", number)})
	}
	trigger := v1alpha1.AttemptAfterPodLost
	if d.last() == nil {
		trigger = v1alpha1.AttemptStart
	}
	d.appendAttempt(v1alpha1.Attempt{Number: number, PodName: resources.PodName(d.task.Name, number), Trigger: trigger})
	e.message += d.unlistedBecause()
	d.end(d.last(), *e)
	d.catchUpRewind(number)
	d.catchUpResume(number)
}

// unlistedBecause returns the end of a sentence about an attempt that the status did not list.
func (d *decision) unlistedBecause() string {
	if d.s.Adoption != nil && len(d.s.Attempts) == 1 {
		return "; it was an attempt of the former task that this one continues"
	}
	return "; the Kubernetes API was restored from an older copy, which did not have this attempt"
}

// appendSeenAttempt adds the newest attempt that the task's volume or the gitstore has
// seen, if the status does not list it. The history store does not know it either: it was
// restored as well. The next attempt needs a higher number to be accepted; it continues
// what the refused one was for.
func (d *decision) appendSeenAttempt(number int64, trigger v1alpha1.AttemptTrigger) {
	if number <= d.last().Number {
		return
	}
	d.appendAttempt(v1alpha1.Attempt{Number: number, PodName: resources.PodName(d.task.Name, number), Trigger: trigger})
	d.end(d.last(), ending{outcome: v1alpha1.AttemptPodLost, message: "the task's volume or the gitstore has seen this attempt; " +
		"the Kubernetes API and the history store were restored from older copies, which do not have it"})
}

// unlistedEnd returns how an attempt ended that is newer than those in the status; nil
// when the history store knows of none.
func (d *decision) unlistedEnd() (int64, *ending) {
	listed, state := int64(0), d.o.History.State
	if a := d.last(); a != nil {
		listed = a.Number
	}
	if !d.o.History.Known {
		return 0, nil
	}
	if c := state.Latest; c != nil && c.Attempt > listed && c.Trigger == string(v1alpha1.TriggerCompletion) {
		return c.Attempt, ptr.To(completed())
	}
	if end := state.AgentEnd; end != nil && end.Attempt > listed && end.Attempt == state.Attempt {
		return end.Attempt, d.reportedEnding(end.ExitCode, "", *end)
	}
	return 0, nil
}

// catchUpRewind closes a rewind that was carried out in the added attempt or before it:
// each attempt first carries out the operation in progress. Where it went is what its daemon has recorded:
// in the present conversation, which it has made, a message or a time may lead elsewhere. Only of older
// daemons, which recorded none, the target is resolved anew.
func (d *decision) catchUpRewind(attempt int64) {
	r, rewound := NewRewind(d.task), d.o.RewindDone.Found.Rewound
	switch {
	case d.rewinding():
	case r != nil && !handled(d.s, daemonapi.OperationRewind, r.ID) && (d.operationRecorded(daemonapi.OperationDoneKey(daemonapi.OperationRewind, r.ID)) || d.rewindUndone(r.ID)):
		accepted := &v1alpha1.OperationStatus{UndoOf: r.To.UndoOf}
		if rewound == nil {
			accepted, _ = d.resolveRewind(r)
		}
		d.acceptRewind(r, ptr.Deref(accepted, v1alpha1.OperationStatus{}))
	default:
		return
	}
	d.s.Rewind.Attempt = attempt
	if rewound != nil {
		asDone(d.s.Rewind, rewound)
	}
	if d.rewindUndone(d.s.Rewind.ID) {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, v1alpha1.ReasonRewindUndone, "nothing was changed: "+endedUnlisted(attempt))
		return
	}
	d.wentBack(d.s.Rewind, endedUnlisted(attempt), "")
}

// catchUpResume closes a resume that was carried out in the added attempt or before it.
func (d *decision) catchUpResume(attempt int64) {
	r := d.task.Spec.Resume
	switch {
	case d.resuming():
	case r != nil && !handled(d.s, daemonapi.OperationResume, r.ID) && d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, r.ID)):
		d.markHandled(daemonapi.OperationResume, r.ID)
		d.s.Resume = d.newOperation(r.ID, d.resumeRequester())
		if accepted, _ := d.resolveResume(r); accepted != nil {
			d.s.Resume.ToCheckpoint = accepted.ToCheckpoint
		}
		d.recallPhase(r)
	default:
		return
	}
	d.s.Resume.Attempt = attempt
	d.wentBack(d.s.Resume, endedUnlisted(attempt), "")
}

// recallPhase notes in the status of a resume that was carried out which phase it has begun again, so that
// contract and children follow it.
func (d *decision) recallPhase(r *v1alpha1.Resume) {
	if r.Mode != v1alpha1.ResumeRestartPhase {
		return
	}
	if start, b := phaseStart(d.task, d.s.Contract, r); b == nil {
		d.s.Resume.Phase, d.s.Resume.ToCheckpoint = start.Phase, start.Start()
	}
}

// newOperation returns the status of an operation that the status does not list yet.
func (d *decision) newOperation(id, requester string) *v1alpha1.OperationStatus {
	return &v1alpha1.OperationStatus{ID: id, StartTime: ptr.To(metav1.NewTime(d.now)), RequestedBy: requester}
}

// endedUnlisted is the message of an operation whose end only the history store knows.
func endedUnlisted(attempt int64) string {
	return fmt.Sprintf("it ended in attempt %d or before, as the timeline shows; the Kubernetes API has since been restored from an older copy", attempt)
}

// operationRecorded reports whether the history store knows the end of an operation.
func (d *decision) operationRecorded(key string) bool {
	return slices.Contains(d.o.History.State.CompletedOperations, key)
}

// rewindUndone reports whether the history store has the rewind as undone.
func (d *decision) rewindUndone(rewind string) bool {
	return d.operationRecorded(daemonapi.OperationUndoneKey(daemonapi.OperationRewind, rewind))
}
