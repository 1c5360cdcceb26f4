package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// attemptOf returns the attempt a pod was created for; nil if Clew did not create it.
// Anyone can give a pod a label, a name and an owner, so the UID decides. The name is
// used only while no manager has recorded the UID and another manager has reserved the
// number.
func (d *decision) attemptOf(pod *corev1.Pod) *v1alpha1.Attempt {
	number := resources.Attempt(pod)
	i := slices.IndexFunc(d.s.Attempts, func(a v1alpha1.Attempt) bool { return a.Number == number })
	if i < 0 || d.s.Attempts[i].PodName != pod.Name {
		return nil
	}
	a := &d.s.Attempts[i]
	uid := a.PodUID
	if a == d.active() && uid == "" {
		uid = d.o.MadePodUID
		if uid == "" && d.o.ReservedAttempt == number {
			return nil // this process has not created the pod yet
		}
	}
	if uid != "" && uid != string(pod.UID) {
		return nil
	}
	return a
}

// followAttempt records what has happened to the active attempt.
func (d *decision) followAttempt() {
	a := d.active()
	if a == nil {
		return
	}
	v := d.views[a.Number]
	if v == nil {
		if a.PodUID == "" && d.o.MadePodUID == "" && a.Reason == "" && d.o.ReservedAttempt == a.Number {
			return // its pod has not been created yet
		}
		if a.PodUID == "" {
			a.PodUID = d.o.MadePodUID
		}
		d.end(a, d.goneEnding(a))
		return
	}
	a.PodUID = string(v.pod.UID)
	if v.pod.Spec.NodeName != "" {
		a.NodeName = v.pod.Spec.NodeName
	}
	if v.prepare != nil && v.prepare.ExitCode == 0 {
		d.markPrepared(a, v)
	}
	d.noteAgentStart(a, v)
	e, deadline := d.ending(a, v)
	if e == nil {
		e = d.nodeEnding(a, v)
	}
	switch {
	case e != nil:
		d.end(a, *e)
		d.appendSeenAttempt(prepareResult(v.prepare).NewestAttempt, a.Trigger)
	case !deadline.IsZero():
		d.requeueAt(deadline)
	}
}

// ending is how an attempt ended.
type ending struct {
	outcome  v1alpha1.AttemptOutcome
	reason   string
	message  string
	exitCode *int32
	// retryTime is the earliest time for another attempt; nil for any time.
	retryTime *metav1.Time
	// rateLimit is set when a rate limit ended the attempt.
	rateLimit *v1alpha1.RateLimitStatus
	// drift is what stopped prepare; nil for anything else.
	drift *v1alpha1.DriftStatus
}

// ending returns how the attempt ended; nil while it runs. If that depends on what the
// history store may still receive, it returns the time until which to wait for that.
func (d *decision) ending(a *v1alpha1.Attempt, v *podView) (*ending, time.Time) {
	agentDone := v.agent != nil && v.agent.ExitCode == 0
	switch {
	case d.completionRecorded(a) && (v.finished || agentDone):
		return ptr.To(completed()), time.Time{}
	case v.prepare != nil && v.prepare.ExitCode != 0:
		return d.prepareEnding(a, v), time.Time{}
	case v.prepareOnly && v.prepare != nil:
		return operationEnding(prepareResult(v.prepare)), time.Time{}
	case (v.deleting || v.disrupted != "") && !v.finished:
		return nil, time.Time{} // it is being deleted, so its exit codes mean nothing
	case v.deleting || v.disrupted != "" || a.Reason != "":
		if v.finished {
			return ptr.To(d.withNode(a, d.lostEnding(a, "the pod was deleted or evicted: "+orUnknown(v.disrupted)))), time.Time{}
		}
		return nil, time.Time{}
	case agentDone:
		return d.unrecordedEnding(a, v)
	case v.agent != nil:
		return d.agentEnding(a, v)
	case v.finished:
		return ptr.To(d.brokenEnding(a, v)), time.Time{}
	}
	return nil, time.Time{}
}

// operationEnding returns the ending of a pod that only carries out an operation.
func operationEnding(result daemonapi.PrepareResult) *ending {
	if f := result.Failed; f != nil {
		return &ending{outcome: v1alpha1.AttemptStopped, reason: f.Reason, message: f.Message}
	}
	return &ending{outcome: v1alpha1.AttemptRewound}
}

