package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// A task at rest may give its volume back: a suspended one because of workspace.whenSuspended, a
// finished one because of onFinish. The status says so first, by an entry and by the UID of the claim;
// the claim is deleted after that, for as long as it is there, and no pod starts before it is gone.
// It is released only if its loss would lose nothing: the history store has every record that the
// volume held, and the gitstore the last checkpoint, which was verified there.

// Stored is what else is known of the checkpoint that a release depends on. It is asked for when
// Plan.Inspect names a checkpoint.
type Stored struct {
	// Known is false while the history store was not or cannot be asked.
	Known bool
	// Checkpoint is the record, with what is known of its integrity.
	Checkpoint history.Checkpoint
	// Unpushed are checkpoints of the task that only its volume may have, the first of them.
	Unpushed []int64
	// Requested is true if this process has requested that the checkpoint is verified.
	Requested bool
}

// volume returns the task's claim; nil if it has none, or only one that the status says was released.
func (d *decision) volume() *corev1.PersistentVolumeClaim {
	c := d.o.Claim
	if c == nil || c.Name != d.claimName() || !resources.IsOf(c, d.task) || d.s.Released != nil && d.s.Released.ClaimUID == string(c.UID) {
		return nil
	}
	return c
}

// finishRelease deletes what the status says was released: a manager may have been killed before it
// did.
func (d *decision) finishRelease() {
	r, c := d.s.Released, d.o.Claim
	if r == nil || !d.old.IsReleased() {
		return
	}
	d.dropFinishedPods()
	if c != nil && r.ClaimUID == string(c.UID) && resources.IsOf(c, d.task) && c.DeletionTimestamp == nil {
		d.plan.DeleteClaim = r.ClaimUID
	}
}

// considerRelease gives the volume of a task at rest back, and deletes a finished Task, if the spec says
// so and nothing is lost with it. Otherwise the condition VolumeReleased says what is waited for.
func (d *decision) considerRelease() {
	because := d.releaseReason()
	if because != releaseToDelete {
		d.s.DeletionRequestedTime = nil
	}
	if because == releaseNothing {
		d.forgetPendingRelease()
		return
	}
	hold, told := d.releaseHold(because)
	switch {
	case hold != "":
		d.setCondition(v1alpha1.TaskVolumeReleased, metav1.ConditionFalse, v1alpha1.ReasonReleasePending, hold)
	case !told:
	case because == releaseToDelete:
		d.deleteFinished()
	default:
		d.announceRelease(because)
	}
}

// releaseReason is why a task gives its volume back.
type releaseReason int

const (
	releaseNothing releaseReason = iota
	releaseSuspended
	releaseFinished
	releaseToDelete
)

// releaseReason returns why the task is to give its volume back now; releaseNothing if it is not to,
// or has.
func (d *decision) releaseReason() releaseReason {
	if d.active() != nil || d.want() != wantNothing {
		return releaseNothing
	}
	if finish := d.finishDue(); finish != nil && finish.Action == v1alpha1.FinishDelete {
		return releaseToDelete
	} else if finish != nil {
		if r := d.s.Released; d.s.IsReleased() && r.Cause == v1alpha1.ReleasedFinished && d.volume() == nil {
			return releaseNothing
		}
		return releaseFinished
	}
	if d.suspended() && d.task.Spec.Workspace.WhenSuspended == v1alpha1.WhenSuspendedRelease && d.volume() != nil {
		return releaseSuspended
	}
	return releaseNothing
}

// forgetPendingRelease removes the condition of a release that the spec does not ask for any more.
func (d *decision) forgetPendingRelease() {
	if !d.s.IsReleased() {
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskVolumeReleased)
	}
}

// releaseHold returns why the volume is kept for now; "" if it is not. known is false while that cannot
// be found out, and what the status says then stays.
func (d *decision) releaseHold(because releaseReason) (hold string, known bool) {
	for i := range d.o.Pods {
		if v := inspect(&d.o.Pods[i]); !v.finished && !d.leftBehind(v.pod) {
			return fmt.Sprintf("the volume is kept until pod %s has terminated; if its node will not come back, delete the pod with --force", v.pod.Name), true
		}
	}
	if because != releaseSuspended {
		if hold := d.publishHold(because); hold != "" {
			return hold, true
		}
	}
	switch {
	case d.volume() == nil:
		return "", true
	case !d.o.History.Known:
		return "", false
	case d.o.History.Deleted, d.o.History.ContinuedBy != "":
		return "the volume is kept, since the history of this Task was deleted or belongs to a later Task: nothing of it can be restored", true
	case d.behind():
		return "the volume is kept, since the history store lacks records that only the volume may have: to have them sent, resume the task", true
	case d.nothingDone():
		return "", true
	}
	if hold := d.storedHold(); hold != "" {
		return hold, true
	}
	return d.verifiedHold()
}

