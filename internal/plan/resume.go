package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// NewResume returns the resume in the spec that is not in the status yet; nil for none. Its
// checkpoint, if it names one, has to be observed before Decide.
func NewResume(task *v1alpha1.Task) *v1alpha1.Resume {
	r := task.Spec.Resume
	if r == nil || handled(&task.Status, daemonapi.OperationResume, r.ID) {
		return nil
	}
	return r
}

// considerResume accepts or refuses a new resume. It waits for a rewind, which would overtake
// it, and for a pod that is being suspended. One that begins a phase again stops the agent of a task
// that runs; the others are refused.
func (d *decision) considerResume() {
	r := d.task.Spec.Resume
	if r == nil || handled(d.s, daemonapi.OperationResume, r.ID) || d.rewinding() {
		return
	}
	if d.rewindPending() {
		d.waitForRewind(r)
		return
	}
	if a := d.active(); a != nil && (isSuspension(a.Reason) || isLimit(a.Reason)) {
		return
	}
	var accepted *v1alpha1.OperationStatus
	refusal := d.resumeBlocker(r)
	if refusal == nil {
		accepted, refusal = d.resolveResume(r)
	}
	d.noteReplacedResume(r)
	switch {
	case refusal != nil:
		d.markHandled(daemonapi.OperationResume, r.ID)
		d.s.Resume = d.refuseOperation(daemonapi.OperationResume, r.ID, refusal.Reason, refusal.Message)
	case accepted == nil:
		d.reportPendingResume(r)
	default:
		d.markHandled(daemonapi.OperationResume, r.ID)
		accepted.ID, accepted.State, accepted.RequestedBy = r.ID, v1alpha1.OperationInProgress, d.resumeRequester()
		if r.Placement == v1alpha1.PlacementOtherNode {
			accepted.AvoidedNode = d.lastNode()
		}
		accepted.StartTime = ptr.To(metav1.NewTime(d.now))
		d.s.Failures, d.s.RateLimit, d.s.Resume = 0, nil, accepted
		d.noteResumer()
		d.goOnByParent()
		if r.Mode.GoesBack() || r.Mode == v1alpha1.ResumeClean {
			d.withdrawStopped()
		}
	}
}

// noteReplacedResume tells that a resume takes the place of one that has yet to be carried out, so far as is
// known: that one's pod was suspended before, or no node could take it.
func (d *decision) noteReplacedResume(r *v1alpha1.Resume) {
	if d.resuming() && !d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, d.s.Resume.ID)) {
		d.addEntry(v1alpha1.EventOperationFailed, actorOf(d.resumeRequester()), fmt.Sprintf(
			"resume %s takes the place of resume %s, which was not seen to be carried out", r.ID, d.s.Resume.ID))
	}
}

// needsPrompt is why a completed task is not resumed without a prompt.
const needsPrompt = "a completed task continues only with a new prompt: set resume.prompt, or resume it from a checkpoint, and request the resume again"

// resumeBlocker returns why a task cannot be resumed in its state; nil if it can.
func (d *decision) resumeBlocker(r *v1alpha1.Resume) *Blocker {
	blocker := func(message string) *Blocker { return &Blocker{v1alpha1.ReasonInvalidOperation, message} }
	settled, limit := d.settled(), reachedLimit(&d.task.Spec, d.used())
	switch {
	case d.operationRecorded(daemonapi.OperationKey(daemonapi.OperationResume, r.ID)):
		// prepare would consider it completed, and ignore its prompt.
		return blocker("a resume with this id was carried out before the Kubernetes API was restored from an older copy: request it again with a new id")
	case d.suspended():
		return blocker("operatingMode is Suspended: set it to Running in the same change, with a new id")
	case d.active() != nil && !d.stuckElsewhere() && !d.stopsFor(r):
		return blocker("the task is running: suspend it first, or wait until it has stopped, and request the resume again")
	case limit != "":
		return blocker(limitMessage(limit, d.used()) + limitAdvice(limit, d.used()) + ", with a new id")
	case settled != nil && settled.reason == v1alpha1.ReasonCompleted && r.Prompt == "" && !r.Mode.GoesBack():
		return blocker(needsPrompt)
	case d.untouchedSinceCompleted() && r.Prompt == "" && !r.Mode.GoesBack():
		return blocker(needsPrompt + "; the agent has not run since: repeat the prompt of the resume that was not carried out")
	case r.Placement == v1alpha1.PlacementOtherNode && d.lastNode() == "":
		return &Blocker{v1alpha1.ReasonInvalidState, "it is not known on which node the task last ran: set placement to Any, and request the resume again"}
	case d.stuckElsewhere():
		return nil
	case settled == nil && d.last() != nil && !d.atRest() && !d.followsRewind(r) && !d.stopsFor(r):
		return blocker("the task is about to be restarted automatically: wait until it has stopped, and request the resume again")
	}
	return nil
}

