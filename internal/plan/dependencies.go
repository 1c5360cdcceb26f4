package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
)

// A task with spec.dependsOn waits for other tasks before it first starts. What it has found met
// stays met, whatever becomes of the other task.

// FoundTask is what was found of a task that another one depends on.
type FoundTask struct {
	// Task is nil if it does not exist.
	Task *v1alpha1.Task
	// Known is false while the history store cannot be asked about one that does not exist.
	Known bool
	// Gone is the newest task of that name that is gone, as its history has left it; nil if there is
	// none.
	Gone *history.GoneTask
}

// Awaited returns the dependencies that a task still waits for, as far as its status knows; none
// once it has an attempt.
func Awaited(task *v1alpha1.Task) []v1alpha1.Dependency {
	if len(task.Status.Attempts) > 0 || task.DeletionTimestamp != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(task.Spec.DependsOn), func(dep v1alpha1.Dependency) bool {
		known := findDependency(task.Status.Dependencies, dep.TaskRef.Name)
		return known != nil && known.State == v1alpha1.DependencyMet
	})
}

// AwaitsTasks reports whether a task that exists keeps the observed one from starting: nothing else
// that the start needs has to be observed yet. What is known of its attempts has to be observed.
func AwaitsTasks(o Observed) bool {
	return !hasBegun(o) && slices.ContainsFunc(Awaited(o.Task), func(dep v1alpha1.Dependency) bool {
		found := o.Dependencies[dep.TaskRef.Name]
		return found.Task != nil && dependencyState(dep, found) != v1alpha1.DependencyMet
	})
}

