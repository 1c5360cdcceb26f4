package plan

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// An installation may limit how many tasks run at once, and a supervisor how many of its children. A task then has a place while its agent runs
// or is about to, and keeps it from one attempt to the next where Clew itself decides on that. Package
// queue decides who is next; the status alone says who has a place.

// Queue is what an observed task finds when it asks for a place.
type Queue struct {
	// Waits is true if the task has no place and cannot have one now.
	Waits bool
	// OfParent is true if that is for the limit of its parent's children, and OfNamespace if it is for
	// that of its namespace; otherwise it is for the cluster's.
	OfParent, OfNamespace bool
	// Maximum is how many tasks run at once in the cluster, MaximumPerNamespace in each namespace,
	// and MaximumOfParent of the children of the task's Parent; 0 for any number.
	Maximum, MaximumPerNamespace, MaximumOfParent int
	// Parent is the name of the task's parent; "" for none.
	Parent string
}

// longPause is how long a task may rest between two attempts without losing its place.
const longPause = 5 * time.Minute

// HoldsPlace reports whether a task has a place, as its status says.
func HoldsPlace(task *v1alpha1.Task) bool {
	d := &decision{task: task, old: &task.Status, s: &task.Status}
	if a := d.active(); a != nil {
		return a.Purpose != v1alpha1.AttemptForRewind
	}
	last, stored := d.last(), meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if last == nil || last.Purpose == v1alpha1.AttemptForRewind || task.DeletionTimestamp != nil {
		return false
	}
	if want := d.want(); want != wantAgent && want != wantRewind {
		return false
	}
	if stored != nil && (stored.Reason == v1alpha1.ReasonSuspended || stored.Reason == v1alpha1.ReasonQueued) {
		return false // it has given its place up since
	}
	switch last.Outcome {
	case v1alpha1.AttemptPodLost, v1alpha1.AttemptPrepareFailed, v1alpha1.AttemptStopped:
		return true
	case v1alpha1.AttemptAgentFailed:
		return last.Reason == v1alpha1.ReasonRetrying &&
			(last.RetryTime == nil || last.EndTime == nil || last.RetryTime.Sub(last.EndTime.Time) <= longPause)
	}
	return false
}

// queues reports whether the task has to wait for a place before its agent starts.
func (d *decision) queues() bool {
	d.plan.NeedsPlace = true
	q := d.o.Queue
	if !q.Waits {
		return false
	}
	d.plan.Queued = true
	d.wait(v1alpha1.ReasonQueued, d.queueMessage(q))
	return true
}

// queueMessage says why the task waits for a place. It keeps what was said first: which of the limits
// it is may change with each task that ends, and would be a write for every task that waits.
func (d *decision) queueMessage(q Queue) string {
	const next = "; of those that wait, the one with the highest priority starts first, and among equals the oldest"
	ofParent := fmt.Sprintf("the task waits for a place: at most %s at once, as children.atOnce of that task says", childrenRun(q.MaximumOfParent, q.Parent)) + next
	ofNamespace := fmt.Sprintf("the task waits for a place: at most %s at once in this namespace", tasksRun(q.MaximumPerNamespace)) + next
	ofCluster := fmt.Sprintf("the task waits for a place: at most %s at once in this cluster", tasksRun(q.Maximum)) + next
	if c := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded); c != nil && slices.Contains([]string{ofParent, ofNamespace, ofCluster}, c.Message) {
		return c.Message
	}
	switch {
	case q.OfParent:
		return ofParent
	case q.OfNamespace:
		return ofNamespace
	}
	return ofCluster
}

// AtOnceOf returns how many children of a task run at once; 0 for any number.
func AtOnceOf(task *v1alpha1.Task) int {
	if c := task.Spec.Children; c != nil && task.Spec.Role == v1alpha1.RoleSupervisor {
		return int(ptr.Deref(c.AtOnce, 0))
	}
	return 0
}

// childrenRun says how many children of a task run.
func childrenRun(n int, parent string) string {
	if n == 1 {
		return "1 child of " + parent + " runs"
	}
	return fmt.Sprintf("%d children of %s run", n, parent)
}

// tasksRun says how many tasks run.
func tasksRun(n int) string {
	if n == 1 {
		return "1 task runs"
	}
	return fmt.Sprintf("%d tasks run", n)
}
