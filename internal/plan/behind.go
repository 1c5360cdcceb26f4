package plan

import (
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The history store may have been put back to an older copy. A daemon sends again
// what the store lacks, but a task at rest has none. What its status tells of its
// latest checkpoint then stands, and says what the store does not have, until a pod
// has sent it: what its volume does not have either it tells as a gap, which is
// counted, and goes on behind it. From then on the store's word counts.

// behind says that the history store lacks what the status tells of, and that it will
// yet be sent that, or told that it is lost.
func (d *decision) behind() bool {
	return d.o.History.Known && !d.o.History.Deleted && d.lower()
}

// lower says that the history store does not have all that the status tells of.
func (d *decision) lower() bool {
	told, state := d.old.LatestCheckpoint, d.o.History.State
	if d.old.RecordSequence > 0 || told == nil {
		return state.LastSequence < d.old.RecordSequence
	}
	// A status that was written by a former version tells of no records.
	return state.Latest == nil || state.Latest.Number < told.Number
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
	lacks := "the history store was put back to an older copy: "
	if d.active() != nil && d.o.Claim != nil {
		// How much it still lacks would be a write for each batch that it is sent.
		return lacks + "the task's pod sends again what it lacks, as far as the task's volume has that"
	}
	lacks += d.lacks()
	if d.o.Claim == nil {
		return lacks + "; the rest went with the task's volume, and the task's next pod counts what is lost"
	}
	lacks += "; the task's volume keeps the rest for a while, and the next pod sends it again: "
	if s := d.settled(); s != nil && s.reason == v1alpha1.ReasonCompleted {
		return lacks + "rewind the task to its latest checkpoint for that"
	}
	return lacks + "resume the task for that"
}
