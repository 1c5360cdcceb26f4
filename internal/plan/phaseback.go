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

// takePhasesBack has a supervisor's contract in the phase again in which it was at the checkpoint to which an
// operation has gone back. What was entered after it has not begun any more, as far as the conversation
// knows: whoever goes there again enters it anew, with another checkpoint.
func (d *decision) takePhasesBack(op *v1alpha1.OperationStatus) {
	c := d.s.Contract
	if c == nil || d.task.Spec.Role != v1alpha1.RoleSupervisor || op.Scope == v1alpha1.RewindCode {
		return
	}
	i := slices.IndexFunc(c.Entered, func(e v1alpha1.EnteredPhase) bool { return e.Checkpoint > op.ToCheckpoint })
	if i < 0 {
		return
	}
	next := *c
	next.Entered = slices.Clone(c.Entered[:max(i, 1)])
	last := &next.Entered[len(next.Entered)-1]
	last.Checkpoint = min(last.Checkpoint, op.ToCheckpoint) // the first one that is known began there or before
	d.s.Contract = &next
	if last.Phase == c.Phase {
		return
	}
	next.Phase, next.Since = last.Phase, ptr.To(metav1.NewTime(d.now))
	d.addEntry(v1alpha1.EventPhaseChanged, actorOf(op.RequestedBy), fmt.Sprintf(
		"the contract %s is in phase %s again, as it was at checkpoint %d, and no more in %s", c.Name, next.Phase, op.ToCheckpoint, c.Phase))
}
