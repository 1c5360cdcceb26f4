package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Parent is what was found of the task that spec.parentRef names.
type Parent struct {
	// Task is the parent; nil if it does not exist.
	Task *v1alpha1.Task
	// Circle are the names of tasks each of which is the child of the next, the last of the first;
	// nil if the task is in no circle.
	Circle []string
	// Room reports whether the task is among the parent's children, or may become one.
	Room bool
}

// MaximumOf returns how many children a task may have.
func MaximumOf(task *v1alpha1.Task) int {
	const unset = 20 // as in the schema
	switch {
	case task.Spec.Role != v1alpha1.RoleSupervisor:
		return 0
	case task.Spec.Children == nil:
		return unset
	}
	return int(ptr.Deref(task.Spec.Children.Maximum, unset))
}

// findParent finds the task's parent, once, and returns why the task must wait; nil if it need not.
func (d *decision) findParent() *Blocker {
	if d.task.Spec.ParentRef == nil || d.s.Parent != nil {
		return nil
	}
	if b := d.parentBlocker(); b != nil {
		return b
	}
	parent := d.o.Parent.Task
	d.s.Parent = &v1alpha1.ParentStatus{Name: parent.Name, UID: string(parent.UID), Depth: depthOf(parent) + 1}
	if d.contractToJoin() == "" {
		d.addEntry(v1alpha1.EventTaskJoined, clew, "the task is a child of "+parent.Name)
	}
	d.followRestart()
	d.followRewind()
	return d.stayStopped()
}

// followParent follows a parent that was applied anew and continues the former one.
func (d *decision) followParent() {
	was, parent := d.s.Parent, d.o.Parent.Task
	if was == nil || parent == nil || string(parent.UID) == was.UID {
		return
	}
	if slices.Contains(parent.Status.Adoption.FormerUIDs(), was.UID) {
		next := *was
		next.UID = string(parent.UID)
		d.s.Parent = &next
	}
}

// parentBlocker returns why the task cannot be a child of its parent now; nil if it can.
func (d *decision) parentBlocker() *Blocker {
	name, parent := d.task.Spec.ParentRef.Name, d.o.Parent.Task
	refused := func(format string, args ...any) *Blocker {
		return &Blocker{v1alpha1.ReasonParentRefused, fmt.Sprintf(format, args...)}
	}
	switch {
	case len(d.o.Parent.Circle) > 0:
		return refused("the tasks are each other's children in a circle, %s: delete one of them, and apply it without parentRef",
			strings.Join(append(d.o.Parent.Circle, d.o.Parent.Circle[0]), " → "))
	case parent == nil:
		return &Blocker{v1alpha1.ReasonParentNotFound, fmt.Sprintf("the parent %s does not exist in this namespace: the task starts when it does", name)}
	case parent.Spec.Role != v1alpha1.RoleSupervisor:
		return refused("the task %s is a worker, and only a supervisor has children: name a supervisor as parent in a new Task", name)
	case parent.DeletionTimestamp != nil:
		return refused("the parent %s is being deleted: delete this Task as well, or apply it without parentRef", name)
	case parent.Spec.ParentRef != nil && parent.Status.Parent == nil, parent.Status.Contract == nil:
		return &Blocker{v1alpha1.ReasonParentNotFound, fmt.Sprintf("the parent %s has not started: the task starts when it has", name)}
	case depthOf(parent) >= v1alpha1.MaxTaskDepth:
		return refused("the parent %s is nested %d deep, and children are nested no deeper: name one of its own parents in a new Task", name, depthOf(parent))
	case d.task.Spec.Contract != nil && d.task.Spec.Contract.Name != parent.Status.Contract.Name && d.task.Spec.Role != v1alpha1.RoleSupervisor:
		return refused("the parent %s belongs to the contract %s, and this task to %s: name the same contract in a new Task, or leave contract out",
			name, parent.Status.Contract.Name, d.task.Spec.Contract.Name)
	case !d.o.Parent.Room:
		return &Blocker{v1alpha1.ReasonChildLimitReached, fmt.Sprintf(
			"the parent %s has as many children as its children.maximum allows: raise that, or delete a child", name)}
	}
	return nil
}

// depthOf returns how deep a task is nested; 0 for one without a parent.
func depthOf(task *v1alpha1.Task) int32 {
	if p := task.Status.Parent; p != nil {
		return p.Depth
	}
	return 0
}

// asChild returns the end of a sentence about a child; "" for a task without a parent.
func (d *decision) asChild() string {
	if p := d.s.Parent; p != nil {
		return ", as a child of " + p.Name
	}
	return ""
}
