package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
)

// findCondition returns a condition of the new status; nil if it is not set.
func (d *decision) findCondition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(d.s.Conditions, kind)
}

// setCondition sets a condition, with the current time and generation.
func (d *decision) setCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.s.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: statusText(message),
		ObservedGeneration: d.task.Generation, LastTransitionTime: metav1.NewTime(d.now),
	})
}

// report sets the conditions to the task's current state.
func (d *decision) report() {
	d.s.ObservedGeneration = d.task.Generation
	status, reason, message := d.succeededCondition()
	d.requeueAfterGrace()
	if status == metav1.ConditionFalse {
		message = d.withWaiters(reason, message)
	}
	d.addProblemEntry(reason, message)
	d.addWaitEntry(reason, message)
	d.addSuspendedEntry(reason)
	d.addLimitEntry(reason, message)
	d.setCondition(v1alpha1.TaskSucceeded, status, reason, message)
	d.leaveLead(status)
	d.noteFinished(status)
	if d.findCondition(v1alpha1.TaskWorkspaceReady) == nil && d.active() != nil {
		d.setCondition(v1alpha1.TaskWorkspaceReady, metav1.ConditionUnknown, v1alpha1.ReasonPreparing, "the workspace is being prepared")
	}
	d.touchGenerations()
}

// touchGenerations sets the observed generation of all conditions: those that did not
// change were evaluated as well.
func (d *decision) touchGenerations() {
	for i := range d.s.Conditions {
		d.s.Conditions[i].ObservedGeneration = d.task.Generation
	}
}

// succeededCondition computes the condition Succeeded. It is Unknown until the task has ended, for
// whatever reason it waits: others act on a task that has failed.
func (d *decision) succeededCondition() (metav1.ConditionStatus, string, string) {
	if a := d.active(); a != nil {
		reason, message := d.activity(a)
		return metav1.ConditionUnknown, reason, message
	}
	if d.waiting != nil && d.want() != wantNothing {
		return metav1.ConditionUnknown, d.waiting.Reason, d.waiting.Message
	}
	if s := d.settled(); s != nil {
		return statusOf(s.reason), s.reason, s.message + d.advice(s.reason) + d.refusedResume()
	}
	if message := d.heldBack(); message != "" {
		return metav1.ConditionUnknown, v1alpha1.ReasonSuspended, message
	}
	if d.suspended() {
		return metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "the task is suspended: it continues once it is resumed, or its operating mode is Running again"
	}
	if d.stoppedByParent() {
		return metav1.ConditionUnknown, v1alpha1.ReasonPhaseRestarted, d.stoppedMessage()
	}
	return metav1.ConditionUnknown, v1alpha1.ReasonPending, "the task is about to start"
}

