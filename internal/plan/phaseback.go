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
		return op != nil && op.State == v1alpha1.OperationCompleted && op.DoneIn() > attempt
	}
	return leadsBack(s.Rewind, s.Resume, later)
}

// beingTakenBack reports whether an operation is going back in the conversation after an attempt: once it has, it
// takes back what the agent of that attempt has called.
func beingTakenBack(s *v1alpha1.TaskStatus, attempt int64) bool {
	begun := func(op *v1alpha1.OperationStatus) bool {
		return op != nil && op.State == v1alpha1.OperationInProgress && (op.DoneIn() == 0 || op.DoneIn() > attempt)
	}
	return leadsBack(s.Rewind, s.Resume, begun)
}

// leadsBack reports whether one of the last operations for which is is true goes back in the conversation.
func leadsBack(rewind, resume *v1alpha1.OperationStatus, is func(*v1alpha1.OperationStatus) bool) bool {
	return is(rewind) && rewind.Scope != v1alpha1.RewindCode || is(resume) && resume.ToCheckpoint != 0
}

// wentBack closes an operation that was carried out. If the conversation went back by it, the children and the
// contract follow. named is how an entry of its own names the operation; empty for none.
func (d *decision) wentBack(op *v1alpha1.OperationStatus, message, named string) {
	message += d.leadChildren(op)
	d.closeOperation(op, v1alpha1.OperationCompleted, "", message)
	if named != "" { // an undo names the rewind by its id
		d.addCheckpointEntry(v1alpha1.EventTaskRewound, actorOf(op.RequestedBy), fmt.Sprintf("%s (%s)", message, named), op.ToCheckpoint)
	}
	if op.Phase != "" {
		d.restarted(op)
	} else {
		d.takePhasesBack(op)
	}
}

// takePhasesBack has a supervisor's contract in the phase again in which it was at the checkpoint to which an
// operation has gone back. What was entered after it has not begun any more, as far as the conversation
// knows: whoever goes there again enters it anew, with another checkpoint.
func (d *decision) takePhasesBack(op *v1alpha1.OperationStatus) {
	c := d.s.Contract
	unknown := op.ToCheckpoint == 0 && op.ToPosition == 0 && !d.wentBeforeAll(op) // or it went nowhere
	if c == nil || len(c.Entered) == 0 || d.task.Spec.Role != v1alpha1.RoleSupervisor || op.Scope == v1alpha1.RewindCode || unknown {
		return
	}
	to, last := phaseAt(c, op.ToCheckpoint), c.Entered[len(c.Entered)-1]
	if to.Phase == last.Phase && to.Checkpoint == last.Checkpoint {
		return
	}
	next := *c
	d.noteBackIn(&next, to, op)
	d.s.Contract = &next
	if to.Phase == c.Phase {
		return
	}
	next.Phase, next.Since = to.Phase, ptr.To(metav1.NewTime(d.now))
	d.addEntry(v1alpha1.EventPhaseChanged, actorOf(op.RequestedBy), fmt.Sprintf(
		"the contract %s is in phase %s again, as it was at checkpoint %d, and no more in %s", c.Name, next.Phase, op.ToCheckpoint, c.Phase))
}

// phaseAt returns the phase in which a contract was at a checkpoint: numbers grow with time, whatever branch of
// the conversation they are on.
func phaseAt(c *v1alpha1.ContractStatus, checkpoint int64) v1alpha1.EnteredPhase {
	for _, e := range slices.Backward(c.Entered) {
		if e.Has(checkpoint) {
			return e
		}
	}
	first := c.Entered[0] // the first one that is known began there or before
	first.Checkpoint = min(first.Checkpoint, checkpoint)
	return first
}

// noteBackIn notes in a contract's new status that an operation has led back into a phase. What the daemon did
// not say, since nobody has seen its pod, is about what the status has.
func (d *decision) noteBackIn(contract *v1alpha1.ContractStatus, to v1alpha1.EnteredPhase, op *v1alpha1.OperationStatus) {
	to.At, to.Time = max(op.FromCheckpoint, 1), ptr.To(metav1.NewTime(d.now))
	if latest := d.s.LatestCheckpoint; op.FromCheckpoint == 0 && latest != nil {
		to.At = latest.Number
	}
	if n := len(contract.Entered); n > 0 {
		to.At = max(to.At, contract.Entered[n-1].Checkpoint, contract.Entered[n-1].At)
	}
	logPhase(contract, to)
}

// maxEntered is how many entries the schema allows in the log of a contract's phases.
const maxEntered = 64

// logPhase adds an entry to the log of a contract's phases.
func logPhase(contract *v1alpha1.ContractStatus, e v1alpha1.EnteredPhase) {
	contract.Entered = append(slices.Clone(contract.Entered), e)
	for len(contract.Entered) > maxEntered {
		i := droppablePhase(contract)
		contract.Entered = slices.Delete(contract.Entered, i, i+1)
	}
}

// droppablePhase returns the index of the oldest entry in the log of a contract's phases that was taken back, or
// else entered again since.
func droppablePhase(c *v1alpha1.ContractStatus) int {
	line, older := c.Line(), c.Entered[:len(c.Entered)-1]
	for i := range older {
		if !slices.Contains(line, i) {
			return i
		}
	}
	for i, e := range older {
		if c.Find(e.Phase) > i {
			return i
		}
	}
	return 0
}
