package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// attemptOf is the attempt that a pod was made for; nil if Clew did not make it. Anyone
// can give a pod a label, a name and an owner, so the UID decides. The name is used only
// as long as no manager has recorded the UID and another one reserved the number.
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
			return nil // this process has not made the pod yet
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
			return // its pod has not been made yet
		}
		if a.PodUID == "" {
			a.PodUID = d.o.MadePodUID
		}
		d.end(a, d.goneEnding(a))
		return
	}
	a.PodUID = string(v.pod.UID)
	if v.prepare != nil && v.prepare.ExitCode == 0 {
		d.prepared(a, v)
	}
	if e := d.ending(a, v); e != nil {
		d.end(a, *e)
		d.enterSeen(prepareResult(v.prepare).NewestAttempt, a.Trigger)
	}
}

// ending is how an attempt ended.
type ending struct {
	outcome  v1alpha1.AttemptOutcome
	reason   string
	message  string
	exitCode *int32
	// retryTime is when another attempt may start at the earliest; nil for any time.
	retryTime *metav1.Time
	// rateLimit is set for an end by a rate limit.
	rateLimit *v1alpha1.RateLimitStatus
}

// ending is how the attempt ended; nil while it runs.
func (d *decision) ending(a *v1alpha1.Attempt, v *podView) *ending {
	agentDone := v.agent != nil && v.agent.ExitCode == 0
	switch {
	case d.completionRecorded(a) && (v.finished || agentDone):
		return ptr.To(completed())
	case v.prepare != nil && v.prepare.ExitCode != 0:
		return d.prepareEnding(a, v)
	case v.prepareOnly && v.prepare != nil:
		if f := prepareResult(v.prepare).Failed; f != nil {
			return &ending{outcome: v1alpha1.AttemptStopped, reason: f.Reason, message: f.Message}
		}
		return &ending{outcome: v1alpha1.AttemptRewound}
	case (v.deleting || v.disrupted != "") && !v.finished:
		return nil // it is being deleted, so its exit codes mean nothing
	case v.deleting || v.disrupted != "" || a.Reason != "":
		if v.finished {
			return ptr.To(d.lostEnding(a, "the pod was taken away: "+orUnknown(v.disrupted)))
		}
		return nil
	case agentDone:
		return d.unrecordedEnding(a, v)
	case v.agent != nil:
		return d.agentEnding(a, v)
	case v.finished:
		return ptr.To(d.brokenEnding(a, v))
	}
	return nil
}

func completed() ending {
	return ending{outcome: v1alpha1.AttemptCompleted, exitCode: ptr.To[int32](0),
		message: "the agent exited with 0 and its last checkpoint is recorded"}
}

// completionRecorded reports whether history has the checkpoint that is taken when the
// agent of this attempt exits with 0.
func (d *decision) completionRecorded(a *v1alpha1.Attempt) bool {
	latest := d.o.History.State.Latest
	return d.o.History.Known && latest != nil &&
		latest.Attempt == a.Number && latest.Trigger == string(v1alpha1.TriggerCompletion)
}

// goneEnding is the ending of an attempt whose pod no longer exists.
func (d *decision) goneEnding(a *v1alpha1.Attempt) ending {
	if d.completionRecorded(a) {
		return completed()
	}
	if a.PodUID == "" && d.o.MadePodUID == "" {
		// Another manager reserved the number. It may have made a pod, which may still
		// run somewhere, so the number is not used again.
		return d.lostEnding(a, "the manager was replaced before it noted the pod, so another attempt takes its place")
	}
	return d.lostEnding(a, "the pod is gone")
}

// lostEnding is the ending of a pod that was deleted, by Clew or by somebody else. A
// manager that died after it had stopped a pod left no reason; the spec gives it.
func (d *decision) lostEnding(a *v1alpha1.Attempt, message string) ending {
	switch {
	case a.Reason == v1alpha1.ReasonSuspending, a.Reason == "" && d.suspended() && !d.rewinding():
		return ending{outcome: v1alpha1.AttemptSuspended, reason: v1alpha1.ReasonSuspending}
	case a.Reason != "":
		return ending{outcome: v1alpha1.AttemptStopped, reason: a.Reason}
	}
	return ending{outcome: v1alpha1.AttemptPodLost, message: message}
}

