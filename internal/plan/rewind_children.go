package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// A rewind of a supervisor to the Checkpoint of a set may take its children along. The spec of a child is
// not written: once the supervisor is rewound, its status says to which set, and each child that is a member
// follows, once, by a rewind of its own. That is one like any other, but for where it is requested: in
// status.parent.rewind.

// setRewind returns what a rewind that takes children along begins with, or why it cannot; nil if it takes
// none along.
func (d *decision) setRewind(r *v1alpha1.Rewind, target *v1alpha1.Checkpoint) (*v1alpha1.LedRewind, *Blocker) {
	if r.Children != v1alpha1.ChildrenRewind {
		return nil, nil
	}
	if b := SetBlocker(target); b != nil {
		return nil, b
	}
	return &v1alpha1.LedRewind{
		ID: r.ID, Set: target.Name, State: v1alpha1.OperationInProgress, RequestedBy: d.rewindRequester(r),
		Scope: r.Scope, Preserve: r.Preserve, OnDrift: r.OnDrift, Children: SetChildren(target.Status.Set),
	}, nil
}

// SetBlocker returns why no children can be rewound to a Checkpoint; nil if they can.
func SetBlocker(target *v1alpha1.Checkpoint) *Blocker {
	switch set := target.Status.Set; {
	case set == nil:
		return &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf(
			"Checkpoint %q is of this task alone, and no set: name one with the scope Contract, or set rewind.children to Keep, and request the rewind again", target.Name)}
	case !set.State.Ended():
		return &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"the set %q is still being taken: wait until it is Ready, and request the rewind again", target.Name)}
	case set.State != v1alpha1.SetTogether:
		return &Blocker{v1alpha1.ReasonNotTakenTogether, fmt.Sprintf(
			"the checkpoints of the set %q were not taken together, so the tasks would not fit each other: name another set, or rewind each task by itself, and request the rewind again", target.Name)}
	}
	return nil
}

// SetChildren returns where a set has each child.
func SetChildren(set *v1alpha1.CheckpointSet) (children []v1alpha1.SetRewindChild) {
	for _, m := range set.Children() {
		child := v1alpha1.SetRewindChild{Name: m.Task, UID: m.UID, Checkpoint: m.Number}
		if m.State == v1alpha1.MemberAtRest {
			child.Attempt = m.Attempt
		}
		children = append(children, child)
	}
	return children
}

// noteSetRewind notes, with an accepted rewind, which children follow it. What led them before is kept, since
// it does so again if this one fails.
func (d *decision) noteSetRewind(r *v1alpha1.Rewind, accepted *v1alpha1.OperationStatus) {
	var led *v1alpha1.LedRewind
	switch {
	case r.To.UndoOf != "":
		led, _ = d.setUndo(r)
	case d.o.RewindTarget != nil:
		led, _ = d.setRewind(r, d.o.RewindTarget)
	}
	if led != nil {
		next := &v1alpha1.SetRewind{LedRewind: *led}
		if former := d.s.SetRewind; former != nil {
			next.Former = &former.LedRewind
		}
		d.s.SetRewind, accepted.Set = next, led.Set
	}
}

// yetToFollow returns the names of the children that have yet to see the last rewind that takes them along.
// Another one waits for them: once it is accepted, they see that one alone.
func (d *decision) yetToFollow() (names []string) {
	led := d.s.SetRewind
	if led == nil || led.State != v1alpha1.OperationCompleted {
		return nil
	}
	for _, t := range byAge(d.o.Children) {
		member := slices.ContainsFunc(led.Children, func(c v1alpha1.SetRewindChild) bool { return isTask(t, c.UID) })
		if parent := t.Status.Parent; member && t.DeletionTimestamp == nil && parent != nil && parent.FollowedRewind != led.ID {
			names = append(names, t.Name)
		}
	}
	return names
}

// maxChildrenNamed is how many children an entry of a rewind names.
const maxChildrenNamed = 8

