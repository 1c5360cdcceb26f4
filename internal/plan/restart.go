package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/quote"
)

// A resume with the mode RestartPhase takes a supervisor back to where a phase of its contract began. It
// is a resume from the checkpoint with which the phase began. Once the workspace is back there, the
// contract is in that phase again, and status.contract.restart tells the children: those that have not
// finished stop, by themselves, whoever has applied them, until each is resumed.

// phaseStart returns where the phase began that a resume begins again, or why it cannot.
func phaseStart(task *v1alpha1.Task, contract *v1alpha1.ContractStatus, r *v1alpha1.Resume) (v1alpha1.EnteredPhase, *Blocker) {
	switch {
	case task.Spec.Role != v1alpha1.RoleSupervisor:
		return v1alpha1.EnteredPhase{}, &Blocker{v1alpha1.ReasonInvalidOperation,
			"the task is a worker, and only a supervisor leads a contract through phases: resume it with another mode"}
	case contract == nil:
		return v1alpha1.EnteredPhase{}, &Blocker{v1alpha1.ReasonInvalidState, "the task has not entered a phase yet: resume it with the mode Continue"}
	}
	phase := cmp.Or(r.Phase, contract.Phase)
	switch i := contract.Find(phase); {
	case i >= 0:
		return contract.Entered[i], nil
	case phase == contract.Phase:
		return v1alpha1.EnteredPhase{}, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"the contract %s entered the phase %s before Clew noted where phases begin: resume the task with the mode FromCheckpoint, from a checkpoint of that time", contract.Name, phase)}
	}
	return v1alpha1.EnteredPhase{}, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
		"Clew has not noted that the contract %s was in the phase %s: %sset contract.phase to go there", contract.Name, phase, orOneOf(enteredPhases(contract)))}
}

// orOneOf returns the beginning of an advice that names phases; "" for none.
func orOneOf(phases []string) string {
	if len(phases) == 0 {
		return ""
	}
	return "name one of " + strings.Join(phases, ", ") + ", or "
}

// enteredPhases returns the names of the phases that have led to the current one, in that order.
func enteredPhases(contract *v1alpha1.ContractStatus) (names []string) {
	for _, i := range contract.Line() {
		if phase := contract.Entered[i].Phase; contract.Find(phase) == i {
			names = append(names, phase)
		}
	}
	return names
}

// noteEntered notes in a contract's new status with which checkpoint a phase that is entered begins.
func (d *decision) noteEntered(contract *v1alpha1.ContractStatus, phase string, checkpoint int64) {
	logPhase(contract, v1alpha1.EnteredPhase{Phase: phase, Time: ptr.To(metav1.NewTime(d.now)), Checkpoint: checkpoint})
}

// newestCheckpoint returns the number of the task's newest checkpoint as far as is known; 0 for none.
func (d *decision) newestCheckpoint() int64 {
	number := int64(0)
	if known := d.s.LatestCheckpoint; known != nil {
		number = known.Number
	}
	if latest := d.o.History.State.Latest; latest != nil {
		number = max(number, latest.Number)
	}
	return number
}

// ResumeCheckpoint returns the number of the checkpoint that a new resume continues from, if it has to be
// looked up by that; 0 if not.
func ResumeCheckpoint(task *v1alpha1.Task, r *v1alpha1.Resume) int64 {
	if r.Mode == v1alpha1.ResumeRestartPhase {
		start, b := phaseStart(task, task.Status.Contract, r)
		if b != nil {
			return 0
		}
		return start.Start()
	}
	return ptr.Deref(r.CheckpointNumber, 0)
}

// toPhaseStart resolves a resume that begins a phase again.
func (d *decision) toPhaseStart(rewind *v1alpha1.Rewind, r *v1alpha1.Resume) (*v1alpha1.OperationStatus, *Blocker) {
	start, b := phaseStart(d.task, d.s.Contract, r)
	if b != nil {
		return nil, b
	}
	number := start.Start()
	if answer := d.o.ResumeRecord; answer.Found != nil && answer.Found.Number != number {
		return nil, nil // the contract has entered another phase in this decision
	}
	found, b := d.recordOf("resume", number, d.o.ResumeRecord)
	if found == nil {
		return nil, b
	}
	accepted := atCheckpoint(rewind, number, found.Commit, found.Position.Position)
	accepted.Phase = start.Phase
	return accepted, nil
}

