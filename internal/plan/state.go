package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// States of a task as the history tells them.
const (
	stateRunning   = "Running"
	stateSuspended = "Suspended"
	stateCompleted = "Completed"
	stateFailed    = "Failed"
	stateRewound   = "Rewound"
	stateDrifted   = v1alpha1.ReasonDriftDetected
	stateDeleted   = "Deleted"
)

// sleepMessage is what the history tells of a task that was suspended.
const sleepMessage = "the task is suspended; its work is kept"

// StateAfter is the state that the task is in after a transition; "" if the
// transition does not change it. The attempts of the status tell what became of
// a rewind: the same entry may be recorded later, or again, with the same state.
func StateAfter(s *v1alpha1.TaskStatus, e v1alpha1.HistoryEntry) string {
	switch e.Reason {
	case v1alpha1.EventTaskStarted, v1alpha1.EventTaskResumed, v1alpha1.EventTaskRetried:
		return stateRunning
	case v1alpha1.EventTaskCompleted:
		return stateCompleted
	case v1alpha1.EventTaskFailed:
		return stateFailed
	case v1alpha1.EventTaskSuspended:
		return stateSuspended
	case v1alpha1.EventTaskRewound:
		return stateAfterRewind(s.Attempts, e.Attempt)
	case v1alpha1.EventDriftDetected:
		return stateAfterDrift(s.Attempts, e.Attempt)
	case v1alpha1.EventTaskDeleted:
		return stateDeleted
	}
	return ""
}

// stateAfterRewind: the agent of a task that ran goes on. A task that was stopped
// stays so: asleep, or at rest where it was taken back to.
func stateAfterRewind(attempts []v1alpha1.Attempt, number int64) string {
	i := attemptNumbered(attempts, number)
	switch {
	case i < 0 || attempts[i].Outcome != v1alpha1.AttemptRewound:
		return stateRunning
	case settledBy(attempts[:i+1]) != nil:
		return stateRewound
	}
	return stateSuspended
}

// stateAfterDrift: the agent is not started. A rewind that drift stops leaves the
// task as it was.
func stateAfterDrift(attempts []v1alpha1.Attempt, number int64) string {
	if i := attemptNumbered(attempts, number); i >= 0 && attempts[i].Trigger == v1alpha1.AttemptRewind {
		return ""
	}
	return stateDrifted
}

// toldState is the state of the task as the history tells it, as far as the status
// still has what it was told; "" if it does not.
func (d *decision) toldState() string {
	for _, e := range slices.Backward(d.s.History) {
		if state := StateAfter(d.s, e); state != "" {
			return state
		}
	}
	return ""
}

// slept says that the task was told to sleep. Where the status has no entry of that any
// more, its condition tells.
func (d *decision) slept() bool {
	told, was := d.toldState(), meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	return told == stateSuspended || told == "" && was != nil && was.Reason == v1alpha1.ReasonSuspended
}

// enterSleep enters into the history that the task sleeps, where no attempt's end
// tells it: it was suspended between two of them.
func (d *decision) enterSleep(reason string) {
	if reason != v1alpha1.ReasonSuspended || d.last() == nil {
		return
	}
	if d.slept() {
		return
	}
	d.entry(v1alpha1.EventTaskSuspended, somebody(d.modeRequester()), sleepMessage)
}

// attemptNumbered is the index of an attempt; -1 if the list has it no more.
func attemptNumbered(attempts []v1alpha1.Attempt, number int64) int {
	return slices.IndexFunc(attempts, func(a v1alpha1.Attempt) bool { return a.Number == number })
}
