package plan

import (
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// A rewind of a supervisor to the Checkpoint of a set may take its children along. The spec of a child is
// not written: once the supervisor is rewound, its status says to which set, and each child that is a member
// follows, once, by a rewind of its own. That is one like any other, but for where it is requested: in
// status.parent.rewind.

// setRewind returns what a rewind that takes children along begins with, or why it cannot; nil if it takes
// none along.
func (d *decision) setRewind(r *v1alpha1.Rewind, target *v1alpha1.Checkpoint) (*v1alpha1.SetRewind, *Blocker) {
	if r.Children != v1alpha1.ChildrenRewind {
		return nil, nil
	}
	set := target.Status.Set
	switch {
	case set == nil:
		return nil, &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"Checkpoint %q is of this task alone, and no set: name one with the scope Contract, or set rewind.children to Keep, and request the rewind again", target.Name)}
	case !set.State.Ended():
		return nil, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"the set %q is still being taken: wait until it is Ready, and request the rewind again", target.Name)}
	case set.State != v1alpha1.SetTogether:
		return nil, &Blocker{v1alpha1.ReasonNotTakenTogether, fmt.Sprintf(
			"the checkpoints of the set %q were not taken together, so the tasks would not fit each other: name another set, or rewind each task by itself, and request the rewind again", target.Name)}
	}
	s := &v1alpha1.SetRewind{ID: r.ID, Set: target.Name, State: v1alpha1.OperationInProgress, RequestedBy: d.rewindRequester(r), Scope: r.Scope, Preserve: r.Preserve, OnDrift: r.OnDrift}
	for _, m := range set.Children() {
		s.Children = append(s.Children, v1alpha1.SetRewindChild{Name: m.Task, UID: m.UID, Checkpoint: m.Number})
	}
	return s, nil
}

// noteSetRewind notes, with an accepted rewind, which children follow it.
func (d *decision) noteSetRewind(r *v1alpha1.Rewind, accepted *v1alpha1.OperationStatus) {
	if r.Children != v1alpha1.ChildrenRewind {
		return
	}
	if s, _ := d.setRewind(r, d.o.RewindTarget); s != nil {
		d.s.SetRewind, accepted.Set = s, s.Set
	}
}

// maxChildrenNamed is how many children an entry of a rewind names.
const maxChildrenNamed = 8

// leadChildren has the children follow a rewind that is complete, and returns the end of a sentence about
// that; "" if it takes none along.
func (d *decision) leadChildren(op *v1alpha1.OperationStatus) string {
	if d.s.SetRewind == nil || op.Set == "" || d.s.SetRewind.ID != op.ID {
		return ""
	}
	next := *d.s.SetRewind
	next.State = v1alpha1.OperationCompleted
	d.s.SetRewind = &next
	var follow, gone, stay []string
	for _, c := range next.Children {
		if slices.ContainsFunc(d.o.Children, func(t v1alpha1.Task) bool { return isTask(&t, c.UID) }) {
			follow = append(follow, fmt.Sprintf("%s to checkpoint %d", c.Name, c.Checkpoint))
		} else {
			gone = append(gone, c.Name)
		}
	}
	for _, t := range byAge(d.o.Children) {
		if !slices.ContainsFunc(next.Children, func(c v1alpha1.SetRewindChild) bool { return isTask(t, c.UID) }) {
			stay = append(stay, t.Name)
		}
	}
	text := ""
	for _, part := range []struct {
		names  []string
		format string
	}{
		{follow, "; of its children follow, to the set " + next.Set + ": %s"},
		{gone, "; of its members, these are gone: %s"},
		{stay, "; these stay as they are, since they are not in the set: %s"},
	} {
		if len(part.names) > 0 {
			text += fmt.Sprintf(part.format, namesOf(part.names, maxChildrenNamed))
		}
	}
	return text
}

// isTask reports whether a task is the one with a UID, or continues that one.
func isTask(task *v1alpha1.Task, uid string) bool {
	return string(task.UID) == uid || slices.Contains(task.Status.Adoption.FormerUIDs(), uid)
}

// followRewind requests the rewind by which a task follows one of its parent, once for each.
func (d *decision) followRewind() {
	parent := d.o.Parent.Task
	if d.s.Parent == nil || parent == nil || string(parent.UID) != d.s.Parent.UID {
		return
	}
	led := parent.Status.SetRewind
	if led == nil || led.State != v1alpha1.OperationCompleted || led.ID == d.s.Parent.FollowedRewind {
		return
	}
	next := *d.s.Parent
	next.FollowedRewind = led.ID
	d.s.Parent = &next
	i := slices.IndexFunc(led.Children, func(c v1alpha1.SetRewindChild) bool { return isTask(d.task, c.UID) })
	if i < 0 {
		return
	}
	next.Rewind = &v1alpha1.ParentRewind{
		ID: v1alpha1.ParentRewindID(led.ID), Checkpoint: led.Children[i].Checkpoint,
		Scope: led.Scope, Preserve: led.Preserve, OnDrift: led.OnDrift, RequestedBy: led.RequestedBy,
	}
	d.addCheckpointEntry(v1alpha1.EventRewoundByParent, actorOf(led.RequestedBy), fmt.Sprintf(
		"the parent %s was rewound to the set %s (rewind %s), and the task follows to its checkpoint %d there (rewind %s)",
		parent.Name, led.Set, led.ID, next.Rewind.Checkpoint, next.Rewind.ID), next.Rewind.Checkpoint)
}

// requestedRewinds are the rewinds that are requested of a task, in the order in which they are carried out:
// that by which it follows its parent, and that in its spec.
func requestedRewinds(spec *v1alpha1.TaskSpec, s *v1alpha1.TaskStatus) (all []*v1alpha1.Rewind) {
	if s.Parent != nil && s.Parent.Rewind != nil {
		all = append(all, s.Parent.Rewind.Request())
	}
	if spec.Rewind != nil {
		all = append(all, spec.Rewind)
	}
	return all
}

// requestedRewind returns the rewind with an id, if it is requested; nil if it is not.
func (d *decision) requestedRewind(id string) *v1alpha1.Rewind {
	for _, r := range requestedRewinds(&d.task.Spec, d.s) {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// rewindRequester returns who requested a rewind.
func (d *decision) rewindRequester(r *v1alpha1.Rewind) string {
	if p := d.s.Parent; p != nil && p.Rewind != nil && r != nil && p.Rewind.ID == r.ID {
		return p.Rewind.RequestedBy
	}
	return Requester(d.task, d.stamps().Rewind, "spec", "rewind", "id")
}