// resultsBlocker returns why an attempt that begins a phase again cannot start now; nil if it can. It is
// asked last: to find out what many children have said takes long.
func (d *decision) resultsBlocker() *Blocker {
	r := d.task.Spec.Resume
	if d.rewinding() || !d.resuming() || r == nil || r.ID != d.s.Resume.ID || r.Mode != v1alpha1.ResumeRestartPhase || d.o.Results.Known {
		return nil
	}
	d.plan.InspectResults = true
	return &Blocker{v1alpha1.ReasonPending, "waiting for the history store, which has what the children have said"}
}

// restartPrompt returns what the agent is asked to do when a phase begins again, unless the resume says
// so itself.
func restartPrompt(phase string) string {
	return fmt.Sprintf("The phase %s of the contract begins again. Carry it out from its start.", phase)
}

// restarted follows a resume that has taken the supervisor back to the start of a phase.
func (d *decision) restarted(op *v1alpha1.OperationStatus) {
	next := ptr.Deref(d.s.Contract, v1alpha1.ContractStatus{})
	start := v1alpha1.EnteredPhase{Phase: op.Phase, Checkpoint: op.ToCheckpoint}
	if i := next.Find(op.Phase); i >= 0 {
		start = next.Entered[i]
	}
	d.noteBackIn(&next, start, op) // those after it have not begun any more
	next.Phase, next.Since = op.Phase, ptr.To(metav1.NewTime(d.now))
	next.Restart = &v1alpha1.PhaseRestart{ID: op.ID, Time: d.triedUntil(op), RequestedBy: op.RequestedBy}
	d.s.Contract = &next
	d.addEntry(v1alpha1.EventPhaseChanged, actorOf(op.RequestedBy), fmt.Sprintf(
		"the contract %s begins phase %s again, from checkpoint %d%s", next.Name, op.Phase, op.ToCheckpoint, stopping(unfinished(d.o.Children))))
}

// triedUntil returns until when the try made children that an operation has given up: its last pod was gone when
// the attempt started that carried the operation out. When that was accepted, the agent was yet to be stopped. The
// start of an attempt that only the history knew is not known: the copy from which the children are is older.
func (d *decision) triedUntil(op *v1alpha1.OperationStatus) *metav1.Time {
	for _, a := range d.s.Attempts {
		if a.Number == op.DoneIn() {
			return cmp.Or(a.StartTime, ptr.To(metav1.NewTime(d.now)))
		}
	}
	return op.StartTime
}

// stopping returns the end of a sentence about children that stop; "" if there are none.
func stopping(children []*v1alpha1.Task) string {
	switch n := len(children); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; its child %s, which has not finished, stops", children[0].Name)
	default:
		return fmt.Sprintf("; its %d children that have not finished stop", n)
	}
}

// unfinished returns the children that have neither completed nor failed, by age.
func unfinished(children []v1alpha1.Task) []*v1alpha1.Task {
	return slices.DeleteFunc(byAge(children), func(child *v1alpha1.Task) bool {
		c := succeededOf(child)
		return c != nil && c.Status != metav1.ConditionUnknown
	})
}

// followRestart stops a task whose parent has begun a phase again since it was made, unless it had ended
// by then. It does so once for each such resume of the parent.
func (d *decision) followRestart() {
	parent := d.o.Parent.Task
	if d.s.Parent == nil || parent == nil || string(parent.UID) != d.s.Parent.UID || parent.Status.Contract == nil {
		return
	}
	restart := parent.Status.Contract.Restart
	if restart == nil || restart.ID == d.s.Parent.FollowedRestart {
		return
	}
	next := *d.s.Parent
	next.FollowedRestart = restart.ID
	d.s.Parent = &next
	made := d.task.CreationTimestamp
	if restart.Time == nil || restart.Time.Before(&made) || d.settled() != nil && !d.continues() {
		return
	}
	next.StoppedBy = restart.ID
	d.addEntry(v1alpha1.EventStoppedByParent, actorOf(restart.RequestedBy), d.stoppedMessage())
	if r := d.task.Spec.Resume; r != nil && !handled(d.s, daemonapi.OperationResume, r.ID) {
		d.noteReplacedResume(r)
		d.markHandled(daemonapi.OperationResume, r.ID)
		if !d.resumePending() { // its pod is being suspended, so that nothing is said of it yet
			d.s.Resume = &v1alpha1.OperationStatus{ID: r.ID, RequestedBy: d.resumeRequester()}
		}
		d.failStoppedResume()
	}
}

// continues reports whether a resume is to be carried out, whatever the task has come to before.
func (d *decision) continues() bool { return d.resuming() || d.resumePending() }

// dropStoppedResume closes the resume in progress of a task that its parent has stopped: it was requested
// in the try that was given up. Its last pod, which is gone, may have carried it out unseen.
func (d *decision) dropStoppedResume() {
	if !d.stoppedByParent() || !d.resuming() || d.active() != nil || !d.o.History.Known {
		return
	}
	if d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, d.s.Resume.ID)) {
		d.completeResume(daemonapi.PrepareResult{})
		return
	}
	d.failStoppedResume()
}