// completed is the ending of an attempt whose agent has completed the task.
func completed() ending {
	return ending{outcome: v1alpha1.AttemptCompleted, exitCode: ptr.To[int32](0),
		message: "the agent exited with 0 and its last checkpoint is recorded"}
}

// completionRecorded reports whether the history store has the checkpoint that is taken
// when the agent of this attempt exits with 0.
func (d *decision) completionRecorded(a *v1alpha1.Attempt) bool {
	latest := d.o.History.State.Latest
	return d.o.History.Known && latest != nil &&
		latest.Attempt == a.Number && latest.Trigger == string(v1alpha1.TriggerCompletion)
}

// goneEnding returns the ending of an attempt whose pod no longer exists.
func (d *decision) goneEnding(a *v1alpha1.Attempt) ending {
	if d.completionRecorded(a) {
		return completed()
	}
	if a.PodUID == "" && d.o.MadePodUID == "" {
		// Another manager reserved the number. It may have created a pod that still runs
		// somewhere, so the number is not used again.
		return d.lostEnding(a, "the manager was replaced before it recorded the pod, so another attempt takes its place")
	}
	return d.withNode(a, d.lostEnding(a, "the pod is gone"))
}

// lostEnding returns the ending of a pod that was deleted, by Clew, which has recorded why before,
// or by somebody else. A pod that others have deleted of a task that is to be suspended is not
// missed.
func (d *decision) lostEnding(a *v1alpha1.Attempt, message string) ending {
	switch {
	case a.Reason == v1alpha1.ReasonPhaseRestarted:
		return ending{outcome: v1alpha1.AttemptSuspended, reason: a.Reason}
	case a.Reason == v1alpha1.ReasonSuspending, a.Reason == "" && d.suspended() && !d.rewinding():
		return ending{outcome: v1alpha1.AttemptSuspended, reason: v1alpha1.ReasonSuspending}
	case isLimit(a.Reason) && a.AgentStartTime != nil:
		return ending{outcome: v1alpha1.AttemptLimitReached, reason: a.Reason, message: limitMessage(a.Reason, d.used())}
	case a.Reason != "":
		return ending{outcome: v1alpha1.AttemptStopped, reason: a.Reason}
	}
	return ending{outcome: v1alpha1.AttemptPodLost, message: message}
}

// prepareEnding returns the ending of an attempt whose workspace could not be prepared;
// nil while prepare was only killed and its pod has not finished.
func (d *decision) prepareEnding(a *v1alpha1.Attempt, v *podView) *ending {
	result := prepareResult(v.prepare)
	if result.Reason == "" && (v.deleting || v.disrupted != "" || a.Reason != "" || interrupted(v.prepare, result)) {
		if !v.finished {
			return nil
		}
		return ptr.To(d.lostEnding(a, fmt.Sprintf("prepare was killed (exit code %d)", v.prepare.ExitCode)))
	}
	e := ending{outcome: v1alpha1.AttemptPrepareFailed, reason: result.Reason, message: result.Message, drift: driftOf(a.Number, result)}
	if e.reason == "" {
		e.reason = v1alpha1.ReasonPrepareFailed
		e.message = fmt.Sprintf("prepare exited with code %d: %s", v.prepare.ExitCode, v.prepare.Message)
	}
	switch {
	case result.Permanent && v.prepareOnly && d.rewinding() && doneIn(a, result, daemonapi.OperationRewind, d.s.Rewind):
		e.outcome = v1alpha1.AttemptRewound // all that the pod was for
	case result.Permanent:
		e.outcome = v1alpha1.AttemptBlocked
	}
	return &e
}

// unrecordedEnding returns the ending of an agent that exited with 0 and whose last
// checkpoint is not recorded; nil and a deadline while that may still arrive. The shim
// holds the exit back until the checkpoint is safe, so it is missing only if the pod's
// sidecar and its volume were lost after that.
func (d *decision) unrecordedEnding(a *v1alpha1.Attempt, v *podView) (e *ending, deadline time.Time) {
	if !v.finished || !d.o.History.Known {
		return nil, time.Time{}
	}
	if deadline := v.end().Add(d.o.Limits.RecordWait); d.now.Before(deadline) {
		return nil, deadline
	}
	return ptr.To(d.lostEnding(a, "the agent exited with 0, but its last checkpoint was never recorded: it is started again")), time.Time{}
}

