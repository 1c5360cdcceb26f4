package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// A Task with adopt: Latest takes over the history of the last task of its name before anything
// else is decided. From then on it is like a Task that was restored from an older copy of the
// Kubernetes API and has lost its volume: what the history store knows is caught up with, and
// the work is restored from the gitstore.

// UndecidedAdoption reports whether it has yet to be decided what a new Task adopts.
func UndecidedAdoption(task *v1alpha1.Task) bool {
	s := &task.Status
	return task.Spec.Adopt == v1alpha1.AdoptLatest && s.Adoption == nil && len(s.Attempts) == 0 && task.DeletionTimestamp == nil
}

// WillAdopt returns the names of the Tasks that a Fork may yet make and which adopt.
func WillAdopt(f *v1alpha1.Fork) (names []string) {
	adopts := f.Status.Adoption != nil || f.Status.Source == nil && f.Spec.Adopt == v1alpha1.AdoptLatest
	if !adopts || f.DeletionTimestamp != nil || meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete) {
		return nil
	}
	for _, v := range f.Spec.Variants {
		names = append(names, v.Name)
	}
	return names
}

// grantPause is the time between two looks whether a history has been granted.
const grantPause = 10 * time.Second

// continuedMessage says why a Task cannot start whose history a later one has adopted. That one is
// gone: this Task has its name.
func (d *decision) continuedMessage() string {
	return fmt.Sprintf("a later Task of this name, with UID %s, has adopted the history of this one, which was restored from a copy of before that and cannot be started any more: delete the Task and apply it again with adopt: Latest, and it continues where the later one stood", d.o.History.ContinuedBy)
}

// considerAdoption decides, once, what a new Task continues. It reports whether that is done.
func (d *decision) considerAdoption() bool {
	if !UndecidedAdoption(d.task) {
		return true
	}
	switch found := d.o.Adoption; {
	case !found.Known:
		d.wait(v1alpha1.ReasonHistoryUnavailable, "the history store cannot be reached, which knows whether there is a history to adopt: the task starts when it can")
		d.requeue(d.o.Limits.RetryBase)
		return false
	case found.Former == "" && found.Elsewhere:
		d.wait(v1alpha1.ReasonHistoryNotGranted, fmt.Sprintf("a history of a task named %s is kept, but it belongs to an earlier namespace of this one's name: the task starts when an administrator has granted it (historyGrants in the values of Clew's chart); to start anew, set adopt: Never", d.task.Name))
		d.requeue(grantPause)
		return false
	case found.Former != "" && !d.madeForSameFork(found.Start):
		d.s.Adoption = &v1alpha1.AdoptionStatus{Message: otherFork(d.task.Name, ForkOf(d.task), found.Start)}
		d.addEntry(v1alpha1.EventNothingAdopted, actorOf(d.adoptRequester()), d.s.Adoption.Message)
		return true
	case found.Former == "":
		d.s.Adoption = &v1alpha1.AdoptionStatus{Message: fmt.Sprintf("no history of a former task named %s is kept in this namespace: the task starts anew", d.task.Name)}
		d.addEntry(v1alpha1.EventNothingAdopted, actorOf(d.adoptRequester()), d.s.Adoption.Message)
		return true
	case found.Code != nil:
		d.wait(v1alpha1.ReasonPending, d.codeWaits(*found.Code))
		d.requeue(d.o.Limits.RetryBase)
		return false
	case !found.Done:
		d.plan.Adopt = found.Former
		d.wait(v1alpha1.ReasonPending, "the history of a former task is being adopted")
		d.requeue(0)
		return false
	case d.adoptsPhase() && !d.o.Contract.Room:
		full := contractFull(d.task.Spec.Contract.Name)
		d.wait(full.Reason, full.Message)
		return false
	default:
		d.adopted(found.Former)
		return true
	}
}

// codeWaits says why a task waits for the checkpoints of what it has adopted. It keeps the first message
// of a reason: the gitstore's has numbers that change with every try, and each change would be a write.
func (d *decision) codeWaits(p CodeProblem) string {
	const waits = "the task waits for the checkpoints of the former one: the gitstore "
	if p.Reason == "" {
		return waits + "does not answer, or has not finished"
	}
	refuses := waits + "refuses to give them: " + p.Reason + ": "
	if c := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded); c != nil && strings.HasPrefix(c.Message, refuses) {
		return c.Message
	}
	return refuses + p.Message
}

// madeForSameFork reports whether a task that is made for a Fork may continue a former one: not if
// that was made for another Fork, or for none. Any other task may.
func (d *decision) madeForSameFork(start history.Start) bool {
	fork := ForkOf(d.task)
	return fork == nil || SameFork(fork.Name, fork.From, start)
}