// prepareEnding is the ending of an attempt whose workspace could not be prepared.
func (d *decision) prepareEnding(a *v1alpha1.Attempt, v *podView) *ending {
	result := prepareResult(v.prepare)
	if result.Reason == "" && (v.deleting || v.disrupted != "" || a.Reason != "" || interrupted(v.prepare, result)) {
		if !v.finished {
			return nil
		}
		return ptr.To(d.lostEnding(a, fmt.Sprintf("prepare was killed (exit code %d)", v.prepare.ExitCode)))
	}
	e := ending{outcome: v1alpha1.AttemptPrepareFailed, reason: result.Reason, message: result.Message}
	if e.reason == "" {
		e.reason = v1alpha1.ReasonPrepareFailed
		e.message = fmt.Sprintf("prepare ended with exit code %d: %s", v.prepare.ExitCode, v.prepare.Message)
	}
	if result.Permanent {
		e.outcome = v1alpha1.AttemptBlocked
	}
	return &e
}

// unrecordedEnding waits for the last checkpoint of an agent that exited with 0. The
// shim holds the exit back until that checkpoint is safe, so it is missing only if the
// pod's sidecar and its volume were lost in between.
func (d *decision) unrecordedEnding(a *v1alpha1.Attempt, v *podView) *ending {
	if !v.finished || !d.o.History.Known {
		return nil
	}
	deadline := v.end().Add(d.o.Limits.RecordWait)
	if d.now.Before(deadline) {
		d.lookAt(deadline)
		return nil
	}
	return ptr.To(d.lostEnding(a, "the agent exited with 0, but its last checkpoint was never recorded: it is started again"))
}

// failedEnding is the ending of an agent that failed: it is retried, or this was the
// last try.
func (d *decision) failedEnding(code int32, message string) ending {
	e := ending{outcome: v1alpha1.AttemptAgentFailed, reason: v1alpha1.ReasonRetrying, exitCode: &code, message: message}
	limit := ptr.Deref(d.task.Spec.BackoffLimit, 3)
	switch {
	case d.s.Failures < limit:
	case limit == 0:
		e.reason = v1alpha1.ReasonAgentFailed
	default:
		e.reason = v1alpha1.ReasonBackoffLimit
	}
	return e
}

// brokenEnding is the ending of a pod that finished although its agent never ran.
func (d *decision) brokenEnding(a *v1alpha1.Attempt, v *podView) ending {
	for _, s := range v.pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			if e := d.unstartable(s.Name, t); e != nil {
				return *e
			}
			return d.failedEnding(t.ExitCode, fmt.Sprintf("the init container %s ended with exit code %d (%s)", s.Name, t.ExitCode, orUnknown(t.Reason)))
		}
	}
	return d.lostEnding(a, "the pod ended before the agent did: "+orUnknown(v.pod.Status.Reason+" "+v.pod.Status.Message))
}

// end sets the attempt's outcome, and records what follows from it.
func (d *decision) end(a *v1alpha1.Attempt, e ending) {
	a.Outcome, a.Reason, a.Message, a.ExitCode = e.outcome, e.reason, cut(e.message), e.exitCode
	a.RetryTime = e.retryTime
	a.EndTime = ptr.To(metav1.NewTime(d.now))
	switch e.outcome {
	case v1alpha1.AttemptCompleted:
		d.s.RateLimit = nil
		d.entry(v1alpha1.EventTaskCompleted, clew, e.message)
	case v1alpha1.AttemptSuspended:
		d.entry(v1alpha1.EventTaskSuspended, somebody(d.modeRequester()), sleepMessage)
	case v1alpha1.AttemptPodLost:
		d.entry(v1alpha1.EventPodLost, clew, fmt.Sprintf("pod %s was lost: %s", a.PodName, e.message))
	case v1alpha1.AttemptAgentFailed:
		d.s.RateLimit = e.rateLimit
		if e.reason != v1alpha1.ReasonAgentRateLimited {
			d.s.Failures++
		}
		if !retried(*a) {
			d.entry(v1alpha1.EventTaskFailed, clew, e.message)
		}
	case v1alpha1.AttemptBlocked, v1alpha1.AttemptPrepareFailed:
		d.unprepared(a, e)
	}
}

