package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// A task that has finished gives back what it occupies, or is deleted, some time later, as
// spec.onFinish says.

// finishDue returns spec.onFinish if the task has finished and its time has come; nil otherwise. It
// plans to decide again at that time. The status says first that the task has finished.
func (d *decision) finishDue() *v1alpha1.OnFinish {
	finish, at := d.task.Spec.OnFinish, d.s.FinishedTime
	if finish == nil || at == nil {
		return nil
	}
	due := at.Add(time.Duration(finish.AfterSeconds) * time.Second)
	if d.old.FinishedTime == nil || d.now.Before(due) {
		d.requeueAt(due)
		return nil
	}
	return finish
}

// noteFinished notes when the task has finished, which is when its condition Succeeded says so and not
// when its last attempt ended: a limit may end it later. It is forgotten when the task goes on.
func (d *decision) noteFinished(succeeded metav1.ConditionStatus) {
	switch {
	case succeeded == metav1.ConditionUnknown, d.active() != nil, d.want() != wantNothing:
		d.s.FinishedTime = nil
	case d.s.FinishedTime == nil:
		d.s.FinishedTime = ptr.To(metav1.NewTime(d.now))
	}
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
	case because == releaseToDelete, because == releaseWithParent:
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
