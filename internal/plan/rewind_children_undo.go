package plan

import (
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// An undo of a rewind to a set takes the children back as well: each that has followed the rewind undoes its
// own by another one of its own. Whoever has been rewound or resumed by a request since then has gone on from
// there, and stays.

// setUndo returns what an undo that takes children back begins with, or why it cannot; nil if it takes none
// back.
func (d *decision) setUndo(r *v1alpha1.Rewind) (*v1alpha1.LedRewind, *Blocker) {
	if r.Children != v1alpha1.ChildrenRewind {
		return nil, nil
	}
	led := d.s.SetRewind
	if !UndoesSet(led, r.To.UndoOf) {
		return nil, &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"the rewind %s is not the last one of this task that took children along: set rewind.children to Keep, and request the rewind again; a child is taken back by itself, with kubectl clew undo", r.To.UndoOf)}
	}
	return &v1alpha1.LedRewind{
		ID: r.ID, Set: led.Set, UndoOf: r.To.UndoOf, State: v1alpha1.OperationInProgress, RequestedBy: d.rewindRequester(r),
		Preserve: r.Preserve, OnDrift: r.OnDrift, Children: led.Children,
	}, nil
}

// UndoesSet reports whether an undo of a rewind can take the children back that are in led, a supervisor's
// last rewind that took children along: it is that one, or, in the status of an older manager, which kept no
// former one, the last try to undo it has failed.
func UndoesSet(led *v1alpha1.SetRewind, rewind string) bool {
	if led == nil {
		return false
	}
	return led.ID == rewind && led.State == v1alpha1.OperationCompleted || led.UndoOf == rewind && led.State == v1alpha1.OperationFailed
}

// following says how far a child is with a rewind by which it follows its parent.
type following int

const (
	// notFollowed: it has not been rewound by it.
	notFollowed following = iota
	// nowFollowing: it is being rewound.
	nowFollowing
	// hasFollowed: that was the last request to it.
	hasFollowed
	// movedOn: it was rewound or resumed by another request since.
	movedOn
)

// followedIn returns how far a child is with the rewind by which it follows one of its parent.
func followedIn(s *v1alpha1.TaskStatus, rewind string) following {
	id := v1alpha1.ParentRewindID(rewind)
	op := s.Rewind
	own := op != nil && op.ID == id
	switch {
	case own && op.State == v1alpha1.OperationInProgress:
		return nowFollowing
	case own && op.State != v1alpha1.OperationCompleted, !handled(s, daemonapi.OperationRewind, id):
		return notFollowed
	case own && daemonapi.LastRewind(s) == id:
		return hasFollowed
	}
	return movedOn
}

// LedBackBy sorts the children of a supervisor by what the undo of a rewind to a set with these members does
// with them. It keeps pointers into children.
func LedBackBy(rewind string, members []v1alpha1.SetRewindChild, children []v1alpha1.Task) (led LedChildren) {
	known := byAge(children)
	for _, c := range members {
		i := slices.IndexFunc(known, func(t *v1alpha1.Task) bool { return isTask(t, c.UID) })
		if i < 0 {
			led.Gone = append(led.Gone, c.Name)
			continue
		}
		switch s := &known[i].Status; followedIn(s, rewind) {
		case hasFollowed:
			c.Checkpoint = s.Rewind.FromCheckpoint
			led.Follow = append(led.Follow, LedChild{c, known[i]})
		case nowFollowing:
			c.Checkpoint = 0
			led.Follow = append(led.Follow, LedChild{c, known[i]})
		case movedOn:
			led.MovedOn = append(led.MovedOn, c.Name)
		case notFollowed:
			led.There = append(led.There, c.Name)
		}
	}
	led.Stay = outside(members, known)
	return led
}

// followUndo requests the rewind by which a task follows an undo of its parent. next is what the status will
// say of the parent.
func (d *decision) followUndo(parent *v1alpha1.Task, led *v1alpha1.SetRewind, next *v1alpha1.ParentStatus) {
	undone := v1alpha1.ParentRewindID(led.UndoOf)
	switch followedIn(d.s, led.UndoOf) {
	case hasFollowed:
		next.Rewind = &v1alpha1.ParentRewind{
			ID: v1alpha1.ParentRewindID(led.ID), UndoOf: undone, Checkpoint: d.s.Rewind.FromCheckpoint, Attempt: max(0, d.s.Rewind.DoneIn()-1),
			Preserve: led.Preserve, OnDrift: led.OnDrift, RequestedBy: led.RequestedBy,
		}
		d.addCheckpointEntry(v1alpha1.EventRewoundByParent, actorOf(led.RequestedBy), fmt.Sprintf(
			"the parent %s has undone its rewind %s to the set %s (rewind %s), and the task undoes its own, to its checkpoint %d from before that (rewind %s)",
			parent.Name, led.UndoOf, led.Set, led.ID, next.Rewind.Checkpoint, next.Rewind.ID), next.Rewind.Checkpoint)
	case movedOn:
		d.addEntry(v1alpha1.EventRewoundByParent, actorOf(led.RequestedBy), fmt.Sprintf(
			"the parent %s has undone its rewind %s to the set %s (rewind %s); the task was rewound or resumed by another request since it had followed, and stays as it is",
			parent.Name, led.UndoOf, led.Set, led.ID))
	case notFollowed, nowFollowing: // what has not begun is not carried out any more
		if next.Rewind != nil && next.Rewind.ID == undone && !handled(d.s, daemonapi.OperationRewind, undone) {
			next.Rewind = nil
		}
	}
}
