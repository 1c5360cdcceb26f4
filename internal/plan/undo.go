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
	if b := cmp.Or(undoneFilesBlocker(undo, undone), branchBlocker(undo), undonePointBlocker(r.To.UndoOf, undone, d.o.RewindRecord)); b != nil {
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
			"the rewind %s rewound %q, which this version of Clew does not know: rewind to checkpoint %d, which holds the state before it, and request the rewind again",
			id, rewound.Scope, rewound.From)}
	}
	if rewound.From < 1 {
		return history.Rewound{}, &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"the rewind %s was recorded without the checkpoint that holds the state before it: rewind to one that kubectl clew checkpoint list shows, and request the rewind again", id)}
	}
	return *rewound, nil
}

// undoneFilesBlocker returns why the files that a rewind was recorded with cannot be rewound
// again; nil if they can. The user has not written them.
func undoneFilesBlocker(undo *v1alpha1.Rewind, undone history.Rewound) *Blocker {
	b := filesBlocker(undo)
	if b == nil {
		return nil
	}
	return &Blocker{b.Reason, fmt.Sprintf(
		"what is recorded of the rewind %s cannot be rewound again: rewind to checkpoint %d, which holds the state before it, and request the rewind again",
		undo.To.UndoOf, undone.From)}
}

// undonePointBlocker returns why the checkpoint from before a rewind cannot be restored; nil if
// it can, or while that is unknown.
func undonePointBlocker(id string, undone history.Rewound, record RewindRecord) *Blocker {
	switch {
	case !record.Known:
		return nil
	case record.Found == nil:
		return &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"the rewind %s cannot be undone: the history has no checkpoint %d, which held the state before it; rewind to one that kubectl clew checkpoint list shows, and request the rewind again", id, undone.From)}
	case record.Found.Lost:
		return &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"the rewind %s cannot be undone: neither the gitstore nor the task's volume has checkpoint %d any more, which held the state before it; rewind to another one, and request the rewind again", id, undone.From)}
	case record.Found.Integrity.Damage != "":
		return &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"the rewind %s cannot be undone: checkpoint %d, which held the state before it, is damaged (%s); rewind to another one, and request the rewind again", id, undone.From, Damage(record.Found.Integrity))}
	}
	return nil
}

// nothingToUndo returns why a rewind cannot be undone of which no record says what it has done.
func nothingToUndo(task *v1alpha1.Task, id string, recorded history.Rewind) *Blocker {
	const instead = "rewind to a checkpoint from before it, which kubectl clew timeline shows"
	message := fmt.Sprintf("this task has no rewind with the id %s: name one that kubectl clew timeline shows", id)
	s := task.Status.Rewind
	last := s != nil && s.ID == id
	switch {
	case recorded.Completed:
		message = fmt.Sprintf("the rewind %s was carried out by an older version of Clew, which did not record what it rewound: %s", id, instead)
	case recorded.Failed, last && (s.State == v1alpha1.OperationRefused || s.State == v1alpha1.OperationFailed):
		message = fmt.Sprintf("there is nothing to undo: the rewind %s was refused or failed, and changed nothing", id)
	case last && s.State == v1alpha1.OperationCompleted:
		message = fmt.Sprintf("the rewind %s was carried out, but no record says what it rewound: %s", id, instead)
	case handled(&task.Status, daemonapi.OperationRewind, id):
		message = fmt.Sprintf("nothing is recorded of what the rewind %s did: either it was refused or failed, and there is nothing to undo, or its record is lost; kubectl clew timeline shows which, and to undo it by hand, %s", id, instead)
	}
	return &Blocker{v1alpha1.ReasonInvalidOperation, message + ", and request the rewind again"}
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
