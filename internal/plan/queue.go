package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// An installation may limit how many tasks run at once, and a supervisor how many of its children. A task
// then has a place while its agent runs or is about to, and keeps it from one attempt to the next where
// Clew itself decides on that. It gives the place up when something else is in its way between two
// attempts, or, if others wait, when its agent does not get as far as to start. A supervisor has a place
// as well, also while it only waits for its children; one of them shares it meanwhile, so that they
// never wait for each other. A rewind runs no agent, and needs no place. Package queue decides who is
// next; the status alone says who has a place.

// Queue is what an observed task finds when it asks for a place.
type Queue struct {
	// Waits is true if the task has no place and cannot have one now.
	Waits bool
	// Limited is true if any limit is about the task. Wanted is true if its agent has not started, and
	// another task waits that would get its place.
	Limited, Wanted bool
	// OfParent is true if that is for the limit of its parent's children, and OfNamespace if it is for
	// that of its namespace; otherwise it is for the cluster's.
	OfParent, OfNamespace bool
	// Maximum is how many tasks run at once in the cluster, MaximumPerNamespace in each namespace,
	// and MaximumOfParent of the children of the task's Parent; 0 for any number.
	Maximum, MaximumPerNamespace, MaximumOfParent int
	// Parent is the name of the task's parent; "" for none.
	Parent string
}

const (
	// longPause is how long a task may rest between two attempts without losing its place.
	longPause = 5 * time.Minute
	// maxUnstarted is how many attempts in a row may keep a place in which no agent starts.
	maxUnstarted = 5
)

// unstarted returns how many of the latest attempts have ended before their agent started.
func unstarted(attempts []v1alpha1.Attempt) (n int) {
	for _, a := range slices.Backward(attempts) {
		if a.AgentStartTime != nil || a.Outcome == "" {
			break
		}
		n++
	}
	return n
}

// AgentStarts reports whether the newest attempt of a task is under way, and its agent has yet to start.
func AgentStarts(task *v1alpha1.Task) bool {
	attempts := task.Status.Attempts
	return underWay(attempts) && attempts[len(attempts)-1].AgentStartTime == nil
}

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
	if stored != nil && !slices.Contains(ownPauses(), stored.Reason) {
		return false // it has given its place up since
	}
	switch last.Outcome {
	case v1alpha1.AttemptPodLost, v1alpha1.AttemptNodeLost, v1alpha1.AttemptPrepareFailed, v1alpha1.AttemptStopped:
		return last.PlaceGivenUpTime == nil && unstarted(task.Status.Attempts) < maxUnstarted
	case v1alpha1.AttemptAgentFailed:
		return last.Reason == v1alpha1.ReasonRetrying &&
			(last.RetryTime == nil || last.EndTime == nil || last.RetryTime.Sub(last.EndTime.Time) <= longPause)
	}
	return false
}

// ownPauses returns the reasons of a task that rests between two attempts since Clew itself decides so.
func ownPauses() []string {
	return []string{v1alpha1.ReasonPending, v1alpha1.ReasonRetrying, v1alpha1.ReasonPreparing, v1alpha1.ReasonRewinding}
}

// queues reports whether the task has to wait for a place before its agent starts. One that gives its
// place up has to be seen without it first.
func (d *decision) queues() bool {
	q := d.o.Queue
	leaves := d.last() != nil && d.last().PlaceGivenUpTime != nil && underWay(d.old.Attempts)
	d.plan.NeedsPlace = !leaves
	if !q.Waits && !leaves {
		return false
	}
	d.plan.Queued = true
	d.wait(v1alpha1.ReasonQueued, d.queueMessage(q))
	return true
}

// underWay reports whether the newest attempt has not ended.
func underWay(attempts []v1alpha1.Attempt) bool {
	n := len(attempts)
	return n > 0 && attempts[n-1].Outcome == ""
}

// givesPlaceUp reports whether the active attempt is to end, since its agent has not started for long
// and others wait for its place. Otherwise it asks for another decision when that may be so.
func (d *decision) givesPlaceUp(a *v1alpha1.Attempt, v *podView) bool {
	if !d.o.Queue.Limited || a.Purpose == v1alpha1.AttemptForRewind || a.AgentStartTime != nil || a.StartTime == nil || v != nil && (v.finished || v.deleting) {
		return false
	}
	if a.PlaceGivenUpTime != nil {
		return true // it was announced
	}
	patience := d.o.Limits.PreparePatience
	if d.podBlocker(a) != nil {
		patience = d.o.Limits.StartPatience
	}
	switch at := a.StartTime.Add(patience); {
	case d.now.Before(at):
		d.requeueAt(at)
	case d.o.Queue.Wanted:
		return true
	default:
		d.requeue(patience)
	}
	return false
}

// announceStop notes why an attempt is to end.
func (d *decision) announceStop(a *v1alpha1.Attempt, reason string) {
	if reason == v1alpha1.ReasonPlaceGivenUp {
		d.giveUpPlace(a)
	}
	a.Reason = reason
}

// giveUpPlace adds an entry about an attempt that is about to end for others' sake.
func (d *decision) giveUpPlace(a *v1alpha1.Attempt) {
	if a.PlaceGivenUpTime != nil {
		return
	}
	a.PlaceGivenUpTime = ptr.To(metav1.NewTime(d.now))
	why := "its workspace is still being prepared"
	if b := d.podBlocker(a); b != nil {
		why = b.Message
	}
	d.addEntry(v1alpha1.ReasonPlaceGivenUp, clew, fmt.Sprintf(
		"attempt %d gives its place to a task that waits, since its agent has not started after %s: %s",
		a.Number, d.now.Sub(a.StartTime.Time).Round(time.Second), why))
}

// queueMessage says why the task waits for a place. It keeps what was said first: which of the limits
// it is may change with each task that ends, and would be a write for every task that waits.
func (d *decision) queueMessage(q Queue) string {
	ofParent := waitsUnder(fmt.Sprintf("at most %s at once, as children.atOnce of that task says", childrenRun(q.MaximumOfParent, q.Parent)))
	ofNamespace := waitsUnder(fmt.Sprintf("at most %s at once in this namespace", tasksRun(q.MaximumPerNamespace)))
	ofCluster := waitsUnder(fmt.Sprintf("at most %s at once in this cluster", tasksRun(q.Maximum)))
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

// beforeLimit and afterLimit are what the message of a task that waits for a place says around the limit.
const (
	beforeLimit = "the task waits for a place: "
	afterLimit  = "; of those that wait in a namespace, the one with the highest priority starts first, and among equals the oldest"
)

// waitsUnder is the message of a task that waits for a place under a limit.
func waitsUnder(limit string) string { return beforeLimit + limit + afterLimit }

// LimitThatHolds returns the limit that keeps a task from running, as the condition of one that waits
// for a place names it, for people; "" if the task waits for no place. It is the one that the task has met
// first: what holds it by now may be another one.
func LimitThatHolds(task *v1alpha1.Task) string {
	c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if c == nil || c.Reason != v1alpha1.ReasonQueued {
		return ""
	}
	message, found := strings.CutPrefix(c.Message, beforeLimit)
	if !found { // its pod waits for somebody's scheduling gate
		return ""
	}
	return strings.TrimSuffix(message, afterLimit)
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
