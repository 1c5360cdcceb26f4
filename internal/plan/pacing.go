package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// cheapBurst is how many cheap transitions a task makes at once, and cheapEvery the time between
	// further ones: each is a write of its status, a row of the history and an Event, and costs those
	// who cause it next to nothing. The burst is much less than keepEntries, since it begins anew with
	// entries that the status has no more.
	cheapBurst = 8
	cheapEvery = 10 * time.Second
)

// cheap reports whether a transition of that reason takes no more than a request, a pod's report, or a
// change of another task.
func cheap(reason string) bool {
	switch reason {
	case v1alpha1.EventOperationRefused, v1alpha1.EventNotApplicable, v1alpha1.EventTaskHindered, v1alpha1.EventTaskWaiting,
		v1alpha1.EventTaskQueued, v1alpha1.EventPodGated, v1alpha1.EventTaskSuspended, v1alpha1.EventPhaseChanged, v1alpha1.EventPhaseStartMissing,
		v1alpha1.EventLossAcknowledged, v1alpha1.EventCommitApproved:
		return true
	}
	return false
}

// cheapDue returns when the next cheap transition may be made: status.history has the newest ones. Those
// that it has no more are forgiven. None waits for longer than cheapEvery after the last one.
func (d *decision) cheapDue() time.Time {
	var owed, last time.Time
	for _, e := range d.old.History {
		if !cheap(e.Reason) {
			continue
		}
		last = e.Time.Time
		if last.After(owed) {
			owed = last
		}
		owed = owed.Add(cheapEvery)
	}
	if last.After(d.now) {
		return time.Time{} // a clock was put back
	}
	due := owed.Add(-(cheapBurst - 1) * cheapEvery)
	if latest := last.Add(cheapEvery); due.After(latest) {
		due = latest
	}
	return due
}

// hold reports whether the decision is to be made again later, and requeues for then: nothing has
// happened but cheap transitions, of which there were too many. What changes meanwhile is decided on
// once.
func (d *decision) hold() bool {
	if len(d.plan.Entries) == 0 {
		return false
	}
	for _, e := range d.plan.Entries {
		if !cheap(e.Reason) {
			return false
		}
	}
	due := d.cheapDue()
	if !d.now.Before(due) || d.changesMore() {
		return false
	}
	d.requeueAt(due)
	return true
}

// changesMore reports whether the plan changes more than what the status says of the task.
func (d *decision) changesMore() bool {
	rest := d.plan
	rest.Write = false
	return rest.Acts() || !equality.Semantic.DeepEqual(d.old.Attempts, d.s.Attempts)
}
