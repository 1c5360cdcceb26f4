package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// States of a task in its history.
const (
	stateRunning   = "Running"
	stateSuspended = "Suspended"
	stateCompleted = "Completed"
	stateFailed    = "Failed"
	stateRewound   = "Rewound"
	stateDrifted   = v1alpha1.ReasonDriftDetected
	stateDeleted   = "Deleted"
	stateWaiting   = "Waiting"
	stateQueued    = v1alpha1.ReasonQueued
	stateSpent     = v1alpha1.ReasonBudgetExceeded
)

// suspendedMessage is the message of the entry for a suspension.
const suspendedMessage = "the task is suspended; its work is kept"

// isSuspension reports whether an attempt that stops for a reason leaves the task to be resumed.
func isSuspension(reason string) bool {
	return reason == v1alpha1.ReasonSuspending || reason == v1alpha1.ReasonPhaseRestarted
}

// StateAfter returns the state of the task after a transition; "" if the transition
// does not change it. How a rewind ended is read from the attempts in the status, so
// that the same entry has the same state when it is recorded later, or again.
func StateAfter(s *v1alpha1.TaskStatus, e v1alpha1.HistoryEntry) string {
	switch e.Reason {
	case v1alpha1.EventTaskStarted, v1alpha1.EventTaskResumed, v1alpha1.EventTaskRetried:
		return stateRunning
	case v1alpha1.EventTaskWaiting:
		return stateWaiting
	case v1alpha1.EventTaskQueued:
		return stateQueued
	case v1alpha1.EventApprovalRequested:
		return stateAfterRequest(s.Attempts, e.Attempt)
	case v1alpha1.EventTaskCompleted:
		return stateCompleted
	case v1alpha1.EventTaskFailed:
		return stateFailed
	case v1alpha1.EventBudgetExceeded:
		return stateSpent
	case v1alpha1.EventTaskSuspended, v1alpha1.EventStoppedByParent:
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

// stateAfterRewind returns the state after a rewind: the agent of a task that was running
// continues, and a task that was stopped stays suspended, or Rewound if it had ended; one that was taken back
// to where it had ended has ended again.
func stateAfterRewind(attempts []v1alpha1.Attempt, number int64) string {
	i := attemptNumbered(attempts, number)
	if i < 0 || attempts[i].Outcome != v1alpha1.AttemptRewound {
		return stateRunning
	}
	s := settledBy(attempts[:i+1], 0)
	if s == nil {
		return stateSuspended
	}
	switch statusOf(s.reason) {
	case metav1.ConditionTrue:
		return stateCompleted
	case metav1.ConditionFalse:
		return stateFailed
	}
	return stateRewound
}

// stateAfterDrift returns the state after drift was found: the agent is not started. A
// rewind that drift stops leaves the task's state unchanged.
func stateAfterDrift(attempts []v1alpha1.Attempt, number int64) string {
	if i := attemptNumbered(attempts, number); i >= 0 && attempts[i].Trigger == v1alpha1.AttemptRewind {
		return ""
	}
	return stateDrifted
}

// stateAfterRequest returns the state after a call has begun to wait for an answer: the task waits if its
// agent was stopped for that, and otherwise still runs.
func stateAfterRequest(attempts []v1alpha1.Attempt, number int64) string {
	if i := attemptNumbered(attempts, number); i >= 0 && attempts[i].Reason == v1alpha1.ReasonWaitingForApproval {
		return stateWaiting
	}
	return ""
}

// stateInHistory returns the state of the task after the entries that the status still
// has; "" if none of those changed it.
func (d *decision) stateInHistory() string {
	for _, e := range slices.Backward(d.s.History) {
		if state := StateAfter(d.s, e); state != "" {
			return state
		}
	}
	return ""
}

// wasSuspended reports whether the history has the task as suspended. If the status no
// longer has an entry that says so, the stored condition decides.
func (d *decision) wasSuspended() bool {
	state, stored := d.stateInHistory(), meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	return state == stateSuspended || state == "" && stored != nil && stored.Reason == v1alpha1.ReasonSuspended
}

// addSuspendedEntry adds an entry for a task that was suspended between two attempts, so
// that no end of an attempt has reported it.
func (d *decision) addSuspendedEntry(reason string) {
	if reason != v1alpha1.ReasonSuspended || d.last() == nil || d.wasSuspended() {
		return
	}
	d.addEntry(v1alpha1.EventTaskSuspended, actorOf(d.modeRequester()), suspendedMessage)
}

// attemptNumbered returns the index of an attempt; -1 if the list no longer has it.
func attemptNumbered(attempts []v1alpha1.Attempt, number int64) int {
	return slices.IndexFunc(attempts, func(a v1alpha1.Attempt) bool { return a.Number == number })
}
