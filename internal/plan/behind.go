package plan

import (
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The history store may have been put back to an older copy. A daemon sends again
// what the store lacks, but a task at rest has none. What its status tells of its
// latest checkpoint then stands, and says what the store does not have, until a pod
// has compared the two: from then on the store's word counts.

// behind says that the history store lacks what the status tells of, and that it may
// yet be sent again.
func (d *decision) behind() bool {
	return d.o.History.Known && !d.o.History.Deleted && d.lower() && !d.volumeLacks() && !d.caughtUp()
}

// lower says that the history store does not have all that the status tells of: a
// status that was written by a former version tells of no records.
func (d *decision) lower() bool {
	told, state := d.old.LatestCheckpoint, d.o.History.State
	return state.LastSequence < d.old.RecordSequence || told != nil && (state.Latest == nil || state.Latest.Number < told.Number)
}

// volumeLacks says that the pod of the newest attempt was prepared on a volume that
// did not have the records that the status tells of either. That a store lacks them
// which that pod was compared with says nothing: it may have been put back since. What
// the attempt itself has recorded its volume has.
func (d *decision) volumeLacks() bool {
	n := len(d.old.Attempts)
	if !d.o.History.Known || d.o.History.Deleted || n == 0 || d.old.Attempts[n-1].Number <= d.old.RecordAttempt {
		return false
	}
	v := d.views[d.old.Attempts[n-1].Number]
	if v == nil || v.prepare == nil || v.prepare.ExitCode != 0 {
		return false
	}
	has := prepareResult(v.prepare).VolumeSequence
	return has != nil && *has < d.old.RecordSequence
}

// caughtUp says that the history store has all records that the status tells of, and
// a pod that is active was prepared with it: it has no others to wait for. (A status
// that was written by a former version tells of no records.)
func (d *decision) caughtUp() bool {
	n := len(d.old.Attempts)
	if n == 0 || d.old.Attempts[n-1].Outcome != "" || d.old.RecordAttempt == 0 || d.o.History.State.LastSequence < d.old.RecordSequence {
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
	lacks := "the history store was put back to an older copy: "
	if d.active() != nil && d.o.Claim != nil && !d.volumeLacks() {
		// How much it still lacks would be a write for each batch that it is sent.
		return lacks + "the task's pod sends again what it lacks, as far as the task's volume has that"
	}
	lacks += d.lacks()
	switch {
	case d.volumeLacks():
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