// stopsFor reports whether a resume stops the agent of a task that runs, as a rewind does: it begins a phase
// again, and no other resume is being carried out.
func (d *decision) stopsFor(r *v1alpha1.Resume) bool {
	return r.Mode == v1alpha1.ResumeRestartPhase && !d.resuming()
}

// untouchedSinceCompleted reports whether the task completed and its agent has not got as far as to
// start since, whatever was in the way. Prepare records a resume's prompt near its end, so the agent
// would run again without one.
func (d *decision) untouchedSinceCompleted() bool {
	for _, a := range slices.Backward(d.s.Attempts) {
		switch r := d.s.Resume; {
		case a.Outcome == "" && d.stuckElsewhere(): // no node takes its pod
		case a.Outcome == v1alpha1.AttemptCompleted:
			return true
		case r != nil && r.State == v1alpha1.OperationCompleted && r.Attempt == a.Number:
			return false // its prompt is recorded, and waits for the agent
		case a.Outcome != v1alpha1.AttemptBlocked && !withoutAgent(a):
			return false
		}
	}
	return false
}

// lastNode returns the node on which the task last ran; "" if that is not known.
func (d *decision) lastNode() string {
	for _, a := range slices.Backward(d.s.Attempts) {
		if a.NodeName != "" {
			return a.NodeName
		}
	}
	return ""
}

// avoidedNode returns the node that the pod of an attempt must not run on; "" for none.
func (d *decision) avoidedNode(attempt int64) string {
	if d.resuming() && d.s.Resume.Attempt == attempt {
		return d.s.Resume.AvoidedNode
	}
	return ""
}

// stuckElsewhere reports whether the active attempt's pod is on no node yet and must not run
// on the one where the task last ran, to which its volume may be bound.
func (d *decision) stuckElsewhere() bool {
	a := d.active()
	if a == nil || d.avoidedNode(a.Number) == "" || d.views[a.Number] == nil {
		return false
	}
	return d.views[a.Number].pod.Spec.NodeName == ""
}

// resolveResume returns the status of a new resume, with the checkpoint that it continues
// from, or what blocks it; neither while that is unknown.
func (d *decision) resolveResume(r *v1alpha1.Resume) (*v1alpha1.OperationStatus, *Blocker) {
	if !r.Mode.GoesBack() {
		return &v1alpha1.OperationStatus{}, nil
	}
	rewind := &v1alpha1.Rewind{ID: r.ID, Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch, Branch: daemonapi.ResumeBranch(r.ID)}
	if b := branchBlocker(rewind); b != nil {
		return nil, &Blocker{b.Reason, fmt.Sprintf("the current state would be kept as branch %s, which is no valid name: give the resume another id", rewind.Branch)}
	}
	if h := d.o.History; h.Known && !d.behind() && h.State.CheckpointCount == 0 {
		return nil, &Blocker{v1alpha1.ReasonInvalidState,
			"the task has no checkpoint yet: set the mode to Continue or Clean, and request the resume again"}
	}
	switch {
	case r.Mode == v1alpha1.ResumeRestartPhase:
		return d.toPhaseStart(rewind, r)
	case r.CheckpointRef != nil:
		target, b := d.targetOf("resume", r.CheckpointRef.Name, d.o.ResumeTarget)
		if target == nil {
			return nil, b
		}
		return atObject(rewind, target), nil
	case r.CheckpointNumber != nil:
		found, b := d.recordOf("resume", *r.CheckpointNumber, d.o.ResumeRecord)
		if found == nil {
			return nil, b
		}
		return atCheckpoint(rewind, *r.CheckpointNumber, found.Commit, found.Position.Position), nil
	}
	return nil, &Blocker{v1alpha1.ReasonInvalidOperation,
		"the resume names no checkpoint: set checkpointRef or checkpointNumber, and request the resume again"}
}

// reportPendingResume reports, once, that a resume waits until its checkpoint is known. Until
// then the task stays where it is.
func (d *decision) reportPendingResume(r *v1alpha1.Resume) {
	retry, reason, message := d.o.Limits.RetryBase, v1alpha1.ReasonHistoryUnavailable, "the checkpoint is looked up when the history store can be reached"
	switch {
	case r.CheckpointRef != nil:
		retry, reason, message = time.Second, v1alpha1.ReasonCheckpointNotReady, fmt.Sprintf(
			"Checkpoint %q has just been taken: the task is resumed from it when its status is written", r.CheckpointRef.Name)
	case d.behind():
		reason, message = v1alpha1.ReasonHistoryStoreWentBack,
			"the history store was restored from an older copy: name a Checkpoint with checkpointRef, or resume the task with the mode Continue first"
	}
	d.requeue(retry)
	if s := d.s.Resume; s == nil || s.ID != r.ID || s.State != v1alpha1.OperationPending {
		d.s.Resume = &v1alpha1.OperationStatus{ID: r.ID, State: v1alpha1.OperationPending, Reason: reason, Message: message}
	}
}

