package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// What an agent has called is worth as much as the conversation in which it did. A rewind of that, or a
// resume that goes back in it, takes back what was called after the place to which it goes, and the phases
// of the contract that were entered after it.

// goesBack reports whether the conversation goes back, or may be about to.
func (d *decision) goesBack() bool {
	if d.rewinding() || NewRewind(d.task) != nil || d.resuming() && d.s.Resume.ToCheckpoint != 0 {
		return true
	}
	r := d.task.Spec.Resume
	return r != nil && r.Mode.GoesBack() && !handled(d.s, daemonapi.OperationResume, r.ID)
}

// takenBack reports whether an operation has gone back in the conversation after an attempt, so that it
// took back what the agent of that attempt has called.
func takenBack(s *v1alpha1.TaskStatus, attempt int64) bool {
	later := func(op *v1alpha1.OperationStatus) bool {
		return op != nil && op.State == v1alpha1.OperationCompleted && op.Attempt > attempt
	}
	return later(s.Rewind) && s.Rewind.Scope != v1alpha1.RewindCode || later(s.Resume) && s.Resume.ToCheckpoint != 0
}

// maxPhasesBefore is of how many operations that took phases back the status keeps what was before.
const maxPhasesBefore = 4

// takePhasesBack has a supervisor's contract in the phase again in which it was at the checkpoint to which an
// operation has gone back. What was entered after it has not begun any more, as far as the conversation
// knows: whoever goes there again enters it anew, with another checkpoint. An undo brings the phases back
// that the rewind had taken.
func (d *decision) takePhasesBack(op *v1alpha1.OperationStatus) {
	c := d.s.Contract
	if c == nil || d.task.Spec.Role != v1alpha1.RoleSupervisor || op.Scope == v1alpha1.RewindCode {
		return
	}
	entered, how := phasesBefore(c, op.UndoOf), "as it was before the rewind "+op.UndoOf
	if len(entered) == 0 {
		entered, how = phasesAt(c, op.ToCheckpoint), fmt.Sprintf("as it was at checkpoint %d", op.ToCheckpoint)
	}
	if len(entered) == 0 {
		return
	}
	next := *c
	d.keepPhases(&next, op)
	next.Entered = entered
	d.s.Contract = &next
	last := entered[len(entered)-1]
	if last.Phase == c.Phase {
		return
	}
	next.Phase, next.Since = last.Phase, ptr.To(metav1.NewTime(d.now))
	d.addEntry(v1alpha1.EventPhaseChanged, actorOf(op.RequestedBy), fmt.Sprintf(
		"the contract %s is in phase %s again, %s, and no more in %s", c.Name, next.Phase, how, c.Phase))
}

// phasesAt returns the phases that had been entered at a checkpoint; none if that are all.
func phasesAt(c *v1alpha1.ContractStatus, checkpoint int64) []v1alpha1.EnteredPhase {
	i := slices.IndexFunc(c.Entered, func(e v1alpha1.EnteredPhase) bool { return e.Checkpoint > checkpoint })
	if i < 0 {
		return nil
	}
	entered := slices.Clone(c.Entered[:max(i, 1)])
	last := &entered[len(entered)-1]
	last.Checkpoint = min(last.Checkpoint, checkpoint) // the first one that is known began there or before
	return entered
}

// phasesBefore returns the phases as they were before a rewind took some of them back; none if it did not,
// or if that is not known any more.
func phasesBefore(c *v1alpha1.ContractStatus, rewind string) []v1alpha1.EnteredPhase {
	i := slices.IndexFunc(c.Before, func(b v1alpha1.PhasesBefore) bool { return b.Rewind == rewind })
	if i < 0 {
		return nil
	}
	return c.Before[i].Entered
}

// keepPhases keeps, in the new state of the contract, the phases as they are before an operation takes some
// of them back, so that its undo finds them.
func (d *decision) keepPhases(next *v1alpha1.ContractStatus, op *v1alpha1.OperationStatus) {
	id := op.ID
	if op == d.s.Resume {
		id = daemonapi.ResumeRewindID(id)
	}
	before := slices.DeleteFunc(slices.Clone(next.Before), func(b v1alpha1.PhasesBefore) bool { return b.Rewind == id })
	before = append(before, v1alpha1.PhasesBefore{Rewind: id, Entered: next.Entered})
	next.Before = before[max(0, len(before)-maxPhasesBefore):]
}
