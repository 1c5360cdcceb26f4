package plan

import (
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// A rewind may be requested while a resume has yet to be carried out: its pod is still to start, or
// to be replaced. The rewind overtakes it, and the resume is closed when the rewind begins. If it
// remained in progress while the agent works, it would be carried out when the agent's pod is lost,
// and take back the work of hours.

// overtakenMessage is why a resume that a rewind has overtaken is not carried out.
const overtakenMessage = "a rewind was requested before it was carried out: request the resume again after it"

// closeOvertakenResume closes the resume in progress when a rewind begins. Its last pod, which is
// gone, may have carried it out unseen: the history store, which has to be known, would have that.
func (d *decision) closeOvertakenResume() {
	op := d.s.Resume
	if d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, op.ID)) {
		d.completeResume(daemonapi.PrepareResult{})
		return
	}
	d.closeOperation(op, v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation, overtakenMessage)
	d.addEntry(v1alpha1.EventOperationFailed, actorOf(d.s.Rewind.RequestedBy), fmt.Sprintf(
		"resume %s failed (%s): %s", op.ID, v1alpha1.ReasonInvalidOperation, overtakenMessage))
}

// dropOvertakenResume closes a resume that an older manager has left in progress although a rewind
// that was requested later has begun.
func (d *decision) dropOvertakenResume() {
	if !d.resuming() || d.s.Rewind == nil || d.s.Rewind.Attempt <= d.s.Resume.Attempt || !d.o.History.Known {
		return
	}
	accepted := func(kind, id string) int {
		return slices.Index(d.s.HandledOperations, daemonapi.OperationKey(kind, id))
	}
	if accepted(daemonapi.OperationResume, d.s.Resume.ID) < accepted(daemonapi.OperationRewind, d.s.Rewind.ID) {
		d.closeOvertakenResume()
	}
}

// rewindPending reports whether a rewind waits for what a resume cannot bring about. What the history
// store lacks may be with a pod that only a resume starts.
func (d *decision) rewindPending() bool {
	return d.s.Rewind != nil && d.s.Rewind.State == v1alpha1.OperationPending && !d.behind()
}

// resumePending reports whether the resume in the spec was seen, and waits until it can be decided on.
func (d *decision) resumePending() bool {
	r, s := d.task.Spec.Resume, d.s.Resume
	return r != nil && s != nil && r.ID == s.ID && s.State == v1alpha1.OperationPending
}

// overtakeBlocker returns why a rewind cannot begin yet that overtakes a resume; nil if it can.
// Waiting costs nothing: without the history store no pod can be prepared either.
func (d *decision) overtakeBlocker() *Blocker {
	if !d.rewinding() || !d.resuming() || d.o.History.Known {
		return nil
	}
	return &Blocker{v1alpha1.ReasonPending, "waiting for the history store, which knows whether the resume before the rewind was carried out"}
}

// markUnstarted notes that an attempt which was stopped or lost had not carried out its resume, or that no
// node could take its pod, so that another resume replaces it: the agent has not run in it. It may have
// done so while the manager was away; the history store would have the resume.
func (d *decision) markUnstarted(a *v1alpha1.Attempt) {
	if !d.resuming() || !d.o.History.Known || d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, d.s.Resume.ID)) {
		return
	}
	replaced := d.s.Resume.Attempt == 0 && a.Reason == v1alpha1.ReasonReplaced
	if d.s.Resume.Attempt != a.Number && !replaced {
		return
	}
	switch a.Outcome {
	case v1alpha1.AttemptStopped, v1alpha1.AttemptSuspended, v1alpha1.AttemptPodLost, v1alpha1.AttemptNodeLost:
		a.Reason = v1alpha1.ReasonPreparing
	}
}

// resumedIn returns the attempt in which the last resume was carried out; 0 if it was not. Prepare may
// have failed behind it.
func (d *decision) resumedIn() int64 {
	if r := d.s.Resume; r != nil && r.State == v1alpha1.OperationCompleted {
		return r.Attempt
	}
	return 0
}

// withoutAgent reports whether an attempt was to rewind the task or to resume it, and the task is as
// it was before, since the agent has not run.
func withoutAgent(a v1alpha1.Attempt) bool {
	if a.Reason == v1alpha1.ReasonWaitingForApproval {
		return false
	}
	switch a.Outcome {
	case v1alpha1.AttemptPrepareFailed:
		return a.Trigger == v1alpha1.AttemptRewind || a.Trigger == v1alpha1.AttemptResume
	case v1alpha1.AttemptPodLost, v1alpha1.AttemptNodeLost, v1alpha1.AttemptStopped, v1alpha1.AttemptSuspended:
		return a.Trigger == v1alpha1.AttemptRewind && a.Outcome != v1alpha1.AttemptSuspended ||
			a.Trigger == v1alpha1.AttemptResume && a.Reason == v1alpha1.ReasonPreparing
	case v1alpha1.AttemptBlocked, "":
		return a.Trigger == v1alpha1.AttemptRewind
	}
	return false
}
