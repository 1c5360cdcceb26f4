package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// lostRecords returns the number of the task's records that are lost for good. While the
// history store cannot be asked, it is the last known number.
func (d *decision) lostRecords() int64 {
	if d.o.History.Known {
		return d.o.History.State.LostRecords
	}
	return d.old.LostRecords
}

// leftOut reports whether the history lacks output that exceeded its limit. While the
// history store cannot be asked, it is the last known answer.
func (d *decision) leftOut() bool {
	if d.o.History.Known {
		return d.o.History.State.LeftOutRecords > 0
	}
	return d.old.LeftOutRecords > 0
}

// endedAcknowledgement returns the number in spec.acknowledge if it no longer covers any
// loss, or never did; otherwise 0. Once the history store knows of fewer losses than the
// status, it cannot be known whether those found later are the same. And a number higher
// than that in the status was not set in the way the API demands: the Task was created
// with it.
func (d *decision) endedAcknowledgement() int64 {
	a := d.task.Spec.Acknowledge
	if a == nil || a.LostRecords != d.old.EndedAcknowledgement && a.LostRecords <= d.old.LostRecords && d.lostRecords() >= d.old.LostRecords {
		return 0
	}
	return a.LostRecords
}

// acknowledgedRecords returns the number of lost records that spec.acknowledge covers.
func (d *decision) acknowledgedRecords() int64 {
	if a := d.task.Spec.Acknowledge; a != nil && d.s.EndedAcknowledgement == 0 {
		return a.LostRecords
	}
	return 0
}

// updateGap adds an entry for records that are lost for good, once, and one for their
// acknowledgement. They have a condition of their own, so that it hides no current
// problem.
func (d *decision) updateGap() {
	d.s.LostRecords, d.s.EndedAcknowledgement = d.lostRecords(), d.endedAcknowledgement()
	d.s.AcknowledgedLostRecords = d.acknowledgedRecords()
	lost, known := d.s.LostRecords, d.s.AcknowledgedLostRecords
	if lost > d.old.LostRecords {
		d.addEntry(v1alpha1.EventHistoryGap, clew, gapMessage(lost))
	}
	if known > d.old.AcknowledgedLostRecords {
		d.addEntry(v1alpha1.EventLossAcknowledged, actorOf(d.acknowledgeRequester()), fmt.Sprintf("%d of %s acknowledged", known, countLost(lost)))
	}
	d.keepUncountedLoss()
	d.reportGap()
}

// keepUncountedLoss keeps a loss that a former version reported only in the condition, and
// without a number.
func (d *decision) keepUncountedLoss() {
	was := d.findCondition(v1alpha1.TaskHistoryComplete)
	if was != nil && d.s.UncountedLoss == nil && was.Reason == v1alpha1.ReasonHistoryGap && d.old.LostRecords == 0 {
		d.s.UncountedLoss = &v1alpha1.UncountedLoss{Time: was.LastTransitionTime, Message: statusText(was.Message)}
	}
}

// reportGap sets the condition HistoryComplete from the status.
func (d *decision) reportGap() {
	was := d.findCondition(v1alpha1.TaskHistoryComplete)
	incomplete := func(reason, message string) {
		d.setCondition(v1alpha1.TaskHistoryComplete, metav1.ConditionFalse, reason, message)
	}
	switch lost, known := d.s.LostRecords, d.s.AcknowledgedLostRecords; {
	case !d.o.History.Known && was != nil && was.Reason == v1alpha1.ReasonHistoryBehind: // keep the last known answer
	case d.behind() && d.o.History.ContinuedBy != "":
		incomplete(v1alpha1.ReasonHistoryContinued, d.continuedMessage())
	case d.behind():
		incomplete(v1alpha1.ReasonHistoryBehind, d.behindMessage())
	case d.s.UncountedLoss != nil:
		incomplete(v1alpha1.ReasonUncountedHistoryGap, d.s.UncountedLoss.Message)
	case lost > known:
		incomplete(v1alpha1.ReasonHistoryGap, gapMessage(lost)+d.endedMessage())
	case d.leftOut():
		incomplete(v1alpha1.ReasonHistoryLimitReached,
			"the history reached its limit, so output of the agent was left out; status.leftOutRecords counts the records")
	case lost > 0:
		d.setCondition(v1alpha1.TaskHistoryComplete, metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged,
			lostMessage(lost)+", which spec.acknowledge covers; its timeline shows where and why")
	case d.o.History.Known:
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskHistoryComplete)
	}
}

// endedMessage returns what to do about an acknowledgement that has ended; "" if none has.
func (d *decision) endedMessage() string {
	if d.s.EndedAcknowledgement == 0 {
		return ""
	}
	return "; spec.acknowledge was set before they were counted: remove it before you set it again"
}

func gapMessage(n int64) string { return lostMessage(n) + "; its timeline shows where and why" }

func lostMessage(n int64) string {
	if n == 1 {
		return "1 record of this task is permanently lost"
	}
	return fmt.Sprintf("%d records of this task are permanently lost", n)
}

func countLost(n int64) string {
	if n == 1 {
		return "1 lost record"
	}
	return fmt.Sprintf("%d lost records", n)
}