// otherFork says why a task that is made for a Fork does not continue the last one of its name.
func otherFork(name string, fork *v1alpha1.ForkOrigin, start history.Start) string {
	if fork.Name != start.Fork {
		return fmt.Sprintf("the last task named %s was not made for a Fork named %s: the task starts from its source", name, fork.Name)
	}
	return fmt.Sprintf("the last task named %s was forked from %s, and the Fork %s asks for %s: the task starts from its source", name, start.From, fork.Name, fork.From)
}

// maxEarlier is how many tasks are named whose history a former one had continued.
const maxEarlier = 16

// adopted reports what was adopted, and takes over which operations were carried out.
func (d *decision) adopted(former string) {
	through := "which had no checkpoint"
	if latest := d.o.History.State.Latest; latest != nil {
		through = fmt.Sprintf("with its checkpoints up to %d", latest.Number)
	}
	d.s.Adoption = &v1alpha1.AdoptionStatus{
		TaskUID: former, EarlierTaskUIDs: d.o.Adoption.Earlier[:min(len(d.o.Adoption.Earlier), maxEarlier)],
		Message: fmt.Sprintf("the task continues the history of the former task with UID %s, %s", former, through),
	}
	d.addEntry(v1alpha1.EventTaskAdopted, actorOf(d.adoptRequester()), d.s.Adoption.Message)
	for _, key := range d.o.History.State.CompletedOperations {
		kind, rest, _ := strings.Cut(key, "/")
		id, ended := strings.CutSuffix(rest, "/done")
		switch {
		case kind == daemonapi.OperationRewind && ended, kind == daemonapi.OperationResume && !strings.Contains(rest, "/"):
			d.takeOver(kind, id)
		}
	}
	d.adoptSource()
	d.adoptPhase()
	d.adoptRewind()
	d.adoptResume()
}

// adoptSource takes over from where the former task had started. The source itself is not needed any
// more, and may be gone.
func (d *decision) adoptSource() {
	if start := d.o.Adoption.Start; d.task.Spec.StartFrom != nil && start.TaskUID != "" {
		d.s.Source = &v1alpha1.SourceStatus{TaskUID: start.TaskUID, Checkpoint: start.Checkpoint, Commit: start.Commit, Position: start.Position}
	}
}

// OperationKeys are the keys under which the history store knows the operations in the spec.
func OperationKeys(task *v1alpha1.Task) (keys []string) {
	if r := task.Spec.Resume; r != nil {
		keys = append(keys, daemonapi.OperationKey(daemonapi.OperationResume, r.ID))
	}
	if r := task.Spec.Rewind; r != nil {
		keys = append(keys, daemonapi.OperationDoneKey(daemonapi.OperationRewind, r.ID), daemonapi.OperationUndoneKey(daemonapi.OperationRewind, r.ID))
	}
	return keys
}

// carriedOut is the message of an operation that the former task has carried out.
const carriedOut = "it was carried out by the former task that this one continues"

// adoptRewind closes the rewind in the spec if the former task has ended it. It leads no children: those of
// then have followed the former task, and when it ended is not known.
func (d *decision) adoptRewind() {
	r := d.task.Spec.Rewind
	if r == nil {
		return
	}
	undone := slices.Contains(d.o.Adoption.Operations, daemonapi.OperationUndoneKey(daemonapi.OperationRewind, r.ID))
	if !undone && !slices.Contains(d.o.Adoption.Operations, daemonapi.OperationDoneKey(daemonapi.OperationRewind, r.ID)) {
		return
	}
	d.takeOver(daemonapi.OperationRewind, r.ID)
	d.s.Rewind = d.newOperation(r.ID, d.rewindRequester(r))
	if undone {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, v1alpha1.ReasonRewindUndone, "nothing was changed: "+carriedOut)
		return
	}
	d.closeOperation(d.s.Rewind, v1alpha1.OperationCompleted, "", carriedOut)
}

// adoptResume closes the resume in the spec if the former task has carried it out.
func (d *decision) adoptResume() {
	r := d.task.Spec.Resume
	if r == nil || !slices.Contains(d.o.Adoption.Operations, daemonapi.OperationKey(daemonapi.OperationResume, r.ID)) {
		return
	}
	d.takeOver(daemonapi.OperationResume, r.ID)
	d.s.Resume = d.newOperation(r.ID, d.resumeRequester())
	d.closeOperation(d.s.Resume, v1alpha1.OperationCompleted, "", carriedOut)
}

// takeOver marks an operation of the former task as handled, as the newest one.
func (d *decision) takeOver(kind, id string) {
	key := daemonapi.OperationKey(kind, id)
	d.s.HandledOperations = slices.DeleteFunc(d.s.HandledOperations, func(k string) bool { return k == key })
	d.markHandled(kind, id)
}
