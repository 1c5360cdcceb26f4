package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// Decide returns what to do next for a task. It is pure: the same observation and time
// give the same plan.
func Decide(o Observed, now time.Time) Plan {
	d := newDecision(o, now)
	switch {
	case o.Task.DeletionTimestamp != nil:
		d.delete()
	case d.outboxFull():
		d.plan.Held = true
		d.requeue(o.Limits.RetryBase)
	case !d.considerAdoption():
		d.report()
	case d.lacksDone():
		d.plan.Held = true
		d.requeue(o.Limits.RetryBase)
	default:
		d.passOverOperations()
		d.catchUp()
		d.followRequests()
		d.warnOfBudgets()
		d.recallSpending()
		d.recallOfContract()
		d.followAttempt()
		d.forgetTold()
		d.noteStarted()
		d.followParent()
		d.followRestart()
		d.dropStoppedResume()
		d.followRewind()
		d.followPhase()
		d.followChildren()
		d.awaitTasks()
		d.considerRewind()
		d.withdrawRewound()
		d.dropOvertakenResume()
		d.considerResume()
		d.finishRelease()
		d.dropFormerClaims()
		d.steer()
		d.noteReachable()
		d.report()
		d.publish()
		d.considerRelease()
		d.considerSize()
		d.updateGap()
	}
	d.reportRecording()
	return d.finish()
}

// decision is the state of one call of Decide: s is the new status, old the stored one.
type decision struct {
	o     Observed
	now   time.Time
	task  *v1alpha1.Task
	old   *v1alpha1.TaskStatus
	s     *v1alpha1.TaskStatus
	views map[int64]*podView
	plan  Plan
	// waiting is why no pod was started; nil if one was, or if none was needed.
	waiting *Blocker
	// away is the node that the task waits for; nil if it waits for none.
	away *absence
	// awaited is why a task that has not begun cannot start because of others; nil if it can.
	awaited *Blocker
}

func newDecision(o Observed, now time.Time) *decision {
	d := &decision{
		o: o, now: now, task: o.Task,
		old:   &o.Task.Status,
		s:     o.Task.Status.DeepCopy(),
		views: map[int64]*podView{},
	}
	for i := range o.Pods {
		if a := d.attemptOf(&o.Pods[i]); a != nil {
			d.views[a.Number] = inspect(&o.Pods[i])
		}
	}
	return d
}

// requeue asks for another decision after the given time at the latest.
func (d *decision) requeue(after time.Duration) {
	after = max(after, 10*time.Millisecond)
	if d.plan.RequeueAfter == 0 || after < d.plan.RequeueAfter {
		d.plan.RequeueAfter = after
	}
}

// requeueAt asks for another decision at t at the latest.
func (d *decision) requeueAt(t time.Time) { d.requeue(t.Sub(d.now)) }

// active returns the attempt that has no outcome yet; nil if there is none.
func (d *decision) active() *v1alpha1.Attempt {
	if a := d.last(); a != nil && a.Outcome == "" {
		return a
	}
	return nil
}

// last returns the newest attempt; nil if there is none.
func (d *decision) last() *v1alpha1.Attempt {
	if n := len(d.s.Attempts); n > 0 {
		return &d.s.Attempts[n-1]
	}
	return nil
}

func (d *decision) rewinding() bool {
	return d.s.Rewind != nil && d.s.Rewind.State == v1alpha1.OperationInProgress
}

func (d *decision) resuming() bool {
	return d.s.Resume != nil && d.s.Resume.State == v1alpha1.OperationInProgress
}

func (d *decision) suspended() bool {
	return d.task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended
}

// settlement is how a task ended. Only a person can start such a task again.
type settlement struct {
	reason  string
	message string
	attempt int64
}

// settled returns how the task ended; nil if it has not. Attempts that only rewound the
// task do not count, however they ended, nor do those of a resume that was not carried out.
func (d *decision) settled() *settlement {
	if d.resuming() && d.s.Resume.Attempt != 0 && !d.rewinding() {
		return d.settledByLimit() // it is being carried out
	}
	return cmp.Or(settledBy(d.s.Attempts, d.resumedIn()), d.settledByLimit())
}

// settledBy returns how attempts have ended the task. The agent of the attempt with the number resumed
// goes on, whatever has stopped that: its resume was carried out. An attempt that has taken the task back to
// the end of a former one leaves out those between them.
func settledBy(attempts []v1alpha1.Attempt, resumed int64) *settlement {
	rewound, back := false, int64(math.MaxInt64)
	for _, a := range slices.Backward(attempts) {
		switch {
		case a.Number > back:
		case a.Outcome == v1alpha1.AttemptCompleted:
			return whenRewound(rewound, settlement{v1alpha1.ReasonCompleted, a.Message, a.Number})
		case a.Outcome == v1alpha1.AttemptAgentFailed && !retried(a), a.Outcome == v1alpha1.AttemptLimitReached:
			return whenRewound(rewound, settlement{a.Reason, a.Message, a.Number})
		case a.Outcome == v1alpha1.AttemptRewound && a.BackTo != 0:
			back = a.BackTo
		case a.Outcome == v1alpha1.AttemptRewound:
			rewound = true
		case withoutAgent(a) && a.Number != resumed:
			continue
		case a.Outcome == v1alpha1.AttemptBlocked:
			return whenRewound(rewound, settlement{a.Reason, a.Message, a.Number})
		default:
			return nil
		}
	}
	return nil
}