// leadChildren has the children follow a rewind that is complete, and returns the end of a sentence about
// that; "" if it takes none along.
func (d *decision) leadChildren(op *v1alpha1.OperationStatus) string {
	if d.s.SetRewind == nil || op.Set == "" || d.s.SetRewind.ID != op.ID {
		return ""
	}
	led, followed, there := LedBy(d.s.SetRewind.Children, d.o.Children), "; of its children follow, to the set "+d.s.SetRewind.Set+": %s", "; are there already, since they have been at rest since: %s"
	if undone := d.s.SetRewind.UndoOf; undone != "" {
		led, followed, there = LedBackBy(undone, d.s.SetRewind.Children, d.o.Children), "; of its children follow, back from the set "+d.s.SetRewind.Set+": %s", "; stay as they are, since they had not been rewound: %s"
	}
	var follow []string
	for _, c := range led.Follow {
		name := c.Child.Name
		if c.Child.Checkpoint != 0 {
			name = fmt.Sprintf("%s to checkpoint %d", name, c.Child.Checkpoint)
		}
		follow = append(follow, name)
	}
	text := ""
	for _, part := range []struct {
		names  []string
		format string
	}{
		{follow, followed},
		{led.There, there},
		{led.MovedOn, "; stay as they are, since they were rewound or resumed by another request since: %s"},
		{led.Gone, "; these members are gone: %s"},
		{led.Stay, "; stay as they are, since they are not in the set: %s"},
	} {
		if len(part.names) > 0 {
			text += fmt.Sprintf(part.format, namesOf(part.names, maxChildrenNamed))
		}
	}
	return text
}

// LedChildren are the children of a supervisor that is rewound to a set, and what the rewind does with each.
type LedChildren struct {
	// Follow are those that are rewound as well.
	Follow []LedChild
	// There are the names of those that are where the rewind would take them, and Stay of those that are not
	// in the set.
	There, Stay []string
	// MovedOn are the names of those that an undo leaves, since another request has rewound or resumed them.
	MovedOn []string
	// Gone are the names of the members that do not exist any more.
	Gone []string
}

// LedChild is a child that follows a rewind of its parent.
type LedChild struct {
	// Child is where the rewind takes it. Its checkpoint is 0 in an undo while it is still on its way to the
	// set.
	Child v1alpha1.SetRewindChild
	// Task is the task; it may be one that continues that of the set.
	Task *v1alpha1.Task
}

// LedBy sorts the children of a supervisor by what a rewind to a set with these members does with them. It
// keeps pointers into children.
func LedBy(members []v1alpha1.SetRewindChild, children []v1alpha1.Task) (led LedChildren) {
	known := byAge(children)
	for _, c := range members {
		i := slices.IndexFunc(known, func(t *v1alpha1.Task) bool { return isTask(t, c.UID) })
		switch {
		case i < 0:
			led.Gone = append(led.Gone, c.Name)
		case isThere(&known[i].Status, c):
			led.There = append(led.There, c.Name)
		default:
			led.Follow = append(led.Follow, LedChild{c, known[i]})
		}
	}
	led.Stay = outside(members, known)
	return led
}

// outside returns the names of the children that are not among the members of a set.
func outside(members []v1alpha1.SetRewindChild, children []*v1alpha1.Task) (names []string) {
	for _, t := range children {
		if !slices.ContainsFunc(members, func(c v1alpha1.SetRewindChild) bool { return isTask(t, c.UID) }) {
			names = append(names, t.Name)
		}
	}
	return names
}

// isThere reports whether a member that was at rest in the set has been so since: a rewind would change
// nothing, but take back how it has ended.
func isThere(s *v1alpha1.TaskStatus, c v1alpha1.SetRewindChild) bool {
	begun := func(op *v1alpha1.OperationStatus) bool { return op != nil && op.State == v1alpha1.OperationInProgress }
	n := len(s.Attempts)
	return c.Attempt != 0 && n > 0 && s.Attempts[n-1].Number == c.Attempt && s.Attempts[n-1].Outcome != "" &&
		!begun(s.Rewind) && !begun(s.Resume) && s.UndecidedDrift() == nil
}