// storedHold returns why the volume is kept although no pod uses it: what it may have that is nowhere
// else.
func (d *decision) storedHold() string {
	const drains = ": resume the task, and it is sent when the task is suspended or ends the next time"
	latest := d.o.History.State.Latest
	switch {
	case latest == nil:
		return "the volume is kept, since the task has no checkpoint to restore its work from"
	case !d.drained():
		return "the volume is kept, since it may have records and files that are nowhere else, because its last pod ended before it had sent everything" + drains
	case latest.Lost:
		return fmt.Sprintf("the volume is kept, since checkpoint %d is lost", latest.Number) + drains
	case latest.Refused != "":
		return fmt.Sprintf("the volume is kept, since the gitstore refuses checkpoint %d; the condition Durable of its object says why", latest.Number)
	case !latest.Durable:
		return fmt.Sprintf("the volume is kept, since the gitstore does not have checkpoint %d", latest.Number) + drains
	}
	return ""
}

// verifiedHold asks for what is not known of the last checkpoint, and returns why the volume is kept.
func (d *decision) verifiedHold() (hold string, known bool) {
	number, stored := d.o.History.State.Latest.Number, d.o.Stored
	if !stored.Known || stored.Checkpoint.Number != number {
		d.plan.Inspect = number
		return "", false
	}
	switch integrity := stored.Checkpoint.Integrity; {
	case len(stored.Unpushed) > 0:
		return fmt.Sprintf("the volume is kept, since only it has checkpoint %d; the condition Durable of its object says why", stored.Unpushed[0]), true
	case integrity.Damage != "":
		return fmt.Sprintf("the volume is kept, since checkpoint %d is damaged (%s): restore the gitstore from a backup, or resume the task until it has another checkpoint", number, Damage(integrity)), true
	case integrity.Verified.IsZero():
		if !stored.Requested {
			d.plan.Verify = number
		}
		return fmt.Sprintf("the volume is kept until checkpoint %d is verified in the gitstore", number), true
	}
	return "", true
}

// drained reports whether the history store has every record that the volume held. Records are stored in
// their order, and the last ones of a pod are those of its last checkpoint: that it was taken, and
// that the gitstore has it, which the caller has to check.
func (d *decision) drained() bool {
	state := d.o.History.State
	if state.Latest.Attempt != state.Attempt {
		return false
	}
	switch v1alpha1.CheckpointTrigger(state.Latest.Trigger) {
	case v1alpha1.TriggerSuspend, v1alpha1.TriggerCompletion, v1alpha1.TriggerFailure:
		return true
	case v1alpha1.TriggerRewound: // by a pod that ended there; one that went on would have taken another
		i := attemptNumbered(d.s.Attempts, state.Attempt)
		return i >= 0 && d.s.Attempts[i].Outcome == v1alpha1.AttemptRewound && d.s.Attempts[i].Reason == ""
	}
	return false
}

// nothingDone reports whether no agent of the task has ever started, so that its volume holds nothing
// of its own.
func (d *decision) nothingDone() bool {
	state := d.o.History.State
	if state.Latest != nil || state.CheckpointCount > 0 {
		return false
	}
	for _, a := range d.s.Attempts {
		if a.Number <= state.Attempt && a.Outcome != v1alpha1.AttemptBlocked && a.Outcome != v1alpha1.AttemptPrepareFailed {
			return false
		}
	}
	return len(d.s.Attempts) < maxAttempts
}