// statusOf returns the status of a task that its attempts, or a limit, have ended for a reason:
// True if it is complete; Unknown if it waits for a decision; False if it has failed.
func statusOf(name string) metav1.ConditionStatus {
	switch reason.Find(name).Standing {
	case reason.Active, reason.Resting:
		return metav1.ConditionUnknown
	case reason.Done:
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// advice returns what to do about a task that has ended.
func (d *decision) advice(reason string) string {
	advice := "; fix the cause, then resume the task"
	switch reason {
	case v1alpha1.ReasonDriftDetected:
		advice = "; resume the task with onDrift Preserve or Override"
	case v1alpha1.ReasonRewound, v1alpha1.ReasonCompleted:
		return ""
	}
	advice = cmp.Or(limitAdvice(reason, d.used()), advice)
	if d.s.PromptLost(d.task.Spec.Resume) {
		advice += ", and repeat the prompt, which the agent has not got"
	}
	return advice
}

// activity returns what the active attempt is doing, as a reason and a message.
func (d *decision) activity(a *v1alpha1.Attempt) (reason, message string) {
	v := d.views[a.Number]
	switch {
	case v != nil && d.podAbsence(v) != nil:
		return v1alpha1.ReasonNodeUnreachable, d.awayMessage(a, v)
	case v != nil && v.pod.Spec.NodeName == "" && d.waiting != nil:
		return d.waiting.Reason, d.waiting.Message
	case isSuspension(a.Reason):
		return v1alpha1.ReasonSuspending, "the agent is being stopped with a checkpoint"
	case a.Reason == v1alpha1.ReasonRewinding && !d.rewinding() && d.resuming():
		return a.Reason, "the agent is being stopped before phase " + d.s.Resume.Phase + " begins again"
	case a.Reason == v1alpha1.ReasonRewinding:
		return a.Reason, "the agent is being stopped before the rewind"
	case isLimit(a.Reason):
		return v1alpha1.ReasonStopping, "the agent is being stopped with a checkpoint, since a limit is reached: " + a.Reason
	case v == nil && d.waiting != nil:
		return d.waiting.Reason, d.waiting.Message
	case v == nil && d.o.Blocker != nil:
		return d.o.Blocker.Reason, d.o.Blocker.Message
	case v != nil && v.problem != nil && !d.now.Before(d.graceEnd(v)):
		return v.problem.Reason, d.stableMessage(a, v.problem)
	case v != nil && v.deleting:
		return v1alpha1.ReasonRetrying, fmt.Sprintf("pod %s is being deleted: another attempt follows when it is gone; if its node will not come back, delete the pod with --force", v.pod.Name)
	case d.problem(a) != nil:
		return d.problem(a).Reason, d.problem(a).Message
	case d.rewinding():
		return v1alpha1.ReasonRewinding, "the task is being rewound to " + destination(d.s.Rewind)
	case v != nil:
		return d.agentActivity(v)
	}
	return v1alpha1.ReasonPreparing, workspaceIsPrepared
}

// workspaceIsPrepared is the message of an attempt whose agent has not started.
const workspaceIsPrepared = "the workspace is being prepared"

// agentActivity returns what the agent of a pod in which nothing is wrong is doing.
func (d *decision) agentActivity(v *podView) (reason, message string) {
	switch {
	case v.agent != nil && v.agent.ExitCode == 0:
		return v1alpha1.ReasonCompleting, "the agent exited with 0: its last checkpoint is being recorded"
	case v.agentRuns && len(d.openRequests()) > 0:
		return v1alpha1.ReasonWaitingForApproval, d.approvalMessage(d.openRequests())
	case v.agentRuns:
		return v1alpha1.ReasonRunning, "the agent is running"
	case v.agent != nil && !d.o.History.Known:
		return v1alpha1.ReasonHistoryUnavailable, "the agent has ended: what follows is decided when the history store, which knows why, can be reached"
	}
	return v1alpha1.ReasonPreparing, workspaceIsPrepared
}

// graceEnd returns when problems of the pod are reported: those of a new pod may pass by
// themselves.
func (d *decision) graceEnd(v *podView) time.Time {
	return v.pod.CreationTimestamp.Add(d.o.Limits.ProblemGrace)
}

// requeueAfterGrace requeues for the end of the grace period of a new pod with a problem.
func (d *decision) requeueAfterGrace() {
	a := d.active()
	if a == nil || isSuspension(a.Reason) || a.Reason == v1alpha1.ReasonRewinding || isLimit(a.Reason) {
		return
	}
	if v := d.views[a.Number]; v != nil && v.problem != nil && d.now.Before(d.graceEnd(v)) {
		d.requeueAt(d.graceEnd(v))
	}
}

// stableMessage returns the first message about a problem: the kubelet's message changes
// with every try, and each change would be a write.
func (d *decision) stableMessage(a *v1alpha1.Attempt, b *Blocker) string {
	if c := d.storedSucceeded(a); c != nil && c.Reason == b.Reason && b.Reason != v1alpha1.ReasonQueued {
		return c.Message
	}
	return b.Message
}

// reportRecording sets the condition HistoryRecorded: whether the history store has all
// transitions.
func (d *decision) reportRecording() {
	switch was := d.findCondition(v1alpha1.TaskHistoryRecorded); {
	case d.o.RecordProblem != "" && d.plan.Farewell != nil:
		d.setCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionFalse, v1alpha1.ReasonNotRecorded,
			"the deletion waits for the history store: "+d.o.RecordProblem+"; to discard this task's last entries, remove the finalizer "+v1alpha1.TaskFinalizer)
	case d.outboxFull():
		d.setCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionFalse, v1alpha1.ReasonHistoryFull,
			fmt.Sprintf("%d transitions are waiting for the history store: the task makes no more until the store accepts them", maxUnrecorded))
	case d.o.RecordProblem != "":
		d.setCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionFalse, v1alpha1.ReasonNotRecorded, d.o.RecordProblem)
	case d.recorded() >= d.old.HistorySequence && was != nil && was.Status != metav1.ConditionTrue:
		d.setRecorded()
	}
}

// setRecorded sets the condition HistoryRecorded to True.
func (d *decision) setRecorded() {
	d.setCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionTrue, v1alpha1.ReasonRecorded, "the history store has every transition")
}

