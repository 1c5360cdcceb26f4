package plan

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// A Task that Clew deletes because it has finished takes its children along, unless it leaves them
// orphans. Nobody has asked for that but a timer, so that nothing may be lost with them either: they are
// waited for until they have finished. Then the condition VolumeReleased of their parent says that it is
// releasing them, and each of them gives its volume back as it would for itself, with everything that
// holds that. Its own children come before it.

// childrenHold returns why a Task that is to be deleted waits for its children; nil if it does not.
func (d *decision) childrenHold() *Blocker {
	if d.leavesOrphans() {
		return nil
	}
	var unfinished, unreleased []string
	for _, child := range byAge(d.o.Children) {
		switch {
		case child.DeletionTimestamp != nil:
		case child.Status.FinishedTime == nil:
			unfinished = append(unfinished, child.Name)
		case !child.Status.IsReleased():
			unreleased = append(unreleased, child.Name)
		}
	}
	switch {
	case len(unfinished) > 0:
		return d.notTooOften(held("the Task is not deleted, since its children would be deleted with it, and %s not finished: %s",
			counted(len(unfinished), "of them has", "of them have"), firstOf(unfinished)))
	case len(unreleased) > 0:
		return d.notTooOften(&Blocker{Reason: v1alpha1.ReasonReleasingChildren, Message: fmt.Sprintf(
			"the Task is deleted once its children, which are deleted with it, have given their volumes back, and %s not: %s; the condition VolumeReleased of each says what it waits for",
			counted(len(unreleased), "of them has", "of them have"), firstOf(unreleased))})
	}
	return nil
}

// leavesOrphans reports whether the children stay when the Task is deleted.
func (d *decision) leavesOrphans() bool {
	c := d.task.Spec.Children
	return c != nil && c.OnDelete == v1alpha1.ChildrenOrphan
}

// goesWithParent reports whether the task has finished, and its parent, which is to be deleted with it,
// waits until nothing is lost with its volume.
func (d *decision) goesWithParent() bool {
	parent := d.o.Parent.Task
	return d.s.FinishedTime != nil && d.s.Parent != nil && parent != nil && string(parent.UID) == d.s.Parent.UID && releasesChildren(parent)
}

// releasesChildren reports whether a Task is to be deleted, and waits for its children to give their
// volumes back.
func releasesChildren(task *v1alpha1.Task) bool {
	c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskVolumeReleased)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonReleasingChildren
}

// deletedByClew reports whether the Task is deleted because its time, or that of a parent, has come.
func (d *decision) deletedByClew() bool {
	return d.s.DeletionRequestedTime != nil || d.s.IsReleased() && d.s.Released.Cause == v1alpha1.ReleasedWithParent
}

// losesNothing reports whether a child can be deleted without anybody's word: it has finished, and has
// given its volume back.
func losesNothing(child *v1alpha1.Task) bool {
	return child.Status.FinishedTime != nil && child.Status.IsReleased()
}

// notTooOften returns what is waited for as the status says it, if that is of a moment ago: each of many
// children changes it.
func (d *decision) notTooOften(hold *Blocker) *Blocker {
	was := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskVolumeReleased)
	if was == nil || was.Status != metav1.ConditionFalse || was.Reason != hold.Reason || was.Message == hold.Message {
		return hold
	}
	at := d.o.LastWrite.Add(d.o.Limits.RefreshEvery)
	if !d.now.Before(at) {
		return hold
	}
	d.requeueAt(at)
	return &Blocker{Reason: was.Reason, Message: was.Message}
}

// namedChildren is how many children a message names.
const namedChildren = 5

// firstOf lists names, of many the first ones.
func firstOf(names []string) string {
	if n := len(names); n > namedChildren {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedChildren], ", "), n-namedChildren)
	}
	return strings.Join(names, ", ")
}

// counted returns a number with the words for one, or for more.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
