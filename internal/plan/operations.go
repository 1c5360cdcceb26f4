package plan

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/reason"
)

// maxHandled is the number of handled operations the status remembers.
const maxHandled = 100

// handled reports whether the operation was accepted, refused or not applicable before.
func handled(s *v1alpha1.TaskStatus, kind, id string) bool {
	return slices.Contains(s.HandledOperations, daemonapi.OperationKey(kind, id))
}

// markHandled records that the operation was accepted, refused or not applicable. Of too many
// the oldest is dropped, but not one that is still requested: it would be carried out again.
func (d *decision) markHandled(kind, id string) {
	d.s.HandledOperations = append(d.s.HandledOperations, daemonapi.OperationKey(kind, id))
	requested := requestedOperations(&d.task.Spec, d.s)
	for len(d.s.HandledOperations) > maxHandled {
		oldest := slices.IndexFunc(d.s.HandledOperations, func(key string) bool { return !slices.Contains(requested, key) })
		d.s.HandledOperations = slices.Delete(d.s.HandledOperations, oldest, oldest+1)
	}
}

// requestedOperations returns the keys of the operations that are requested.
func requestedOperations(spec *v1alpha1.TaskSpec, s *v1alpha1.TaskStatus) (keys []string) {
	for _, r := range requestedRewinds(spec, s) {
		keys = append(keys, daemonapi.OperationKey(daemonapi.OperationRewind, r.ID))
	}
	if spec.Resume != nil {
		keys = append(keys, daemonapi.OperationKey(daemonapi.OperationResume, spec.Resume.ID))
	}
	return keys
}

// passOverOperations records that the operations of a new Task are not applicable: they were
// requested of a former Task, whose manifest was applied again.
func (d *decision) passOverOperations() {
	decided := d.old.Adoption == nil && d.s.Adoption != nil // just now; it may have been waited for
	switch {
	case decided && d.s.Adoption.TaskUID != "":
		return
	case decided:
	case d.old.ObservedGeneration != 0 || len(d.old.Attempts) > 0:
		return
	}
	const message = "the Task was created with this %s, and a new Task has nothing to %s: it is never carried out; to request one, give it a new id"
	if r := d.task.Spec.Rewind; r != nil && !handled(d.s, daemonapi.OperationRewind, r.ID) {
		d.s.Rewind = d.passOver(daemonapi.OperationRewind, r.ID, d.rewindRequester(r), fmt.Sprintf(message, "rewind", "rewind"))
	}
	if r := d.task.Spec.Resume; r != nil && !handled(d.s, daemonapi.OperationResume, r.ID) {
		d.s.Resume = d.passOver(daemonapi.OperationResume, r.ID, d.resumeRequester(), fmt.Sprintf(message, "resume", "resume"))
	}
}

// passOver records an operation as not applicable, and returns its status.
func (d *decision) passOver(kind, id, requester, message string) *v1alpha1.OperationStatus {
	d.markHandled(kind, id)
	d.addEntry(v1alpha1.EventNotApplicable, actorOf(requester), fmt.Sprintf("%s %s is not applicable: %s", kind, id, message))
	op := d.newOperation(id, requester)
	d.closeOperation(op, v1alpha1.OperationNotApplicable, "", message)
	return op
}

// atRest reports whether the stored status has the task as suspended or ended, without
// having completed.
func (d *decision) atRest() bool {
	c := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	if c == nil || c.Status == metav1.ConditionTrue {
		return false
	}
	return c.Status == metav1.ConditionFalse ||
		reason.Find(c.Reason).Standing == reason.Resting
}

// closeOperation sets the final state of an operation.
func (d *decision) closeOperation(op *v1alpha1.OperationStatus, state v1alpha1.OperationState, reason, message string) {
	op.State, op.Reason, op.Message = state, reason, statusText(message)
	op.EndTime = ptr.To(metav1.NewTime(d.now))
	if led := d.s.SetRewind; led != nil && op == d.s.Rewind && op.ID == led.ID {
		d.endSetRewind(led, op)
	}
}

// endSetRewind notes that a supervisor's rewind that takes children along has ended. One that has failed took
// none: an undo is of what led them before.
func (d *decision) endSetRewind(led *v1alpha1.SetRewind, op *v1alpha1.OperationStatus) {
	if op.State != v1alpha1.OperationCompleted && led.Former != nil {
		d.s.SetRewind = &v1alpha1.SetRewind{LedRewind: *led.Former}
		return
	}
	next := *led
	next.State, next.EndTime, next.Former = op.State, op.EndTime, nil
	d.s.SetRewind = &next
}

// carryOutIn notes the attempt that is to carry out an operation. The history, which has its end under a key, may
// know that the last one has done so, though nobody has seen its pod: this one reports that. If the status is of
// a copy from before it was accepted, the newest attempt that the history knows has done so, or one before.
func (d *decision) carryOutIn(attempt int64, op *v1alpha1.OperationStatus, key string) {
	if op.MovedIn == 0 && d.operationRecorded(key) {
		op.MovedIn = cmp.Or(op.Attempt, d.o.History.State.Attempt)
	}
	op.Attempt = attempt
}

// operation returns what prepare carries out in the given attempt; nil for nothing.
func (d *decision) operation(attempt int64) *daemonapi.Operation {
	if d.rewinding() && d.s.Rewind.Attempt == attempt {
		return d.rewindOperation()
	}
	if r := d.task.Spec.Resume; d.resuming() && d.s.Resume.Attempt == attempt && r != nil && r.ID == d.s.Resume.ID {
		return d.resumeOperation(r)
	}
	return nil
}

// prompt returns the prompt of the last resume that is or was carried out; "" if it had none, or if a
// rewind undoes it.
func (d *decision) prompt() string {
	r, s := d.task.Spec.Resume, d.s.Resume
	if undo := d.s.Rewind; r != nil && undo != nil && undo.UndoOf == daemonapi.ResumeRewindID(r.ID) &&
		(undo.State == v1alpha1.OperationInProgress || undo.State == v1alpha1.OperationCompleted) {
		return ""
	}
	if r == nil || s == nil || r.ID != s.ID || s.State != v1alpha1.OperationInProgress && s.State != v1alpha1.OperationCompleted {
		return ""
	}
	return r.Prompt
}