// finish compares the status with the stored one and decides whether to write it. A
// transition is written at once, with everything else that is new, unless there are too many of
// those that cost nothing; new checkpoints are reported at intervals; totals alone never cause a
// write.
func (d *decision) finish() Plan {
	transition := !equality.Semantic.DeepEqual(d.significant(d.old), d.significant(d.s))
	news := d.checkpointNews()
	at := d.checkpointNewsDue(news)
	due := news && !d.now.Before(at)
	if news && !due && !transition {
		d.requeueAt(at)
	}
	if next, tracked := d.activityDue(); tracked {
		due = d.followActivity(next) || due
	}
	due = d.useDue() || due
	atRest := d.active() == nil && d.want() == wantNothing
	unmarked := atRest && d.o.Recorded > d.old.RecordedSequence && d.o.Recorded >= d.old.HistorySequence
	if d.task.DeletionTimestamp != nil {
		due, unmarked = false, false
	}
	if d.hold() {
		transition, due, unmarked, d.plan.Entries, d.plan.Held = false, false, false, nil, true
	}
	if transition || due || unmarked {
		d.updateStatus()
		d.plan.Write = true
		d.plan.Status = *d.s
		return d.plan
	}
	d.plan.Status = *d.old.DeepCopy()
	return d.plan
}

// significant returns the status without the fields that do not justify a write of their
// own.
func (d *decision) significant(s *v1alpha1.TaskStatus) *v1alpha1.TaskStatus {
	s = s.DeepCopy()
	for i := range s.Attempts {
		s.Attempts[i].PodUID, s.Attempts[i].NodeName = "", ""
	}
	if p := s.Publish; p != nil && !announces(p.Tries) { // what was announced may have been pushed once the pod is there
		p.PodUID = ""
	}
	return s
}

// checkpointNews reports whether the status is out of date about the latest checkpoint or
// its durability, or whether objects of checkpoints have yet to be created.
func (d *decision) checkpointNews() bool {
	latest := d.o.History.State.Latest
	if !d.o.History.Known || latest == nil || d.behind() {
		return false
	}
	if d.old.CheckpointObjectsThrough != nil {
		return true
	}
	known := d.old.LatestCheckpoint
	if known == nil || known.Number != latest.Number {
		return true
	}
	return meta.IsStatusConditionTrue(d.old.Conditions, v1alpha1.TaskDurable) != latest.Durable
}

// lastActivity returns when the agent was last active; nil if it never was.
func (d *decision) lastActivity() *metav1.Time {
	if at := d.o.History.State.ActiveAt; !at.IsZero() {
		return ptr.To(metav1.NewTime(at.Truncate(time.Second)))
	}
	return d.s.LastActivity
}

// activityDue returns when the time of the last activity in the status is out of date;
// tracked is false when no agent is known to run, since only a running agent justifies the write.
func (d *decision) activityDue() (next time.Time, tracked bool) {
	a := d.active()
	if a == nil || d.away != nil || d.views[a.Number] == nil || !d.views[a.Number].agentRuns || !d.o.History.Known || d.behind() || d.o.Limits.ActivityEvery == 0 {
		return time.Time{}, false
	}
	return d.reportedActivity(a).Add(d.o.Limits.ActivityEvery), true
}

// reportedActivity returns the time of the last activity as the status has it, or the
// start of the attempt, whichever is later.
func (d *decision) reportedActivity(a *v1alpha1.Attempt) time.Time {
	if last := d.old.LastActivity; last != nil && last.After(a.StartTime.Time) {
		return last.Time
	}
	return a.StartTime.Time
}

// followActivity requeues for when the time of the last activity has to be compared next,
// and reports whether it is to be written now.
func (d *decision) followActivity(next time.Time) bool {
	if d.now.Before(next) {
		d.requeueAt(next)
		return false
	}
	d.requeue(d.o.Limits.ActivityEvery)
	return d.o.History.State.ActiveAt.Truncate(time.Second).After(d.reportedActivity(d.active()))
}

// checkpointNewsDue returns when to write new checkpoints to the status: not more often
// than RefreshEvery, and the last checkpoint of a pod together with the pod's end.
func (d *decision) checkpointNewsDue(news bool) time.Time {
	if !news {
		return time.Time{}
	}
	at := d.o.LastWrite.Add(d.o.Limits.RefreshEvery)
	latest := d.o.History.State.Latest
	ending := slices.Contains([]string{
		string(v1alpha1.TriggerCompletion), string(v1alpha1.TriggerFailure), string(v1alpha1.TriggerSuspend),
	}, latest.Trigger)
	if a := d.active(); a != nil && ending && latest.Attempt == a.Number {
		if held := latest.Time.Add(d.o.Limits.EndingHold); held.After(at) {
			at = held
		}
	}
	return at
}