// isTask reports whether a task is the one with a UID, or continues that one.
func isTask(task *v1alpha1.Task, uid string) bool {
	return string(task.UID) == uid || slices.Contains(task.Status.Adoption.FormerUIDs(), uid)
}

// wasThere reports whether the task, a member that was at rest in a set, was still so when its parent had been
// rewound to the set; known is false while only the history store can tell. The status may be of an older copy,
// which lacks how the task went on: before that, so that it follows, or after.
func (d *decision) wasThere(led *v1alpha1.SetRewind, c v1alpha1.SetRewindChild) (there, known bool) {
	if !isThere(d.s, c) {
		return d.beganSince(led, c), true
	}
	return d.o.History.State.Attempt <= c.Attempt, d.o.History.Known
}

// beganSince reports whether the attempt that followed the one with which a member was at rest in a set began
// after its parent had been rewound to that.
func (d *decision) beganSince(led *v1alpha1.SetRewind, c v1alpha1.SetRewindChild) bool {
	if c.Attempt == 0 || led.EndTime == nil {
		return false
	}
	i := slices.IndexFunc(d.s.Attempts, func(a v1alpha1.Attempt) bool { return a.Number == c.Attempt+1 })
	if i < 0 {
		return false
	}
	began := cmp.Or(d.s.Attempts[i].StartTime, d.s.Attempts[i].AgentStartTime)
	return led.EndTime.Before(began)
}

// followRewind requests the rewind by which a task follows one of its parent, once for each. One that is
// being rewound follows afterwards; one that was made since does not.
func (d *decision) followRewind() {
	parent := d.o.Parent.Task
	if d.s.Parent == nil || parent == nil || string(parent.UID) != d.s.Parent.UID {
		return
	}
	led := parent.Status.SetRewind
	if led == nil || led.State != v1alpha1.OperationCompleted || led.ID == d.s.Parent.FollowedRewind || d.rewinding() {
		return
	}
	i, there := d.memberOf(led), false
	if i >= 0 && led.UndoOf == "" {
		var known bool
		if there, known = d.wasThere(led, led.Children[i]); !known {
			d.requeue(d.o.Limits.RetryBase)
			return
		}
	}
	next := *d.s.Parent
	next.FollowedRewind = led.ID
	d.s.Parent = &next
	switch {
	case i < 0:
	case led.UndoOf != "":
		d.followUndo(parent, led, &next)
	case there:
		d.addCheckpointEntry(v1alpha1.EventRewoundByParent, actorOf(led.RequestedBy), fmt.Sprintf(
			"the parent %s was rewound to the set %s (rewind %s); the task had been at rest since that was taken, with its checkpoint %d there, and stays as it is",
			parent.Name, led.Set, led.ID, led.Children[i].Checkpoint), led.Children[i].Checkpoint)
	default:
		next.Rewind = &v1alpha1.ParentRewind{
			ID: v1alpha1.ParentRewindID(led.ID), Checkpoint: led.Children[i].Checkpoint, Attempt: led.Children[i].Attempt,
			Scope: led.Scope, Preserve: led.Preserve, OnDrift: led.OnDrift, RequestedBy: led.RequestedBy,
		}
		d.addCheckpointEntry(v1alpha1.EventRewoundByParent, actorOf(led.RequestedBy), fmt.Sprintf(
			"the parent %s was rewound to the set %s (rewind %s), and the task follows to its checkpoint %d there (rewind %s)",
			parent.Name, led.Set, led.ID, next.Rewind.Checkpoint, next.Rewind.ID), next.Rewind.Checkpoint)
	}
}

// memberOf returns the index of the task among the members that follow a rewind of its parent; -1 if it does not
// follow: it is no member, was made since, or has followed.
func (d *decision) memberOf(led *v1alpha1.SetRewind) int {
	made := d.task.CreationTimestamp
	if led.EndTime.Before(&made) || handled(d.s, daemonapi.OperationRewind, v1alpha1.ParentRewindID(led.ID)) {
		return -1
	}
	return slices.IndexFunc(led.Children, func(c v1alpha1.SetRewindChild) bool { return isTask(d.task, c.UID) })
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
