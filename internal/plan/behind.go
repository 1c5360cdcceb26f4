package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The history store may have been put back to an older copy. A daemon sends again
// what the store lacks, but a task at rest has none. What its status tells of its
// latest checkpoint then stands, and says what the store does not have, until a pod
// has compared the two: from then on the store's word counts.

// behind says that the history store lacks what the status tells of.
func (d *decision) behind() bool {
	told, latest := d.old.LatestCheckpoint, d.o.History.State.Latest
	switch {
	case !d.o.History.Known, d.o.History.Deleted, told == nil, d.compared():
		return false
	case d.lower():
		return true
	}
	durable := meta.IsStatusConditionTrue(d.old.Conditions, v1alpha1.TaskDurable)
	return latest.Number == told.Number && durable && !latest.Durable && !latest.Lost && latest.Refused == ""
}

// lower says that the history store does not have the latest checkpoint.
func (d *decision) lower() bool {
	told, latest := d.old.LatestCheckpoint, d.o.History.State.Latest
	return told != nil && (latest == nil || latest.Number < told.Number)
}

// compared says that the pod of the attempt that is, or was until now, active has
// sent the history store what it lacked, as far as the task's volume had it.
func (d *decision) compared() bool {
	n := len(d.old.Attempts)
	if n == 0 || d.old.Attempts[n-1].Outcome != "" {
		return false
	}
	v := d.views[d.old.Attempts[n-1].Number]
	return v != nil && v.prepare != nil && v.prepare.ExitCode == 0
}

// behindMessage says what the history store lacks, and where that is.
func (d *decision) behindMessage() string {
	lacks := fmt.Sprintf("the history store was put back to an older copy: it has none of this task's %d checkpoints", d.old.LatestCheckpoint.Number)
	if latest := d.o.History.State.Latest; latest != nil {
		lacks = fmt.Sprintf("the history store was put back to an older copy: it has this task's history up to checkpoint %d of %d",
			latest.Number, d.old.LatestCheckpoint.Number)
	}
	switch {
	case d.compared():
		return lacks + "; the rest is lost for good, since the task's volume does not have it either"
	case d.o.Claim == nil:
		return lacks + "; the rest went with the task's volume"
	}
	lacks += "; the task's volume keeps the rest for a while, and the next pod sends it again: "
	if s := d.settled(); s != nil && s.reason == v1alpha1.ReasonCompleted {
		return lacks + "rewind the task to its latest checkpoint for that"
	}
	return lacks + "resume the task for that"
}