// whenRewound returns s, with the reason Rewound if the task was rewound since.
func whenRewound(rewound bool, s settlement) *settlement {
	if rewound {
		s.reason = v1alpha1.ReasonRewound
		s.message = "the task was rewound to a checkpoint: resume it to continue from there"
	}
	return &s
}

// delete stops the pods of a task that is being deleted, and lets its finalizer go when
// no pod is left.
func (d *decision) delete() {
	if !slices.Contains(d.task.Finalizers, v1alpha1.TaskFinalizer) {
		return
	}
	if d.stopAll() {
		d.reportHangingPod()
		return
	}
	if d.o.Joining > 0 {
		d.requeue(d.o.Limits.RetryBase) // whoever becomes a child at this moment is deleted as well
		return
	}
	d.plan.DeleteChildren = d.childrenToDelete()
	attempt := int64(0)
	if a := d.last(); a != nil {
		attempt = a.Number
	}
	// No admission policy sees a deletion, and the object does not name who requested it.
	actor, message := Unknown, "the Task was deleted; its history is kept"
	if d.s.DeletionRequestedTime != nil {
		actor, message = clew, "the Task was deleted after it had finished, as spec.onFinish says; its history is kept"
	}
	d.plan.Farewell = &v1alpha1.HistoryEntry{
		Sequence: d.s.HistorySequence + 1,
		Time:     metav1.NewMicroTime(d.task.DeletionTimestamp.Time),
		Reason:   v1alpha1.EventTaskDeleted,
		Actor:    actor,
		Message:  message + withChildren(len(d.plan.DeleteChildren)),
		Attempt:  attempt,
	}
}

// reportHangingPod reports a pod that a deletion waits for: one whose node cannot be reached, and one that
// has outlived its grace period. Reporting earlier is not worth a status write.
func (d *decision) reportHangingPod() {
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		away := d.podAbsence(v)
		message := ""
		switch {
		case v.finished || !v.deleting || away != nil && d.given(away):
		case away != nil:
			message = fmt.Sprintf("%s: the deletion waits until %s for pod %s to terminate; after that the kubelet ends it when the node is back",
				away, stamp(d.lostAt(away)), v.pod.Name)
			d.noteAway(away, message)
		case !d.now.Before(v.pod.DeletionTimestamp.Add(d.o.Limits.ProblemGrace)):
			message = fmt.Sprintf("the deletion waits for pod %s on node %s to terminate; if the node will not come back, delete the pod with --force", v.pod.Name, v.pod.Spec.NodeName)
		}
		if message != "" {
			d.setCondition(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDeleting, message)
			return
		}
	}
}

// stopAll deletes every pod that still runs, and reports whether there is one to wait for.
func (d *decision) stopAll() bool {
	waits := false
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		if v.finished {
			continue
		}
		d.stop(v)
		away := d.podAbsence(v)
		switch {
		case away == nil || !v.deleting:
			d.requeue(d.o.Limits.ProblemGrace)
		case d.given(away):
			continue // the kubelet ends it when the node is back
		default:
			d.requeueAt(d.lostAt(away))
		}
		waits = true
	}
	return waits
}

// stop deletes the pod, unless it is being deleted already.
func (d *decision) stop(v *podView) {
	if ref := (PodRef{Name: v.pod.Name, UID: string(v.pod.UID)}); !v.deleting && !slices.Contains(d.plan.StopPods, ref) {
		d.plan.StopPods = append(d.plan.StopPods, ref)
	}
}

// refuseOperation adds an entry about an operation that is refused, and returns the
// operation's status.
func (d *decision) refuseOperation(kind, id, reason, message string) *v1alpha1.OperationStatus {
	now := ptr.To(metav1.NewTime(d.now))
	requester := d.resumeRequester()
	if kind == daemonapi.OperationRewind {
		requester = d.rewindRequester(d.requestedRewind(id))
	}
	d.addEntry(v1alpha1.EventOperationRefused, actorOf(requester), fmt.Sprintf("%s %s was refused (%s): %s", kind, id, reason, message))
	return &v1alpha1.OperationStatus{
		ID: id, State: v1alpha1.OperationRefused, Reason: reason, Message: statusText(message), StartTime: now, EndTime: now, RequestedBy: requester,
	}
}
