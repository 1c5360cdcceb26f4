package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
)

// maxUnfinished is how many unfinished children the status names.
const maxUnfinished = 20

// succeededOf returns the stored condition Succeeded of a task; nil if it has none.
func succeededOf(task *v1alpha1.Task) *metav1.Condition {
	return meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
}

// countChildren returns the children by their state; nil if there are none.
func countChildren(children []v1alpha1.Task) *v1alpha1.ChildrenStatus {
	if len(children) == 0 {
		return nil
	}
	n := &v1alpha1.ChildrenStatus{}
	for _, child := range byAge(children) {
		n.Total++
		c := succeededOf(child)
		switch {
		case c != nil && c.Status == metav1.ConditionTrue:
			n.Completed++
			continue
		case c != nil && c.Status == metav1.ConditionFalse:
			n.Failed++
			continue
		case c != nil && reason.Find(c.Reason).Standing == reason.Resting:
			n.Stopped++
		case c == nil || !working(child):
			n.Waiting++
		default:
			n.Running++
		}
		if len(n.Unfinished) < maxUnfinished {
			n.Unfinished = append(n.Unfinished, child.Name)
		}
	}
	return n
}

// working reports whether a task has an attempt that has not ended.
func working(task *v1alpha1.Task) bool {
	n := len(task.Status.Attempts)
	return n > 0 && task.Status.Attempts[n-1].Outcome == ""
}

// followChildren counts the children in the status, at intervals while they change.
func (d *decision) followChildren() {
	now := countChildren(d.o.Children)
	if equality.Semantic.DeepEqual(now, d.s.Children) {
		return
	}
	if at := d.o.LastWrite.Add(d.o.Limits.RefreshEvery); d.now.Before(at) {
		d.requeueAt(at)
		return
	}
	d.s.Children = now
}

// ObjectRef identifies an object by its name and UID, so that it never means a later one of the same
// name.
type ObjectRef struct {
	Name string
	UID  string
	// Version is the version of the object that is meant; empty for any.
	Version string
}

// childrenToDelete returns the children that are deleted with their parent. If nobody has asked for
// that, those are left that have gone on meanwhile, or are new.
func (d *decision) childrenToDelete() (refs []ObjectRef) {
	if d.leavesOrphans() {
		return nil
	}
	for i := range d.o.Children {
		child := &d.o.Children[i]
		ref := ObjectRef{Name: child.Name, UID: string(child.UID)}
		if d.deletedByClew() {
			if !losesNothing(child) {
				continue
			}
			ref.Version = child.ResourceVersion
		}
		if child.DeletionTimestamp == nil {
			refs = append(refs, ref)
		}
	}
	return refs
}

// withChildren returns the end of a sentence about a deletion of a task and its children.
func withChildren(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; its child is deleted with it"
	}
	return fmt.Sprintf("; its %d children are deleted with it", n)
}
