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

// acknowledgedRecords is how many of the lost records the task's owner knows of.
func (d *decision) acknowledgedRecords() int64 {
	if a := d.task.Spec.Acknowledge; a != nil {
		return min(a.LostRecords, d.lostRecords())
	}
	return 0
}

// newGap says that more records are lost than the status tells of.
func (d *decision) newGap() bool { return d.lostRecords() > d.old.LostRecords }

// enterGap enters records that are lost for good into the history, once, and that the
// task's owner knows of them. Their condition is one of its own, so that it hides no
// trouble of now.
func (d *decision) enterGap() {
	if d.newGap() {
		d.entry(v1alpha1.EventHistoryGap, clew, gapMessage(d.lostRecords()))
	}
	if n := d.acknowledgedRecords(); n > d.old.AcknowledgedRecords {
		d.entry(v1alpha1.EventLossAcknowledged, somebody(d.acknowledgeRequester()), "the loss of "+records(n)+" is known to the task's owner")
	}
	d.s.LostRecords, d.s.AcknowledgedRecords = d.lostRecords(), d.acknowledgedRecords()
	d.reportGap()
}

func (d *decision) reportGap() {
	was := d.find(v1alpha1.TaskHistoryComplete)
	wasBehind := was != nil && was.Reason == v1alpha1.ReasonHistoryBehind
	incomplete := func(reason, message string) {
		d.condition(v1alpha1.TaskHistoryComplete, metav1.ConditionFalse, reason, message)
	}
	switch lost, known := d.s.LostRecords, d.s.AcknowledgedRecords; {
	case wasBehind && !d.o.History.Known: // what was heard last
	case wasBehind && d.compared() && d.lower():
		d.entry(v1alpha1.EventHistoryGap, clew, d.behindMessage())
		incomplete(v1alpha1.ReasonUncountedHistoryGap, d.behindMessage())
	case d.behind():
		incomplete(v1alpha1.ReasonHistoryBehind, d.behindMessage())
	case was != nil && was.Reason == v1alpha1.ReasonUncountedHistoryGap: // nothing makes it good
	case lost > known:
		incomplete(v1alpha1.ReasonHistoryGap, gapMessage(lost))
	case d.o.History.Known && d.o.History.State.LeftOutRecords > 0:
		incomplete(v1alpha1.ReasonHistoryLimitReached,
			"output of the agent was left out of the history, which had reached its limit: status.leftOutRecords counts the records")
	case lost > 0:
		d.condition(v1alpha1.TaskHistoryComplete, metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged,
			lostMessage(lost)+", as its owner knows; its timeline tells where and why")
	case wasBehind:
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskHistoryComplete)
	}
}

func gapMessage(n int64) string { return lostMessage(n) + "; its timeline tells where and why" }

func lostMessage(n int64) string {
	if n == 1 {
		return "1 record of this task is lost for good"
	}
	return records(n) + " of this task are lost for good"
}

func records(n int64) string {
	if n == 1 {
		return "1 record"
	}
	return fmt.Sprintf("%d records", n)
}