// waitForRewind reports a resume that follows a rewind which is pending itself.
func (d *decision) waitForRewind(r *v1alpha1.Resume) {
	if s := d.s.Resume; d.resuming() || s != nil && s.ID == r.ID && s.State == v1alpha1.OperationPending {
		return
	}
	rewind := d.s.Rewind
	d.s.Resume = &v1alpha1.OperationStatus{ID: r.ID, State: v1alpha1.OperationPending, Reason: rewind.Reason,
		Message: statusText(fmt.Sprintf("it follows the rewind %s, which waits: %s", rewind.ID, rewind.Message))}
}

// followsRewind reports whether a resume has waited for a rewind which is all that the last pod was for.
func (d *decision) followsRewind(r *v1alpha1.Resume) bool {
	s := d.s.Resume
	return d.last().Outcome == v1alpha1.AttemptRewound && s != nil && s.ID == r.ID && s.State == v1alpha1.OperationPending
}

// heldBack returns why a suspended task stays so although it is to run: it was to continue
// from a checkpoint that is not known yet, or cannot be used, or after a rewind that is pending, and
// must not continue from anywhere else instead. It is "" if nothing holds the task back.
func (d *decision) heldBack() string {
	r, s, last := d.task.Spec.Resume, d.s.Resume, d.last()
	stored := meta.FindStatusCondition(d.old.Conditions, v1alpha1.TaskSucceeded)
	if r == nil || s == nil || r.ID != s.ID || !r.Mode.GoesBack() && s.State != v1alpha1.OperationPending ||
		last == nil || last.EndTime == nil || stored == nil || stored.Reason != v1alpha1.ReasonSuspended {
		return ""
	}
	switch {
	case s.State == v1alpha1.OperationPending:
		return "the task stays suspended until its resume starts: " + s.Message
	case d.resumeRefused():
		return "the task stays suspended, since its resume was refused: " + s.Message + "; or remove the resume to continue from where the task is"
	}
	return ""
}

// resumeRefused reports whether the resume in the spec was refused, and nothing has run since.
func (d *decision) resumeRefused() bool {
	r, s, last := d.task.Spec.Resume, d.s.Resume, d.last()
	return r != nil && s != nil && r.ID == s.ID && s.State == v1alpha1.OperationRefused &&
		last != nil && last.EndTime != nil && !s.StartTime.Before(last.EndTime)
}

// refusedResume returns a clause about the resume of a task that has ended, if it was refused:
// the task stays as it ended, and only the resume's own status would say why.
func (d *decision) refusedResume() string {
	if !d.resumeRefused() {
		return ""
	}
	return fmt.Sprintf("; its resume %s was refused (%s): %s", d.s.Resume.ID, d.s.Resume.Reason, d.s.Resume.Message)
}

// resumeOperation returns the resume in progress in the form that prepare receives.
func (d *decision) resumeOperation(r *v1alpha1.Resume) *daemonapi.Operation {
	op := &daemonapi.Operation{
		Kind: daemonapi.OperationResume, ID: r.ID, Prompt: r.Prompt, AdditionalContext: r.AdditionalContext, OnDrift: r.OnDrift,
	}
	if r.Context != nil {
		limits := resources.ContextLimits(*r.Context, &d.task.Spec.Conversation.Context)
		op.Context = &limits
	}
	switch s := d.s.Resume; r.Mode {
	case v1alpha1.ResumeRestartPhase:
		op.Prompt = cmp.Or(r.Prompt, restartPrompt(s.Phase))
		op.AdditionalContext = strings.TrimSpace(r.AdditionalContext + "\n\n" + d.restartContext())
		fallthrough
	case v1alpha1.ResumeFromCheckpoint:
		op.Rewind = &daemonapi.ResumeRewind{
			Checkpoint: s.ToCheckpoint, Commit: s.ToCommit, CheckpointPosition: s.CheckpointPosition, Branch: daemonapi.ResumeBranch(r.ID),
		}
	case v1alpha1.ResumeClean:
		op.Rewind = &daemonapi.ResumeRewind{Anew: true}
	}
	return op
}

// completeResume closes a resume whose agent is about to start, and adds an entry if it began
// with a rewind.
func (d *decision) completeResume(result daemonapi.PrepareResult) {
	op := d.s.Resume
	op.FromCheckpoint, op.Preserved = result.FromCheckpoint, result.Preserved
	message := "the task continues"
	if op.ToCheckpoint != 0 {
		message = "the task was rewound to " + destination(op) + ", and continues from there"
	}
	if op.FromCheckpoint != 0 {
		message += fmt.Sprintf("; checkpoint %d holds the state before the resume", op.FromCheckpoint)
	}
	if op.Preserved != "" {
		message += ", and so does " + op.Preserved
	}
	named := ""
	if op.ToCheckpoint != 0 {
		named = daemonapi.ResumeRewindID(op.ID)
	}
	d.wentBack(op, message, named)
}