// failStoppedResume closes a resume that is not carried out since the parent has stopped the task.
func (d *decision) failStoppedResume() {
	message := fmt.Sprintf("the parent %s has begun its phase again before it was carried out: request it again with a new id", d.s.Parent.Name)
	d.closeOperation(d.s.Resume, v1alpha1.OperationFailed, v1alpha1.ReasonPhaseRestarted, message)
	d.addEntry(v1alpha1.EventOperationFailed, clew, fmt.Sprintf("resume %s failed (%s): %s", d.s.Resume.ID, v1alpha1.ReasonPhaseRestarted, message))
}

// stoppedByParent reports whether a resume of the parent has stopped the task.
func (d *decision) stoppedByParent() bool { return d.s.Parent != nil && d.s.Parent.StoppedBy != "" }

// stoppedMessage says why the task stopped, and what to do.
func (d *decision) stoppedMessage() string {
	return fmt.Sprintf("the parent %s has begun its phase again (resume %s), and the task, which had not finished, is stopped and kept: to continue it, resume it",
		d.s.Parent.Name, d.s.Parent.StoppedBy)
}

// goOnByParent ends the stop by the parent: the task is resumed.
func (d *decision) goOnByParent() {
	if d.stoppedByParent() {
		next := *d.s.Parent
		next.StoppedBy = ""
		d.s.Parent = &next
	}
}

// stayStopped returns why a task that a resume of its parent has stopped does not start; nil if none has.
func (d *decision) stayStopped() *Blocker {
	if !d.stoppedByParent() {
		return nil
	}
	return &Blocker{v1alpha1.ReasonPhaseRestarted, d.stoppedMessage()}
}

const (
	// maxResults is how many finished children a restarted supervisor is told of, the newest ones.
	maxResults = 32
	// maxResult bounds what it is told of what each has said, in bytes, and maxRestartContext the whole.
	maxResult, maxRestartContext = 1 << 10, 16 << 10
)

// Finished returns the children that a restarted supervisor is told of: the newest of those that have
// completed or failed, by age.
func Finished(children []v1alpha1.Task) []*v1alpha1.Task {
	all := slices.DeleteFunc(byAge(children), func(child *v1alpha1.Task) bool {
		c := succeededOf(child)
		return c == nil || c.Status == metav1.ConditionUnknown
	})
	return all[max(0, len(all)-maxResults):]
}

// restartContext tells the agent of a supervisor that begins a phase again what its children have come to,
// the newest ones first.
func (d *decision) restartContext() string {
	var b strings.Builder
	if left := unfinished(d.o.Children); len(left) > 0 {
		b.WriteString("These tasks of yours had not finished, are stopped now, and are kept; task_resume continues one: ")
		for i, child := range left[:min(len(left), maxResults)] {
			fmt.Fprintf(&b, "%s%s", strings.Repeat(", ", min(i, 1)), child.Name)
		}
		b.WriteString(".\n\n")
	}
	finished := Finished(d.o.Children)
	if len(finished) > 0 {
		b.WriteString("These tasks of yours had finished before; their work is kept. " + quote.Notice + "\n")
	}
	for _, child := range slices.Backward(finished) {
		fmt.Fprintf(&b, "\n- %s\n", d.resultOf(child))
	}
	return clip.Marked(strings.TrimSpace(b.String()), maxRestartContext)
}

// resultOf describes what a finished child has come to.
func (d *decision) resultOf(child *v1alpha1.Task) string {
	text := child.Name
	if c := child.Status.Contract; c != nil {
		text += inPhase(c.Phase)
	}
	c, why := succeededOf(child), ""
	if c.Status == metav1.ConditionTrue {
		text += " completed"
	} else {
		text += fmt.Sprintf(" failed (%s)", c.Reason)
		why = c.Message
	}
	if latest := child.Status.LatestCheckpoint; latest != nil {
		text += fmt.Sprintf(" with checkpoint %d", latest.Number)
	}
	if why != "" {
		text += "\nWhy:\n" + quote.Lines(clip.Marked(quote.Line(why), maxResult/4))
	}
	if d.o.Results.Unread[string(child.UID)] {
		text += "\nWhat it said last could not be read: task_history has it."
	} else if said := strings.TrimSpace(d.o.Results.Said[string(child.UID)]); said != "" {
		text += "\nIt said last:\n" + quote.Lines(clip.Marked(said, maxResult))
	}
	return text
}