// failedEnding returns the ending of an agent that failed: it is retried, or this was the
// last try.
func (d *decision) failedEnding(code int32, message string) ending {
	return ending{outcome: v1alpha1.AttemptAgentFailed, reason: d.retryReason(), exitCode: &code, message: message}
}

// retryReason returns the reason of an agent that has failed and is retried, or for which this was the
// last try.
func (d *decision) retryReason() string {
	switch limit := ptr.Deref(d.task.Spec.BackoffLimit, 3); {
	case d.s.Failures < limit:
		return v1alpha1.ReasonRetrying
	case limit == 0:
		return v1alpha1.ReasonAgentFailed
	}
	return v1alpha1.ReasonBackoffLimit
}

// brokenEnding returns the ending of a pod that finished without running its agent.
func (d *decision) brokenEnding(a *v1alpha1.Attempt, v *podView) ending {
	for _, s := range v.pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			if e := d.unstartable(s.Name, t); e != nil {
				return *e
			}
			return d.failedEnding(t.ExitCode, fmt.Sprintf("the init container %s exited with code %d (%s)", s.Name, t.ExitCode, orUnknown(t.Reason)))
		}
	}
	return d.lostEnding(a, "the pod ended before the agent did: "+orUnknown(v.pod.Status.Reason+" "+v.pod.Status.Message))
}

// end sets the attempt's outcome, and adds the entries that follow from it.
func (d *decision) end(a *v1alpha1.Attempt, e ending) {
	d.countUse(a)
	d.endRequests(a)
	a.Outcome, a.Reason, a.Message, a.ExitCode = e.outcome, e.reason, statusText(e.message), e.exitCode
	a.RetryTime = e.retryTime
	a.EndTime = ptr.To(metav1.NewTime(d.now))
	d.markUnstarted(a)
	switch e.outcome {
	case v1alpha1.AttemptCompleted:
		d.s.RateLimit = nil
		d.addEntry(v1alpha1.EventTaskCompleted, clew, e.message)
	case v1alpha1.AttemptSuspended:
		if e.reason == v1alpha1.ReasonPhaseRestarted { // whoever has begun the phase again is in the entry before
			d.addEntry(v1alpha1.EventTaskSuspended, clew, "the task has stopped, since its parent has begun its phase again; its work is kept")
			break
		}
		d.addEntry(v1alpha1.EventTaskSuspended, actorOf(d.modeRequester()), suspendedMessage)
	case v1alpha1.AttemptLimitReached:
		entry, _ := limitEntry(e.reason)
		d.addEntry(entry, clew, limitEntryMessage(e.reason, e.message))
	case v1alpha1.AttemptPodLost:
		d.addEntry(v1alpha1.EventPodLost, clew, fmt.Sprintf("pod %s was lost: %s", a.PodName, e.message))
	case v1alpha1.AttemptNodeLost:
		d.addEntry(v1alpha1.EventNodeLost, clew, fmt.Sprintf("pod %s was lost: %s", a.PodName, e.message))
	case v1alpha1.AttemptAgentFailed:
		d.s.RateLimit = e.rateLimit
		if e.reason != v1alpha1.ReasonAgentRateLimited {
			d.s.Failures++
		}
		if !retried(*a) {
			d.addEntry(v1alpha1.EventTaskFailed, clew, e.message)
		}
	case v1alpha1.AttemptBlocked, v1alpha1.AttemptPrepareFailed:
		d.markUnprepared(a, e)
	case v1alpha1.AttemptRewound:
		if e.reason != "" { // something was found behind the rewind
			d.markUnprepared(a, e)
		}
	}
}

// markPrepared sets that the workspace is ready and that the operation is complete.
//
// Without an operation that somebody waits for, this is reported together with the
// agent's start a moment later, which saves a write.
func (d *decision) markPrepared(a *v1alpha1.Attempt, v *podView) {
	if !d.rewinding() && !d.resuming() && !v.agentRuns && v.agent == nil && !v.prepareOnly && !v.finished {
		return
	}
	result := prepareResult(v.prepare)
	message := "the workspace is prepared"
	if result.Restored {
		message = "the workspace was restored from the gitstore"
	}
	d.setCondition(v1alpha1.TaskWorkspaceReady, metav1.ConditionTrue, v1alpha1.ReasonWorkspacePrepared, message)
	d.s.Released = nil
	d.reportSettledDrift(a, result)
	a.Memory, a.MemoryMessage = memoryOf(result)
	if branches, ok := agentBranchesOf(a.Number, v.pod, result); ok {
		d.s.AgentBranches = branches
	}
	d.closeOperations(a, result, func(kind string, op *v1alpha1.OperationStatus) bool {
		return doneIn(a, result, kind, op) || result.Operation == "" && op.Attempt == a.Number
	})
}

