package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// lostRecords counts the records of the task that are lost for good. While the
// history store cannot be asked it is what was heard last.
func (d *decision) lostRecords() int64 {
	if d.o.History.Known {
		return d.o.History.State.LostRecords
	}
	return d.old.LostRecords
}

// leftOut says that the history lacks output for which it had no room. While the
// history store cannot be asked it is what was heard last.
func (d *decision) leftOut() bool {
	if d.o.History.Known {
		return d.o.History.State.LeftOutRecords > 0
	}
	return d.old.LeftOutRecords > 0
}

// endedAcknowledgement is the number in spec.acknowledge if it covers nothing any more,
// or never did; else 0. Once the history store knows of fewer losses than the status,
// nobody can tell whether those that it finds later are the same. And a number that is
// higher than that of the status was not set as the API demands: the Task was created
// with it.
func (d *decision) endedAcknowledgement() int64 {
	a := d.task.Spec.Acknowledge
	if a == nil || a.LostRecords != d.old.EndedAcknowledgement && a.LostRecords <= d.old.LostRecords && d.lostRecords() >= d.old.LostRecords {
		return 0
	}
	return a.LostRecords
}

// acknowledgedRecords is how many lost records spec.acknowledge covers.
func (d *decision) acknowledgedRecords() int64 {
	if a := d.task.Spec.Acknowledge; a != nil && d.s.EndedAcknowledgement == 0 {
		return a.LostRecords
	}
	return 0
}

// enterGap enters records that are lost for good into the history, once, and that
// somebody has acknowledged them. Their condition is one of its own, so that it hides
// no trouble of now.
func (d *decision) enterGap() {
	d.s.LostRecords, d.s.EndedAcknowledgement = d.lostRecords(), d.endedAcknowledgement()
	d.s.AcknowledgedLostRecords = d.acknowledgedRecords()
	lost, known := d.s.LostRecords, d.s.AcknowledgedLostRecords
	if lost > d.old.LostRecords {
		d.entry(v1alpha1.EventHistoryGap, clew, gapMessage(lost))
	}
	if known > d.old.AcknowledgedLostRecords {
		d.entry(v1alpha1.EventLossAcknowledged, somebody(d.acknowledgeRequester()), fmt.Sprintf("%d of %s acknowledged", known, countLost(lost)))
	}
	d.keepUncounted()
	d.reportGap()
}

// keepUncounted keeps the word of a former version, which told of a loss in the condition
// alone, and without a number.
func (d *decision) keepUncounted() {
	was := d.find(v1alpha1.TaskHistoryComplete)
	if was != nil && d.s.UncountedLoss == nil && was.Reason == v1alpha1.ReasonHistoryGap && d.old.LostRecords == 0 {
		d.s.UncountedLoss = &v1alpha1.UncountedLoss{Time: was.LastTransitionTime, Message: cut(was.Message)}
	}
}

// reportGap computes the condition from what the status tells.
func (d *decision) reportGap() {
	was := d.find(v1alpha1.TaskHistoryComplete)
	incomplete := func(reason, message string) {
		d.condition(v1alpha1.TaskHistoryComplete, metav1.ConditionFalse, reason, message)
	}
	switch lost, known := d.s.LostRecords, d.s.AcknowledgedLostRecords; {
	case !d.o.History.Known && was != nil && was.Reason == v1alpha1.ReasonHistoryBehind: // what was heard last
	case d.behind():
		incomplete(v1alpha1.ReasonHistoryBehind, d.behindMessage())
	case d.s.UncountedLoss != nil:
		incomplete(v1alpha1.ReasonUncountedHistoryGap, d.s.UncountedLoss.Message)
	case lost > known:
		incomplete(v1alpha1.ReasonHistoryGap, gapMessage(lost)+d.endedMessage())
	case d.leftOut():
		incomplete(v1alpha1.ReasonHistoryLimitReached,
			"output of the agent was left out of the history, which had reached its limit: status.leftOutRecords counts the records")
	case lost > 0:
		d.condition(v1alpha1.TaskHistoryComplete, metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged,
			lostMessage(lost)+", which spec.acknowledge covers; its timeline tells where and why")
	case d.o.History.Known:
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskHistoryComplete)
	}
}

// endedMessage says what to do about an acknowledgement that has ended.
func (d *decision) endedMessage() string {
	if d.s.EndedAcknowledgement == 0 {
		return ""
	}
	return "; spec.acknowledge was set before they were counted: take it out before you set it anew"
}

func gapMessage(n int64) string { return lostMessage(n) + "; its timeline tells where and why" }

func lostMessage(n int64) string {
	if n == 1 {
		return "1 record of this task is lost for good"
	}
	return fmt.Sprintf("%d records of this task are lost for good", n)
}

func countLost(n int64) string {
	if n == 1 {
		return "1 lost record"
	}
	return fmt.Sprintf("%d lost records", n)
}