// announceRelease adds the entry about the release, and plans to delete what was released.
func (d *decision) announceRelease(because releaseReason) {
	r := &v1alpha1.ReleaseStatus{Cause: v1alpha1.ReleasedSuspended, Time: metav1.NewTime(d.now)}
	if former := d.s.Released; former != nil { // it may have released its volume as a suspended task
		r.ClaimUID, r.Checkpoint = former.ClaimUID, former.Checkpoint
	}
	volume := d.volume()
	if volume != nil {
		r.ClaimUID, r.Checkpoint = string(volume.UID), 0
		if latest := d.o.History.State.Latest; latest != nil {
			r.Checkpoint = latest.Number
		}
	}
	if because == releaseFinished {
		r.Cause = v1alpha1.ReleasedFinished
		d.addCheckpointEntry(v1alpha1.EventTaskReleased, clew, "the task has finished, and its pods, its volume and most of its Checkpoint objects are deleted, as spec.onFinish says"+d.leftOutFiles(volume), r.Checkpoint)
	} else {
		d.addCheckpointEntry(v1alpha1.EventVolumeReleased, clew, "the volume was released, as spec.workspace.whenSuspended says; "+restoredFrom(r.Checkpoint)+d.leftOutFiles(volume), r.Checkpoint)
	}
	d.s.Released, d.s.ClaimUID = r, ""
	d.forgetSize()
	message := "the task has no volume; " + restoredFrom(r.Checkpoint)
	d.setCondition(v1alpha1.TaskVolumeReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, message)
	d.setCondition(v1alpha1.TaskWorkspaceReady, metav1.ConditionFalse, v1alpha1.ReasonReleased, message)
	d.dropFinishedPods()
	if volume != nil && volume.DeletionTimestamp == nil {
		d.plan.DeleteClaim = r.ClaimUID
	}
}

// restoredFrom says what a task whose volume was released continues from.
func restoredFrom(checkpoint int64) string {
	if checkpoint == 0 {
		return "a resume makes a new one"
	}
	return fmt.Sprintf("a resume restores checkpoint %d to a new one", checkpoint)
}

// leftOutFiles says how many files go with a volume because the last checkpoint leaves them out; "" if
// none do.
func (d *decision) leftOutFiles(volume *corev1.PersistentVolumeClaim) string {
	latest := d.o.History.State.Latest
	if volume == nil || latest == nil || latest.SkippedCount == 0 {
		return ""
	}
	return fmt.Sprintf("; what checkpoint %d leaves out goes with the volume: %d, which its status lists", latest.Number, latest.SkippedCount)
}

// takeNewVolume ends what the conditions say of a volume that was released.
func (d *decision) takeNewVolume() {
	meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskVolumeReleased)
	if c := d.findCondition(v1alpha1.TaskWorkspaceReady); c != nil && c.Reason == v1alpha1.ReasonReleased {
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskWorkspaceReady)
	}
}

// finishDue returns spec.onFinish if the task has finished and its time has come; nil otherwise. It
// plans to decide again at that time.
func (d *decision) finishDue() *v1alpha1.OnFinish {
	finish, at := d.task.Spec.OnFinish, d.finished()
	if finish == nil || at == nil {
		return nil
	}
	due := at.Add(time.Duration(finish.AfterSeconds) * time.Second)
	if d.now.Before(due) {
		d.requeueAt(due)
		return nil
	}
	return finish
}

// finished returns when the task has completed or failed; nil if it has not.
func (d *decision) finished() *metav1.Time {
	s := d.settled()
	if s == nil || statusOf(s.reason) == metav1.ConditionUnknown {
		return nil
	}
	if i := attemptNumbered(d.s.Attempts, s.attempt); i >= 0 {
		return d.s.Attempts[i].EndTime
	}
	return nil
}

// publishHold returns why a finished task waits for its work to be published; "" if it does not. What
// was refused for good is waited for only if nobody could see that any more.
func (d *decision) publishHold(because releaseReason) string {
	c, p := d.findCondition(v1alpha1.TaskPublished), d.s.Publish
	switch spec := d.publishesItself(); {
	case spec == nil, c == nil, c.Status == metav1.ConditionTrue:
		return ""
	case c.Status == metav1.ConditionUnknown && d.selected(spec) == 0:
		return "" // a task that ended like this publishes nothing
	case c.Status == metav1.ConditionUnknown, p != nil && p.RetryTime != nil:
		return "the task is kept as it is until its work is published; the condition Published says what that waits for"
	case because == releaseToDelete:
		return "the Task is not deleted, since its work was not published; the condition Published says why"
	}
	return ""
}

// deleteFinished plans to delete the Task. The entry comes first, and by the time in the status the
// last entry knows who has deleted it.
func (d *decision) deleteFinished() {
	if d.s.DeletionRequestedTime == nil {
		d.s.DeletionRequestedTime = ptr.To(metav1.NewTime(d.now))
		d.addEntry(v1alpha1.EventTaskReleased, clew, "the task has finished, and the Task is deleted, as spec.onFinish says; its history is kept")
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskVolumeReleased)
	}
	d.plan.DeleteTask = true
}