// doneIn reports whether prepare has named the operation, in the attempt that is for it, as one
// that is done.
func doneIn(a *v1alpha1.Attempt, result daemonapi.PrepareResult, kind string, op *v1alpha1.OperationStatus) bool {
	return op.Attempt == a.Number && result.Operation == op.ID && (result.OperationKind == "" || result.OperationKind == kind)
}

// closeOperations closes the operation that failed and changed nothing, or that is done.
func (d *decision) closeOperations(a *v1alpha1.Attempt, result daemonapi.PrepareResult, done func(kind string, op *v1alpha1.OperationStatus) bool) {
	if f := result.Failed; f != nil {
		d.failOperation(a, *f)
	}
	if d.rewinding() && done(daemonapi.OperationRewind, d.s.Rewind) {
		d.completeRewind(result)
	}
	if d.resuming() && done(daemonapi.OperationResume, d.s.Resume) {
		d.completeResume(result)
	}
}

// failOperation closes a rewind that failed and left everything unchanged: the attempt
// continues.
func (d *decision) failOperation(a *v1alpha1.Attempt, f daemonapi.OperationFailure) {
	if !d.rewinding() || f.Kind != daemonapi.OperationRewind || f.ID != d.s.Rewind.ID || d.s.Rewind.Attempt != a.Number {
		return
	}
	const unchanged = "; files and conversation are as they were before"
	failed := fmt.Sprintf("rewind %s failed (%s): ", f.ID, f.Reason)
	// What matters most must not be what a long reason pushes out.
	message := resources.PlainText(f.Message, maxMessage-len(failed)-len(unchanged)-1) + unchanged
	d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, f.Reason, message)
	d.addEntry(v1alpha1.EventOperationFailed, actorOf(d.s.Rewind.RequestedBy), failed+message)
}

// memoryOf returns what the agent knows when it starts. A value that the schema does not
// have, from a newer daemon, is left out.
func memoryOf(result daemonapi.PrepareResult) (v1alpha1.AgentMemory, string) {
	switch m := result.Memory; m {
	case v1alpha1.AgentMemoryNew, v1alpha1.AgentMemorySession, v1alpha1.AgentMemoryRendered:
		return m, statusText(result.MemoryMessage)
	}
	return "", statusText(result.MemoryMessage)
}

// markUnprepared sets the conditions of a workspace that could not be prepared, and closes
// the operation that failed with it, unless that was done: prepare goes on after it, and an earlier
// pod may have carried it out.
func (d *decision) markUnprepared(a *v1alpha1.Attempt, e ending) {
	d.setCondition(v1alpha1.TaskWorkspaceReady, metav1.ConditionFalse, e.reason, e.message)
	if e.outcome == v1alpha1.AttemptPrepareFailed {
		return // the next attempt reports the operation again
	}
	rewinding := d.rewinding() && d.s.Rewind.Attempt == a.Number
	if v := d.views[a.Number]; v != nil {
		result := prepareResult(v.prepare)
		d.closeOperations(a, result, func(kind string, op *v1alpha1.OperationStatus) bool { return doneIn(a, result, kind, op) })
	}
	reason, actor := v1alpha1.EventTaskFailed, clew
	switch {
	case e.reason == v1alpha1.ReasonDriftDetected:
		reason = v1alpha1.EventDriftDetected
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionTrue, e.reason, e.message)
		d.s.Drift = e.drift
	case rewinding && !d.rewinding():
		return // its entry is there, and the next attempt reports what is in its way
	case rewinding:
		reason, actor = v1alpha1.EventOperationFailed, actorOf(d.s.Rewind.RequestedBy)
	}
	if d.rewinding() && d.s.Rewind.Attempt == a.Number {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, e.reason, e.message)
	}
	if d.resuming() && d.s.Resume.Attempt == a.Number {
		d.closeOperation(d.s.Resume, v1alpha1.OperationFailed, e.reason, e.message)
	}
	d.addEntry(reason, actor, e.reason+": "+e.message)
}

// orUnknown returns s, or a phrase that says that no reason was given.
func orUnknown(s string) string {
	if s == "" || s == " " {
		return "no reason was given"
	}
	return s
}
