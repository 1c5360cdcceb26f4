package plan

import (
	"cmp"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// RewindUndone is what is recorded about the rewind that another one undoes.
type RewindUndone struct {
	// Known is false while the history store cannot be asked.
	Known bool
	Found history.Rewind
}

// CheckpointOf returns the number of the checkpoint that a rewind goes to, if it does not name a
// Checkpoint or a place in the conversation; 0 if it does, or if there is none. Of an undo,
// RewindUndone has to be observed before.
func CheckpointOf(r *v1alpha1.Rewind, o Observed) int64 {
	switch {
	case r.To.CheckpointNumber != nil:
		return *r.To.CheckpointNumber
	case r.To.UndoOf != "" && o.RewindUndone.Known:
		before, _ := before(o.Task, r.To.UndoOf, o.RewindUndone.Found)
		return before.From
	}
	return 0
}

// toBefore resolves a rewind that undoes an earlier one: it goes to the checkpoint from before
// that one, with its scope and paths.
func (d *decision) toBefore(r *v1alpha1.Rewind) (*v1alpha1.OperationStatus, *Blocker) {
	if !d.o.RewindUndone.Known || d.behind() {
		return nil, nil
	}
	undone, b := before(d.task, r.To.UndoOf, d.o.RewindUndone.Found)
	if b != nil {
		return nil, b
	}
	undo := r.DeepCopy()
	undo.Scope, undo.Paths = v1alpha1.RewindScope(undone.Scope), undone.Paths
	if b := cmp.Or(filesBlocker(undo), branchBlocker(undo)); b != nil {
		return nil, b
	}
	s, b := d.toNumber(undo, undone.From)
	if s != nil {
		s.UndoOf, s.Scope, s.Paths = r.To.UndoOf, undo.Scope, undo.Paths
		s.Message = fmt.Sprintf("this undoes the rewind %s", r.To.UndoOf)
	}
	return s, b
}

// before returns what the rewind with an id has done, or why it cannot be undone. What its daemon
// recorded counts; of older daemons, status.rewind may still say it.
func before(task *v1alpha1.Task, id string, recorded history.Rewind) (history.Rewound, *Blocker) {
	rewound := recorded.Rewound
	if s := task.Status.Rewind; rewound == nil && s != nil && s.FromCheckpoint > 0 && s.Scope != "" &&
		(s.ID == id && s.State == v1alpha1.OperationCompleted || s.UndoOf == id && s.State == v1alpha1.OperationPending) {
		rewound = &history.Rewound{Scope: string(s.Scope), Paths: s.Paths, From: s.FromCheckpoint, To: s.ToCheckpoint}
	}
	if rewound == nil {
		return history.Rewound{}, nothingToUndo(task, id, recorded)
	}
	switch v1alpha1.RewindScope(rewound.Scope) {
	case v1alpha1.RewindCode, v1alpha1.RewindConversation, v1alpha1.RewindBoth:
	default:
		return history.Rewound{}, &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"the rewind %s rewound %q, which this version of Clew does not know: rewind to checkpoint %d, which holds the state before it, and give the rewind a new id",
			id, rewound.Scope, rewound.From)}
	}
	if rewound.From < 1 {
		return history.Rewound{}, &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"no checkpoint holds the state before the rewind %s: rewind to one that kubectl clew checkpoint list shows, and give the rewind a new id", id)}
	}
	return *rewound, nil
}

// nothingToUndo returns why a rewind cannot be undone of which nobody knows what it has done.
func nothingToUndo(task *v1alpha1.Task, id string, recorded history.Rewind) *Blocker {
	message := fmt.Sprintf("this task has no rewind with the id %s: name one that kubectl clew timeline shows", id)
	switch s := task.Status.Rewind; {
	case recorded.Completed:
		message = fmt.Sprintf("the rewind %s was carried out by an older version of Clew, which did not record what it rewound: "+
			"rewind to the checkpoint that was taken before it (its trigger is PreRewind)", id)
	case recorded.Failed, s != nil && s.ID == id && s.State != v1alpha1.OperationCompleted, handled(&task.Status, daemonapi.OperationRewind, id):
		message = fmt.Sprintf("there is nothing to undo: the rewind %s was refused or failed, and changed nothing", id)
	}
	return &Blocker{v1alpha1.ReasonInvalidOperation, message + ", and give the rewind a new id"}
}

// pendingUndo returns what a rewind that has to wait keeps of the status of the last rewind,
// which it may be about to undo.
func (d *decision) pendingUndo(r *v1alpha1.Rewind) v1alpha1.OperationStatus {
	last := d.s.Rewind
	if r.To.UndoOf == "" || last == nil || last.ID != r.To.UndoOf || last.State != v1alpha1.OperationCompleted {
		return v1alpha1.OperationStatus{}
	}
	return v1alpha1.OperationStatus{UndoOf: last.ID, Scope: last.Scope, Paths: last.Paths, FromCheckpoint: last.FromCheckpoint, ToCheckpoint: last.ToCheckpoint}
}

// scopeOf returns what a rewind rewinds. A manager of an older release did not write it to the
// status.
func scopeOf(r *v1alpha1.Rewind, s *v1alpha1.OperationStatus) v1alpha1.RewindScope {
	return cmp.Or(s.Scope, r.Scope)
}