// updateStatus copies the history store's state to the status, trims the outbox, and
// plans the objects that the status will name.
func (d *decision) updateStatus() {
	d.noteAgentSeen()
	d.s.RecordedSequence = min(d.recorded(), d.s.HistorySequence)
	if d.o.RecordProblem == "" && d.s.RecordedSequence >= d.old.HistorySequence && d.s.RecordedSequence > 0 {
		d.setRecorded()
	}
	d.trim()
	if !d.o.History.Known || d.task.DeletionTimestamp != nil || d.behind() {
		return
	}
	state := d.o.History.State
	d.s.CheckpointCount = state.CheckpointCount
	if !d.o.History.Deleted {
		d.s.RecordSequence = state.LastSequence
	}
	d.s.LeftOutRecords = state.LeftOutRecords
	d.s.MessageCount, d.s.ToolCallCount = state.Totals.Messages, state.Totals.ToolCalls
	d.s.LastActivity = d.lastActivity()
	d.s.InputTokens, d.s.OutputTokens, d.s.CostMicroUSD = state.Totals.InputTokens, state.Totals.OutputTokens, state.Totals.CostMicroUSD
	d.reportSpent()
	if every := int64(ptr.Deref(d.task.Spec.Conversation.SnapshotEveryMessages, 0)); every > 0 && state.Totals.Messages >= every {
		d.plan.Snapshots = ptr.To(d.s.SnapshotCount)
	}
	switch {
	case state.Latest != nil:
		d.updateCheckpoint()
	case !d.o.History.Deleted:
		d.forgetCheckpoint()
	}
}

// forgetCheckpoint removes the latest checkpoint from the status after the history store
// was restored from a copy without any, so that nothing asks the store for a checkpoint it
// does not have. The objects are kept.
func (d *decision) forgetCheckpoint() {
	if through := d.objectsThrough(); through > 0 {
		d.s.CheckpointObjectsThrough = ptr.To(through)
	}
	d.s.LatestCheckpoint = nil
	meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskDurable)
}

// objectsThrough returns the number up to which all checkpoints have an object.
func (d *decision) objectsThrough() int64 {
	switch {
	case d.old.CheckpointObjectsThrough != nil:
		return *d.old.CheckpointObjectsThrough
	case d.old.LatestCheckpoint != nil:
		return d.old.LatestCheckpoint.Number
	}
	return 0
}

// updateCheckpoint sets the latest checkpoint and the condition Durable, and plans the
// objects of new checkpoints.
func (d *decision) updateCheckpoint() {
	latest, after := d.o.History.State.Latest, d.objectsThrough()
	if latest.Number > after {
		d.plan.Checkpoints = &Range{After: after, UpTo: latest.Number}
	}
	d.s.CheckpointObjectsThrough = nil
	if k := d.old.LatestCheckpoint; k == nil || k.Number != latest.Number {
		d.s.LatestCheckpoint = &v1alpha1.CheckpointSummary{
			Number: latest.Number, Commit: latest.Commit, Time: ptr.To(metav1.NewTime(latest.Time)),
		}
		if latest.Number <= after || k != nil && latest.Number < k.Number {
			// The history store was restored from an older copy: the object exists, and no new
			// one will be created to set this name.
			d.s.LatestCheckpoint.Name = cmp.Or(latest.RequestedByName, resources.CheckpointName(d.task.Name, latest.Number))
		}
	}
	switch {
	case latest.Durable:
		d.setCondition(v1alpha1.TaskDurable, metav1.ConditionTrue, v1alpha1.ReasonPushed, "the gitstore has the latest checkpoint")
	case latest.Lost:
		d.setCondition(v1alpha1.TaskDurable, metav1.ConditionFalse, v1alpha1.ReasonCheckpointLost,
			"the latest checkpoint is lost; the condition Durable of its object says why")
	case latest.Refused != "":
		d.setCondition(v1alpha1.TaskDurable, metav1.ConditionFalse, v1alpha1.ReasonGitStoreRefused,
			"the gitstore refuses the latest checkpoint; the condition Durable of its object says why")
	default:
		d.setCondition(v1alpha1.TaskDurable, metav1.ConditionFalse, v1alpha1.ReasonNotPushed, "the latest checkpoint is being pushed to the gitstore")
	}
}
