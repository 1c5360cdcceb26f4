package plan

import (
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The history store may have been put back to an older copy. A daemon sends again
// what the store lacks, but a task at rest has none. What its status tells of its
// latest checkpoint then stands, and says what the store does not have, until a pod
// has compared the two: from then on the store's word counts.

// behind says that the history store lacks what the status tells of.
func (d *decision) behind() bool {
	return d.o.History.Known && !d.o.History.Deleted && d.lower() && !d.compared()
}

// lower says that the history store does not have all that the status tells of: a
// status that was written by a former version tells of no records.
func (d *decision) lower() bool {
	told, state := d.old.LatestCheckpoint, d.o.History.State
	return state.LastSequence < d.old.RecordSequence || told != nil && (state.Latest == nil || state.Latest.Number < told.Number)
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

func (d *decision) lacks() string {
	told, latest := d.old.LatestCheckpoint, d.o.History.State.Latest
	switch {
	case told != nil && latest == nil:
		return fmt.Sprintf("it has none of this task's %d checkpoints", told.Number)
	case told != nil && latest.Number < told.Number:
		return fmt.Sprintf("it has this task's history up to checkpoint %d of %d", latest.Number, told.Number)
	}
	return "it lacks this task's newest records"
}

// behindMessage says what the history store lacks, and where that is.
func (d *decision) behindMessage() string {
	lacks := "the history store was put back to an older copy: " + d.lacks()
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