// prepared records that the workspace is ready, and that the operation is complete.
//
// If nobody waits for an operation, this is reported together with the agent's start a
// moment later, which saves a write.
func (d *decision) prepared(a *v1alpha1.Attempt, v *podView) {
	if !d.rewinding() && !d.resuming() && !v.agentRuns && v.agent == nil && !v.prepareOnly && !v.finished {
		return
	}
	result := prepareResult(v.prepare)
	message := "the workspace is as it is meant to be"
	if result.Restored {
		message = "the workspace came back from the gitstore"
	}
	d.condition(v1alpha1.TaskWorkspaceReady, metav1.ConditionTrue, v1alpha1.ReasonWorkspacePrepared, message)
	if d.find(v1alpha1.TaskDrifted) != nil {
		d.condition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.ReasonNoDrift, "the worktree is what Clew last left there")
	}
	a.Memory, a.MemoryMessage = memoryOf(result)
	done := func(kind string, op *v1alpha1.OperationStatus) bool {
		named := result.Operation == op.ID && (result.OperationKind == "" || result.OperationKind == kind)
		return op.Attempt == a.Number && (result.Operation == "" || named)
	}
	if f := result.Failed; f != nil {
		d.operationFailed(a, *f)
	}
	if d.rewinding() && done(daemonapi.OperationRewind, d.s.Rewind) {
		d.completeRewind(result)
	}
	if d.resuming() && done(daemonapi.OperationResume, d.s.Resume) {
		d.closeOperation(d.s.Resume, v1alpha1.OperationCompleted, "", "the task goes on")
	}
}

// operationFailed records an operation that failed and left everything as it was: the
// attempt goes on.
func (d *decision) operationFailed(a *v1alpha1.Attempt, f daemonapi.OperationFailure) {
	if !d.rewinding() || f.Kind != daemonapi.OperationRewind || f.ID != d.s.Rewind.ID || d.s.Rewind.Attempt != a.Number {
		return
	}
	d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, f.Reason, "files and conversation are as they were before: "+f.Message)
	d.entry(v1alpha1.EventOperationFailed, somebody(d.s.Rewind.RequestedBy), fmt.Sprintf(
		"rewind %s failed (%s); files and conversation are as they were before: %s", f.ID, f.Reason, f.Message))
}

// memoryOf is what the agent knows when it starts. A value that the schema does not know,
// from a newer daemon, is left out.
func memoryOf(result daemonapi.PrepareResult) (v1alpha1.AgentMemory, string) {
	switch m := result.Memory; m {
	case v1alpha1.AgentMemoryNew, v1alpha1.AgentMemorySession, v1alpha1.AgentMemoryRendered:
		return m, cut(result.MemoryMessage)
	}
	return "", cut(result.MemoryMessage)
}

// unprepared records a workspace that could not be prepared, and what that means for the
// current operation.
func (d *decision) unprepared(a *v1alpha1.Attempt, e ending) {
	d.condition(v1alpha1.TaskWorkspaceReady, metav1.ConditionFalse, e.reason, e.message)
	if e.outcome == v1alpha1.AttemptPrepareFailed {
		return
	}
	reason, actor := v1alpha1.EventTaskFailed, clew
	if e.reason == v1alpha1.ReasonDriftDetected {
		reason = v1alpha1.EventDriftDetected
		d.condition(v1alpha1.TaskDrifted, metav1.ConditionTrue, e.reason, e.message)
	}
	if d.rewinding() && d.s.Rewind.Attempt == a.Number {
		d.closeOperation(d.s.Rewind, v1alpha1.OperationFailed, e.reason, e.message)
		if reason == v1alpha1.EventTaskFailed {
			reason, actor = v1alpha1.EventOperationFailed, somebody(d.s.Rewind.RequestedBy)
		}
	}
	if d.resuming() && d.s.Resume.Attempt == a.Number {
		d.closeOperation(d.s.Resume, v1alpha1.OperationFailed, e.reason, e.message)
	}
	d.entry(reason, actor, e.reason+": "+e.message)
}

func orUnknown(s string) string {
	if s == "" || s == " " {
		return "no reason was given"
	}
	return s
}
