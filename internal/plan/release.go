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
// volume held, and the gitstore every checkpoint. The last one is verified there for this release, and
// the others are looked for: what is known from before may be older than the gitstore is by now.

// Stored is what else is known of the checkpoints that a release depends on. It is asked for when
// Plan.Inspect names the last one.
type Stored struct {
	// Known is false while the history store was not or cannot be asked.
	Known bool
	// Checkpoint is the record, with what is known of its integrity.
	Checkpoint history.Checkpoint
	// Unpushed are checkpoints of the task that only its volume may have, and Damaged those that only
	// its volume may heal; of each, the first ones.
	Unpushed, Damaged []int64
}

// verifiedFor is how long it counts that a checkpoint was verified for a release: the manager may have
// been away since.
const verifiedFor = 10 * time.Minute

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
	// Whatever else holds the volume, it is verified once more when nothing else does.
	considered := d.s.ReleaseConsideredTime
	d.s.ReleaseConsideredTime = nil
	if because == releaseNothing {
		d.forgetPendingRelease()
		return
	}
	hold, told := d.releaseHold(because, considered)
	switch {
	case hold != nil:
		d.s.DeletionRequestedTime = nil
		d.setCondition(v1alpha1.TaskVolumeReleased, metav1.ConditionFalse, hold.Reason, hold.Message)
	case !told:
		d.s.ReleaseConsideredTime = considered
	case because == releaseToDelete:
		d.s.ReleaseConsideredTime = considered // the deletion may have to be tried again
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
	releaseWithParent
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
	if d.goesWithParent() {
		if d.s.IsReleased() && d.volume() == nil {
			return releaseNothing
		}
		return releaseWithParent
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

// releaseHold returns why the volume is kept for now; nil if it is not. known is false while that cannot
// be found out, and what the status says then stays. considered is when the last checkpoint began to be
// waited for; nil if it has not.
func (d *decision) releaseHold(because releaseReason, considered *metav1.Time) (hold *Blocker, known bool) {
	for i := range d.o.Pods {
		if v := inspect(&d.o.Pods[i]); !v.finished && !d.leftBehind(v.pod) {
			return held("the volume is kept until pod %s has terminated; if its node will not come back, delete the pod with --force", v.pod.Name), true
		}
	}
	if because != releaseSuspended {
		if hold := d.publishHold(because); hold != "" {
			return held("%s", hold), true
		}
	}
	if because == releaseWithParent || because == releaseToDelete {
		if hold := d.childrenHold(); hold != nil {
			return hold, true
		}
	}
	switch {
	case d.volume() == nil:
		return nil, true
	case !d.o.History.Known:
		return nil, false
	case d.o.History.Deleted, d.o.History.ContinuedBy != "":
		return held("the volume is kept, since the history of this Task was deleted or belongs to a later Task: nothing of it can be restored"), true
	case d.behind():
		return held("the volume is kept, since the history store lacks records that only the volume may have: to have them sent, resume the task"), true
	case d.nothingDone():
		return nil, true
	}
	if hold := d.storedHold(); hold != nil {
		return hold, true
	}
	return d.verifiedHold(considered)
}

// held is what a release waits for.
func held(format string, args ...any) *Blocker {
	return &Blocker{Reason: v1alpha1.ReasonReleasePending, Message: fmt.Sprintf(format, args...)}
}

// storedHold returns why the volume is kept although no pod uses it: what it may have that is nowhere
// else.
func (d *decision) storedHold() *Blocker {
	const drains = ": resume the task, and it is sent when the task is suspended or ends the next time"
	latest := d.o.History.State.Latest
	switch {
	case latest == nil:
		return held("the volume is kept, since the task has no checkpoint to restore its work from")
	case !d.drained():
		return held("the volume is kept, since it may have records and files that are nowhere else: its last pod has not said that it had sent everything" + drains)
	case latest.Lost:
		return held("the volume is kept, since checkpoint %d is lost"+drains, latest.Number)
	case latest.Refused != "":
		return held("the volume is kept, since the gitstore refuses checkpoint %d; the condition Durable of its object says why", latest.Number)
	case !latest.Durable:
		return held("the volume is kept, since the gitstore does not have checkpoint %d"+drains, latest.Number)
	}
	return nil
}

// verifiedHold asks for what is not known of the checkpoints, has the last one verified, and returns why
// the volume is kept.
func (d *decision) verifiedHold(considered *metav1.Time) (hold *Blocker, known bool) {
	number, stored := d.o.History.State.Latest.Number, d.o.Stored
	if !stored.Known || stored.Checkpoint.Number != number {
		d.plan.Inspect = number
		return nil, false
	}
	switch integrity := stored.Checkpoint.Integrity; {
	case len(stored.Unpushed) > 0:
		return held("the volume is kept, since only it has checkpoint %d; the condition Durable of its object says why", stored.Unpushed[0]), true
	case integrity.Damage != "":
		return held("the volume is kept, since checkpoint %d is damaged (%s): restore the gitstore from a backup, or resume the task until it has another checkpoint", number, Damage(integrity)), true
	case len(stored.Damaged) > 0:
		return held("the volume is kept, since checkpoint %d is damaged in the gitstore, and the volume may have what it lacks: resume the task, which heals it; to give it up, delete the PersistentVolumeClaim %s", stored.Damaged[0], d.volume().Name), true
	case !d.verifiedSince(considered, integrity.Requests):
		return held("the volume is kept until checkpoint %d is verified in the gitstore", number), true
	}
	return nil, true
}

// verifiedSince reports whether a checkpoint was verified since the release is considered, and a short
// time ago. Otherwise it has that done, once the status says since when it is waited for.
func (d *decision) verifiedSince(considered *metav1.Time, requests history.Requests) bool {
	if considered == nil || requests.Answered.Equal(considered.Time) && requests.Age > verifiedFor {
		considered = ptr.To(metav1.NewTime(d.now.Truncate(time.Second)))
	}
	if requests.Answered.Equal(considered.Time) {
		return true
	}
	d.s.ReleaseConsideredTime = considered
	if written := d.old.ReleaseConsideredTime; written.Equal(considered) && !requests.Pending.Equal(considered.Time) {
		d.plan.Verify = &Verification{Checkpoint: d.o.History.State.Latest.Number, Since: *considered}
	}
	return false
}

// drained reports whether the history store has every record that the volume held, and the gitstore
// every checkpoint that it accepts: the pod of the newest attempt that has begun has said so. It did when
// its agent had ended, or after it had rewound the task.
func (d *decision) drained() bool {
	state := d.o.History.State
	return state.Attempt > 0 && state.StoredAttempt == state.Attempt
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
	switch because {
	case releaseFinished:
		r.Cause = v1alpha1.ReleasedFinished
		d.addCheckpointEntry(v1alpha1.EventTaskReleased, clew, "the task has finished, and its pods, its volume and most of its Checkpoint objects are deleted, as spec.onFinish says"+d.leftOutFiles(volume), r.Checkpoint)
	case releaseWithParent:
		r.Cause = v1alpha1.ReleasedWithParent
		d.addCheckpointEntry(v1alpha1.EventVolumeReleased, clew, "the volume was released, since the parent "+d.s.Parent.Name+" is to be deleted with its children, as its spec.onFinish says; "+restoredFrom(r.Checkpoint)+d.leftOutFiles(volume), r.Checkpoint)
	default:
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
