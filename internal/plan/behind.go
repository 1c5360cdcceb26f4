package plan

import (
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// The history store may have been restored from an older copy. A daemon sends again what
// the store lacks, but a task at rest has no daemon. Its status then keeps what it says
// about the latest checkpoint, and a condition says what the store lacks, until a pod has
// sent it. What the volume does not have either, the pod reports as a gap, which is
// counted, and continues after it. From then on the store's answer counts.

// behind reports whether the history store lacks records that the status knows of. A pod
// will send them again, or report them as lost.
func (d *decision) behind() bool {
	return d.o.History.Known && !d.o.History.Deleted && d.storeLags()
}

// storeLags reports whether the history store does not have everything that the status
// knows of.
func (d *decision) storeLags() bool {
	return Lags(d.old, d.o.History.State)
}

// Lags reports whether the history store's answer lacks something that a task's status knows
// of.
func Lags(status *v1alpha1.TaskStatus, state history.TaskState) bool {
	known := status.LatestCheckpoint
	if status.RecordSequence > 0 || known == nil {
		return state.LastSequence < status.RecordSequence
	}
	// A status written by a former version has no sequence number of records.
	return state.Latest == nil || state.Latest.Number < known.Number
}

// missing describes what the history store lacks.
func (d *decision) missing() string {
	known, latest := d.old.LatestCheckpoint, d.o.History.State.Latest
	switch {
	case known != nil && latest == nil:
		return fmt.Sprintf("it has none of this task's %d checkpoints", known.Number)
	case known != nil && latest.Number < known.Number:
		return fmt.Sprintf("it has this task's history up to checkpoint %d of %d", latest.Number, known.Number)
	}
	return "it lacks this task's newest records"
}

// behindMessage says what the history store lacks, and how it gets that again.
func (d *decision) behindMessage() string {
	message := "the history store was restored from an older copy: "
	if d.active() != nil && d.o.Claim != nil {
		// Saying how much is missing would cost a write for each batch that is sent.
		return message + "the task's pod resends what the store lacks, if the task's volume still has it"
	}
	message += d.missing()
	if d.s.IsReleased() {
		return message + "; the rest went with the task's volume, which was released, and the task's next pod counts what is lost"
	}
	if d.o.Claim == nil {
		return message + "; the rest was lost with the task's volume, and the task's next pod counts what is lost"
	}
	message += "; the task's volume keeps the rest for some time, and the next pod resends it: "
	if s := d.settled(); s != nil && s.reason == v1alpha1.ReasonCompleted {
		return message + "to have it sent, resume the task with a prompt, or rewind it to its latest checkpoint"
	}
	return message + "to have it sent, resume the task"
}