// findDependency returns the status of the dependency of that name; nil if there is none.
func findDependency(list []v1alpha1.DependencyStatus, name string) *v1alpha1.DependencyStatus {
	if i := slices.IndexFunc(list, func(s v1alpha1.DependencyStatus) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// dependencyState returns how a dependency stands.
func dependencyState(dep v1alpha1.Dependency, found FoundTask) v1alpha1.DependencyState {
	finished := dep.Condition == v1alpha1.DependOnFinished
	if found.Task == nil {
		if gone := found.Gone; gone != nil && (gone.State == stateCompleted || finished && gone.State == stateFailed) {
			return v1alpha1.DependencyMet
		}
		return v1alpha1.DependencyMissing
	}
	switch end := endedAs(found.Task); {
	case end == nil:
		return v1alpha1.DependencyUnfinished
	case finished, statusOf(end.reason) == metav1.ConditionTrue:
		return v1alpha1.DependencyMet
	}
	return v1alpha1.DependencyFailed
}

// hasBegun reports whether the observed task has ever had an attempt, even if its status lacks it: it
// may have been restored from an older copy, or continue what a former task has begun.
func hasBegun(o Observed) bool {
	return len(o.Task.Status.Attempts) > 0 || max(o.History.State.Attempt, o.Attempts.Highest) > 0
}

// awaitTasks notes how the dependencies of a task that has not begun stand, also of one that is
// suspended, and what keeps it from starting. When it has found the last one met, it resolves where
// the task starts from, before the other one goes on.
func (d *decision) awaitTasks() {
	if hasBegun(d.o) {
		return
	}
	var list []v1alpha1.DependencyStatus
	for _, dep := range d.task.Spec.DependsOn {
		list = append(list, d.dependency(dep))
	}
	d.s.Dependencies = list
	if d.awaited = d.dependencyBlocker(); d.awaited == nil && len(list) > 0 {
		_ = d.resolveSource() // the start tells what is in the way
	}
}

// dependency returns the status of a dependency: what is met stays met.
func (d *decision) dependency(dep v1alpha1.Dependency) v1alpha1.DependencyStatus {
	name := dep.TaskRef.Name
	known := findDependency(d.old.Dependencies, name)
	if known != nil && known.State == v1alpha1.DependencyMet {
		return *known
	}
	found := d.o.Dependencies[name]
	s := v1alpha1.DependencyStatus{Name: name, State: dependencyState(dep, found)}
	if known != nil {
		s.TaskUID = known.TaskUID
	}
	switch {
	case found.Task != nil:
		s.TaskUID = string(found.Task.UID)
	case s.State == v1alpha1.DependencyMet && d.mayAppear():
		s.State = v1alpha1.DependencyMissing
	case s.State == v1alpha1.DependencyMet:
		s.TaskUID = found.Gone.UID
	case !found.Known:
		d.requeue(d.o.Limits.RetryBase)
	}
	if s.State == v1alpha1.DependencyMet {
		s.MetTime = ptr.To(metav1.NewTime(d.now))
	}
	return s
}

// mayAppear reports whether the task is so new that those it depends on may be about to be created
// together with it, and decides again when it is not: what is left of former ones of their names must
// not take their place.
func (d *decision) mayAppear() bool {
	until := d.task.CreationTimestamp.Add(d.o.Limits.ProblemGrace)
	if !d.now.Before(until) {
		return false
	}
	d.requeueAt(until)
	return true
}

// dependencyBlocker returns why the task cannot start yet because of others; nil if it can.
func (d *decision) dependencyBlocker() *Blocker {
	var waits, failed []string
	for _, s := range d.s.Dependencies {
		switch s.State {
		case v1alpha1.DependencyMet:
			continue
		case v1alpha1.DependencyFailed:
			failed = append(failed, fmt.Sprintf("%s (%s)", s.Name, failureOf(d.o.Dependencies[s.Name].Task)))
		}
		waits = append(waits, fmt.Sprintf("%s (%s)", s.Name, describeDependency(s.State, d.o.Dependencies[s.Name])))
	}
	switch circle := Circle(d.task.Name, d.o.Awaiting); {
	case len(waits) == 0:
		return nil
	case len(circle) > 0:
		return &Blocker{v1alpha1.ReasonDependencyCircle, fmt.Sprintf(
			"tasks wait for each other: %s: take one of them out of another one's dependsOn", drawn(circle))}
	case len(failed) > 0:
		return &Blocker{v1alpha1.ReasonDependencyFailed, failedMessage(failed)}
	}
	return &Blocker{v1alpha1.ReasonWaitingForTasks, "the task waits for other tasks: " + listed(waits)}
}

const (
	// maxFailures is how many tasks that have failed a message names.
	maxFailures = 3
	// maxFailureBytes bounds what it quotes of how one of them has failed.
	maxFailureBytes = 150
)

// failedMessage says which tasks have failed that were to complete, and what to do.
func failedMessage(failed []string) string {
	if len(failed) == 1 {
		return "a task that this one waits for has failed, and was to complete: " + failed[0] +
			": resume it, or take it out of dependsOn; this task goes on by itself when it has completed"
	}
	which := strings.Join(failed[:min(len(failed), maxFailures)], ", ")
	if more := len(failed) - maxFailures; more > 0 {
		which += fmt.Sprintf(" and %d more", more)
	}
	return "tasks that this one waits for have failed, and were to complete: " + which +
		": resume them, or take them out of dependsOn; this task goes on by itself when they have completed"
}

// failureOf returns how a task failed.
func failureOf(task *v1alpha1.Task) string {
	how := endedAs(task).reason
	if n := len(task.Status.Attempts); n > 0 && task.Status.Attempts[n-1].Message != "" {
		how += ": " + clip.Marked(task.Status.Attempts[n-1].Message, maxFailureBytes)
	}
	return how
}

// describeDependency says in words how a dependency stands that is not met.
func describeDependency(state v1alpha1.DependencyState, found FoundTask) string {
	switch {
	case state == v1alpha1.DependencyFailed:
		return "has failed"
	case state == v1alpha1.DependencyUnfinished:
		return "has not ended"
	case !found.Known:
		return "does not exist, and the history store cannot be reached, which knows whether it has completed"
	case found.Gone != nil && found.Gone.State == stateFailed:
		return "is gone, and had failed"
	case found.Gone != nil && found.Gone.State != stateCompleted: // another one of its name may be about to appear
		return "is gone, and had not completed"
	}
	return "does not exist yet"
}

// maxCircle is how many tasks of a circle a message names.
const maxCircle = 10

// drawn draws a circle of tasks.
func drawn(circle []string) string {
	if n := len(circle); n > maxCircle {
		circle = slices.Concat(circle[:maxCircle-2], []string{"…"}, circle[n-1:])
	}
	return strings.Join(circle, " → ")
}

// Circle returns the shortest way from a task back to itself, with the task at both ends; nil if there
// is none. awaiting are the tasks that each one waits for, by its name.
func Circle(name string, awaiting map[string][]string) []string {
	before := map[string]string{}
	next := []string{name}
	for len(next) > 0 {
		task := next[0]
		next = next[1:]
		for _, other := range awaiting[task] {
			if other == name {
				way := []string{name}
				for at := task; at != name; at = before[at] {
					way = append(way, at)
				}
				slices.Reverse(way[1:])
				return append(way, name)
			}
			if _, seen := before[other]; !seen {
				before[other] = task
				next = append(next, other)
			}
		}
	}
	return nil
}

// maxWaiters is how many of the tasks that wait for a failed one its message names.
const maxWaiters = 5

// waiters returns the end of a sentence about the tasks that wait for this one to complete; "" if none
// does.
func (d *decision) waiters() string {
	names := d.o.Waiters
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf("; task %s waits for it", names[0])
	case n > maxWaiters:
		return fmt.Sprintf("; tasks %s and %d more wait for it", strings.Join(names[:maxWaiters], ", "), n-maxWaiters)
	default:
		return fmt.Sprintf("; tasks %s and %s wait for it", strings.Join(names[:n-1], ", "), names[n-1])
	}
}

// addWaitEntry adds an entry when the task begins to wait for other tasks or for a place, and when
// what it waits for cannot come without help.
func (d *decision) addWaitEntry(reason, message string) {
	was := ""
	if c := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded); c != nil {
		was = c.Reason
	}
	hindered := []string{
		v1alpha1.ReasonDependencyFailed, v1alpha1.ReasonDependencyCircle, v1alpha1.ReasonContractFull, v1alpha1.ReasonPhaseUnknown,
		v1alpha1.ReasonParentRefused, v1alpha1.ReasonChildLimitReached,
	}
	awaits := []string{v1alpha1.ReasonWaitingForTasks, v1alpha1.ReasonDependencyFailed, v1alpha1.ReasonDependencyCircle}
	switch {
	case reason == was && (d.active() != nil || !underWay(d.old.Attempts)): // else its pod was gated
	case reason == v1alpha1.ReasonQueued && d.active() != nil:
		d.addEntry(v1alpha1.EventPodGated, clew, message)
	case reason == v1alpha1.ReasonQueued:
		d.addEntry(v1alpha1.EventTaskQueued, clew, message)
	case reason == v1alpha1.ReasonWaitingForTasks && !slices.Contains(awaits, was):
		d.addEntry(v1alpha1.EventTaskWaiting, clew, message)
	case reason == v1alpha1.ReasonWaitingForContract || reason == v1alpha1.ReasonParentNotFound:
		d.addEntry(v1alpha1.EventTaskWaiting, clew, message)
	case slices.Contains(hindered, reason):
		d.addEntry(v1alpha1.EventTaskHindered, clew, reason+": "+message)
	}
}
