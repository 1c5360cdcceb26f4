package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

const (
	kindRewind = "Rewind"
	kindResume = "Resume"

	maxHandled = 100
)

// NewRewind is the rewind that has not been taken note of yet; nil for none.
// Its Checkpoint is to be observed before Decide.
func NewRewind(task *v1alpha1.Task) *v1alpha1.Rewind {
	r, s := task.Spec.Rewind, task.Status.Rewind
	if r == nil || handled(&task.Status, kindRewind, r.ID) || (s != nil && s.State == v1alpha1.OperationInProgress) {
		return nil
	}
	return r
}

func handled(s *v1alpha1.TaskStatus, kind, id string) bool {
	return slices.Contains(s.HandledOperations, kind+"/"+id)
}

func (d *decision) markHandled(kind, id string) {
	d.s.HandledOperations = append(d.s.HandledOperations, kind+"/"+id)
	if extra := len(d.s.HandledOperations) - maxHandled; extra > 0 {
		d.s.HandledOperations = d.s.HandledOperations[extra:]
	}
}

// considerRewind accepts or refuses a new rewind. What is accepted is carried
// out whatever happens in between.
func (d *decision) considerRewind() {
	if d.rewinding() {
		d.dropWithdrawnRewind()
	}
	if d.rewinding() || d.task.Spec.Rewind == nil || handled(d.s, kindRewind, d.task.Spec.Rewind.ID) {
		return
	}
	r := d.task.Spec.Rewind
	d.markHandled(kindRewind, r.ID)
	target, refusal := d.rewindTarget(r.To.CheckpointRef.Name)
	if refusal != nil {
		d.s.Rewind = d.refuseOperation(kindRewind, r.ID, refusal.Reason, refusal.Message)
		return
	}
	d.s.Rewind = &v1alpha1.OperationStatus{
		ID: r.ID, State: v1alpha1.OperationInProgress,
		ToCheckpoint: target.Status.Number, ToCommit: target.Status.Commit,
		StartTime: ptr.To(metav1.NewTime(d.now)),
	}
}

// dropWithdrawnRewind ends a rewind whose request is no longer in the spec and
// that no pod has begun. (One that has begun is finished by its journal.)
func (d *decision) dropWithdrawnRewind() {
	r := d.task.Spec.Rewind
	if (r == nil || r.ID != d.s.Rewind.ID) && d.s.Rewind.Attempt == 0 {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation, "it was withdrawn before it began")
	}
}

// rewindTarget is the Checkpoint to go back to, or why that cannot be.
func (d *decision) rewindTarget(name string) (*v1alpha1.Checkpoint, *Hindrance) {
	c := d.o.RewindTarget
	switch {
	case c == nil:
		return nil, &Hindrance{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"there is no Checkpoint %q in this namespace: name one of this task's checkpoints and give the rewind a new id", name)}
	case c.Spec.TaskRef.Name != d.task.Name || (c.Status.TaskUID != "" && c.Status.TaskUID != string(d.task.UID)):
		return nil, &Hindrance{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf(
			"Checkpoint %q is not of this task: name one of this task's checkpoints and give the rewind a new id", name)}
	case meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact):
		return nil, &Hindrance{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"Checkpoint %q was found damaged: go back to another one, and give the rewind a new id", name)}
	case c.Status.Number == 0 || c.Status.Commit == "":
		return nil, &Hindrance{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"Checkpoint %q has not been taken yet: wait until it is Ready, and give the rewind a new id", name)}
	}
	return c, nil
}

// considerResume accepts or refuses a new resume; it waits for a rewind, and
// for a pod that is being stopped.
func (d *decision) considerResume() {
	r := d.task.Spec.Resume
	if r == nil || handled(d.s, kindResume, r.ID) || d.rewinding() {
		return
	}
	a := d.active()
	if a != nil && a.Reason == v1alpha1.ReasonSuspending {
		return
	}
	d.markHandled(kindResume, r.ID)
	refuse := func(message string) {
		d.s.Resume = d.refuseOperation(kindResume, r.ID, v1alpha1.ReasonInvalidOperation, message)
	}
	settled := d.settled()
	switch {
	case d.suspended():
		refuse("operatingMode is Suspended: set it to Running in the same change, with a new id")
	case a != nil:
		refuse("the task is running: suspend it first, or wait until it has stopped, and give the resume a new id")
	case settled != nil && settled.reason == v1alpha1.ReasonCompleted:
		refuse("a completed task has nothing left to resume: rewind it to a checkpoint first, or fork it")
	case settled == nil && d.last() != nil && !d.atRest():
		refuse("the task is about to be started again by itself: wait until it has stopped, and give the resume a new id")
	default:
		d.s.Failures = 0
		d.s.Resume = &v1alpha1.OperationStatus{ID: r.ID, State: v1alpha1.OperationInProgress, StartTime: ptr.To(metav1.NewTime(d.now))}
	}
}

// atRest says that the task was last seen asleep.
func (d *decision) atRest() bool {
	c := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	if c == nil || c.Status == metav1.ConditionTrue {
		return false
	}
	return c.Status == metav1.ConditionFalse ||
		slices.Contains([]string{v1alpha1.ReasonSuspended, v1alpha1.ReasonRewound, v1alpha1.ReasonDriftDetected}, c.Reason)
}

func (d *decision) completeRewind(from, to int64, preserved string) {
	op := d.s.Rewind
	op.FromCheckpoint, op.Preserved = from, preserved
	if to != 0 {
		op.ToCheckpoint = to
	}
	message := fmt.Sprintf("the task was taken back to checkpoint %d", op.ToCheckpoint)
	if from != 0 {
		message += fmt.Sprintf("; checkpoint %d holds what stood before", from)
	}
	if preserved != "" {
		message += ", and so does " + preserved
	}
	d.closeOperation(op, v1alpha1.OperationCompleted, "", message)
	d.entryAt(v1alpha1.EventTaskRewound, d.actor("rewind"), message, op.ToCheckpoint)
}

func (d *decision) closeOperation(op *v1alpha1.OperationStatus, state v1alpha1.OperationState, reason, message string) {
	op.State, op.Reason, op.Message = state, reason, cut(message)
	op.EndTime = ptr.To(metav1.NewTime(d.now))
}

// operation is what prepare of the given attempt has to carry out.
func (d *decision) operation(attempt int64) *daemonapi.Operation {
	if r := d.task.Spec.Rewind; d.rewinding() && d.s.Rewind.Attempt == attempt && r != nil && r.ID == d.s.Rewind.ID {
		branch := r.Branch
		if branch == "" && r.Preserve == v1alpha1.PreserveBranch {
			branch = "clew/before-" + r.ID
		}
		return &daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: r.ID, OnDrift: string(r.OnDrift),
			Checkpoint: d.s.Rewind.ToCheckpoint, Commit: d.s.Rewind.ToCommit,
			Scope: string(r.Scope), Preserve: string(r.Preserve), Branch: branch,
		}
	}
	if r := d.task.Spec.Resume; d.resuming() && d.s.Resume.Attempt == attempt && r != nil && r.ID == d.s.Resume.ID {
		return &daemonapi.Operation{
			Kind: daemonapi.OperationResume, ID: r.ID, Prompt: r.Prompt, OnDrift: string(r.OnDrift),
		}
	}
	return nil
}

// prompt is that of the last resume that was accepted; "" when it had none.
func (d *decision) prompt() string {
	r, s := d.task.Spec.Resume, d.s.Resume
	if r == nil || s == nil || r.ID != s.ID || s.State == v1alpha1.OperationRefused {
		return ""
	}
	return r.Prompt
}
