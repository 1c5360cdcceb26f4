package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
)

// maxAttempts is the number of attempts the status lists. The oldest are dropped, except
// those that determine how the task ended: any number of rewinds may follow them.
const maxAttempts = 50

// want is what the task needs a pod for, if anything.
type want int

const (
	wantNothing want = iota
	wantAgent
	// wantRewind is a pod that rewinds, and then runs the agent.
	wantRewind
	// wantRewindOnly is a pod that rewinds and then ends.
	wantRewindOnly
)

func (d *decision) want() want {
	limited := reachedLimit(&d.task.Spec, d.used()) != ""
	switch {
	case d.rewinding() && (d.suspended() || limited || d.settled() != nil || d.backTo() != 0 || d.heldBack() != "" || d.stoppedByParent()):
		return wantRewindOnly
	case d.rewinding():
		return wantRewind
	case d.suspended(), d.stoppedByParent():
		return wantNothing
	case d.resuming() && !limited:
		return wantAgent
	case d.settled() != nil, d.heldBack() != "":
		return wantNothing
	}
	return wantAgent
}

// steer stops the pods that should not run, and starts the one that should.
func (d *decision) steer() {
	d.stopStrays()
	want := d.want()
	if a := d.active(); a != nil {
		d.steerActive(a, want)
		return
	}
	if want == wantNothing || want == wantAgent && d.awaitsAnswer() {
		return
	}
	if d.settleVolume() || d.waitForPods() {
		return
	}
	if at := d.notBefore(want); d.now.Before(at) {
		last, reason := d.last(), v1alpha1.ReasonRetrying
		if last.Reason == v1alpha1.ReasonAgentRateLimited {
			reason = last.Reason
		}
		d.wait(reason, fmt.Sprintf("attempt %d follows at %s, since attempt %d ended with %s: %s",
			last.Number+1, at.UTC().Format(time.RFC3339), last.Number, last.Outcome, last.Message))
		d.requeueAt(at)
		return
	}
	d.start(want)
}

// stopStrays deletes pods that carry the task's labels but belong to no attempt: a
// manager that had lost its lease created them, or somebody forged them. It also deletes those of
// attempts that have ended, unless they are about to end by themselves: a manager may have been
// killed before it did, or have created them only after another one had ended the attempt.
func (d *decision) stopStrays() {
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		a := d.attemptOf(v.pod)
		unprepared := v.prepare != nil && v.prepare.ExitCode != 0 // its agent does not start
		if !v.finished && (a == nil || a.Outcome != "" && !v.ending() && !unprepared) {
			d.stop(v)
		}
	}
}

// steerActive keeps the active attempt, creates its pod, or stops it.
func (d *decision) steerActive(a *v1alpha1.Attempt, want want) {
	v := d.views[a.Number]
	reason := d.stopReason(a, v, want)
	switch {
	case v == nil && reason != "":
		d.announceStop(a, reason)
		d.end(a, d.lostEnding(a, ""))
		if reason == v1alpha1.ReasonPlaceGivenUp {
			d.queues()
			return
		}
		d.requeue(0)
	case v == nil:
		if !d.settleVolume() && !d.waitForPods() {
			d.makePod(a)
		}
	case reason != "":
		d.announceStop(a, reason)
		d.stop(v)
	case !v.deleting && !v.finished:
		a.Reason, a.PlaceGivenUpTime = "", nil // a former reason to stop it no longer holds
		d.requeueAtLimit(a, v)
	}
}

// stopReason returns why the active attempt must stop; "" if it may continue.
func (d *decision) stopReason(a *v1alpha1.Attempt, v *podView, want want) string {
	if reason := d.limitToStopFor(a, v); reason != "" {
		return reason
	}
	prepareOnly := v != nil && v.prepareOnly
	switch want {
	case wantNothing:
		if prepareOnly {
			return ""
		}
		if d.stoppedByParent() && !d.suspended() {
			return v1alpha1.ReasonPhaseRestarted
		}
		return v1alpha1.ReasonSuspending
	case wantRewind, wantRewindOnly:
		switch {
		case d.s.Rewind.Attempt != a.Number:
			return v1alpha1.ReasonRewinding
		case d.givesPlaceUp(a, v):
			return v1alpha1.ReasonPlaceGivenUp
		}
		return ""
	}
	if d.resuming() && d.s.Resume.Attempt == 0 {
		if a.AgentStartTime != nil {
			return v1alpha1.ReasonRewinding // a phase begins again
		}
		return v1alpha1.ReasonReplaced // a resume to anywhere replaces one that no other node can carry out
	}
	// A pod that cannot start is replaced once what it is made of has changed.
	if v != nil && v.problem != nil && !v.agentRuns && d.outdated(v) {
		return v1alpha1.ReasonReplaced
	}
	// So is one that no node can take, since the volume is on a node that is lost.
	if v != nil && d.missesVolume(v) {
		return v1alpha1.ReasonReplaced
	}
	if d.givesPlaceUp(a, v) {
		return v1alpha1.ReasonPlaceGivenUp
	}
	return ""
}

// waitForPods stops a pod of an earlier attempt that still runs, and reports whether
// there is one: a worktree never has two writers. One that is left behind with its volume has
// another worktree.
func (d *decision) waitForPods() bool {
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		if v.finished || d.leftBehind(v.pod) {
			continue
		}
		if !v.ending() {
			d.stop(v)
		}
		d.wait(v1alpha1.ReasonPreparing, fmt.Sprintf(
			"waiting for pod %s to terminate; if its node will not come back, delete the pod with --force", v.pod.Name))
		return true
	}
	return false
}

// start reserves the next attempt and plans its pod, if everything it needs exists.
func (d *decision) start(want want) {
	number, b := d.nextNumber()
	if b == nil {
		b = d.startBlocker()
	}
	if b != nil {
		d.waitFor(b)
		return
	}
	if want == wantRewind && d.o.Queue.Waits {
		want = wantRewindOnly // its agent follows when it has a place
	}
	if want != wantRewindOnly && d.queues() {
		return
	}
	if d.claimRefused() {
		return
	}
	if b := d.resultsBlocker(); b != nil {
		d.waitFor(b)
		return
	}
	d.ensureClaim()
	if d.rewinding() && d.resuming() {
		d.closeOvertakenResume()
	}
	trigger := d.trigger(want)
	if last := d.last(); last == nil && d.s.Adoption != nil && d.s.Adoption.TaskUID != "" {
		d.addAttemptEntry(number, v1alpha1.EventTaskResumed, clew, fmt.Sprintf("the task continues with attempt %d", number))
	} else if last == nil {
		d.addAttemptEntry(number, v1alpha1.EventTaskStarted, clew, "the task was started"+d.startedFrom())
		if d.task.Spec.StartFrom != nil {
			d.addAttemptEntry(number, v1alpha1.EventTaskForked, actorOf(d.forkRequester()), "the task starts"+d.startedFrom())
		}
	} else {
		d.addRestartEntry(number, trigger, last)
	}
	d.s.ActiveSeconds = int64(d.used().active / time.Second)
	attempt := v1alpha1.Attempt{
		Number: number, PodName: resources.PodName(d.task.Name, number),
		Trigger: trigger, StartTime: ptr.To(metav1.NewTime(d.now)), Purpose: purposeOf(want),
	}
	if d.rewinding() {
		d.carryOutIn(number, d.s.Rewind, daemonapi.OperationDoneKey(daemonapi.OperationRewind, d.s.Rewind.ID))
		attempt.BackTo = d.backTo()
	} else if d.resuming() {
		d.carryOutIn(number, d.s.Resume, daemonapi.OperationKey(daemonapi.OperationResume, d.s.Resume.ID))
	}
	d.appendAttempt(attempt)
	if want != wantRewindOnly {
		d.takeLead()
	}
	d.makePodAs(d.last(), want == wantRewindOnly)
}

// startBlocker returns why no attempt can start now; nil if one can.
func (d *decision) startBlocker() *Blocker {
	for _, blocker := range []func() *Blocker{d.overtakeBlocker, d.findParent, d.joinContract, d.budgetBlocker, d.resolveInputs} {
		if b := blocker(); b != nil {
			return b
		}
	}
	return nil
}

// waitFor reports what a task that cannot start waits for. What other Tasks have to do wakes it.
func (d *decision) waitFor(b *Blocker) {
	d.wait(b.Reason, b.Message)
	if !reason.Find(b.Reason).Watched {
		d.requeue(d.patience())
	}
}

// purposeOf returns what the pod of an attempt is for.
func purposeOf(want want) v1alpha1.AttemptPurpose {
	if want == wantRewindOnly {
		return v1alpha1.AttemptForRewind
	}
	return v1alpha1.AttemptForAgent
}

// maxPatience bounds the pause before a task that waits for its source looks for it again.
const maxPatience = 10 * time.Minute

// patience returns how long a task that cannot start rests. One that waits for its source is
// woken by what is watched of it, and rests for as long as it has waited so far.
func (d *decision) patience() time.Duration {
	pause := d.o.Limits.ProblemGrace
	if d.task.Spec.StartFrom == nil || d.s.Source != nil {
		return pause
	}
	return max(pause, min(d.now.Sub(d.task.CreationTimestamp.Time), maxPatience))
}

// appendAttempt adds an attempt to the status, and drops an old one if the list is full.
func (d *decision) appendAttempt(a v1alpha1.Attempt) {
	a.UnansweredSeconds = d.unanswered()
	d.s.Attempts = append(d.s.Attempts, a)
	for len(d.s.Attempts) > maxAttempts {
		i := droppable(d.s.Attempts)
		d.s.Attempts = slices.Delete(d.s.Attempts, i, i+1)
	}
}

// droppable returns the index of the oldest attempt that does not determine how the task
// ended.
func droppable(attempts []v1alpha1.Attempt) int {
	rest := settledBy(attempts, 0)
	for i := range attempts[:len(attempts)-1] {
		if ptr.Equal(settledBy(slices.Delete(slices.Clone(attempts), i, i+1), 0), rest) {
			return i
		}
	}
	return 0
}

// startedFrom returns the end of a sentence about where the task started from; "" if it
// started from nothing.
func (d *decision) startedFrom() string {
	if src := d.s.Source; src != nil {
		return fmt.Sprintf(" from checkpoint %d of task %s", src.Checkpoint, d.task.Spec.StartFrom.TaskRef.Name)
	}
	return ""
}

// addRestartEntry adds an entry for an attempt that follows another one. A rewind has an
// entry of its own, once it is complete. A resume has one: an attempt that follows one which could
// not complete it is a retry, of Clew's own.
func (d *decision) addRestartEntry(number int64, trigger v1alpha1.AttemptTrigger, last *v1alpha1.Attempt) {
	switch {
	case trigger == v1alpha1.AttemptResume && !(d.resuming() && d.s.Resume.Attempt > 0):
		d.addAttemptEntry(number, v1alpha1.EventTaskResumed, d.resumedBy(last), fmt.Sprintf("the task continues with attempt %d", number))
	case trigger == v1alpha1.AttemptRewind:
	case d.wasSuspended(): // between two attempts
		d.addAttemptEntry(number, v1alpha1.EventTaskResumed, actorOf(d.modeRequester()), fmt.Sprintf("the task continues with attempt %d, after attempt %d (%s): %s", number, last.Number, last.Outcome, last.Message))
	default:
		d.addAttemptEntry(number, v1alpha1.EventTaskRetried, clew, fmt.Sprintf("attempt %d follows attempt %d (%s): %s", number, last.Number, last.Outcome, last.Message))
	}
}

// resumedBy returns the actor that resumed the task after its last attempt: Clew, if Clew
// itself had stopped it, for example for a rewind.
func (d *decision) resumedBy(last *v1alpha1.Attempt) string {
	switch {
	case d.resuming():
		return actorOf(d.s.Resume.RequestedBy)
	case last.Outcome == v1alpha1.AttemptSuspended, d.wasSuspended():
		return actorOf(d.modeRequester())
	}
	return clew
}

// trigger returns why the next attempt starts.
func (d *decision) trigger(want want) v1alpha1.AttemptTrigger {
	last := d.last()
	switch {
	case want == wantRewind || want == wantRewindOnly:
		return v1alpha1.AttemptRewind
	case last == nil:
		return v1alpha1.AttemptStart
	case d.resuming():
		return v1alpha1.AttemptResume
	case last.Outcome == v1alpha1.AttemptPodLost, last.Outcome == v1alpha1.AttemptNodeLost:
		return v1alpha1.AttemptAfterPodLost
	case last.Outcome == v1alpha1.AttemptAgentFailed || last.Outcome == v1alpha1.AttemptPrepareFailed:
		return v1alpha1.AttemptRetry
	}
	return v1alpha1.AttemptResume
}

// nextNumber returns a number greater than every number used before, including those
// missing from a status that was restored from a backup: servers accept writes of the
// newest attempt only. The history store has seen all of them, so it is asked before
// anything starts. That costs nothing: without the store no pod can be prepared either.
func (d *decision) nextNumber() (int64, *Blocker) {
	carried := d.rewinding() || d.resuming() // in which attempt, the history store may know alone
	if !d.o.History.Known && (!d.o.Attempts.Known || carried) {
		return 0, &Blocker{v1alpha1.ReasonPending, "waiting for the history store, which records the attempt numbers that were used"}
	}
	number := max(d.o.History.State.Attempt, d.o.Attempts.Highest)
	if last := d.last(); last != nil {
		number = max(number, last.Number)
	}
	if number == math.MaxInt64 {
		return 0, &Blocker{v1alpha1.ReasonPodRefused, "no further attempt is possible: a pod that Clew did not create has used the highest attempt number; fork the task from its latest checkpoint"}
	}
	return number + 1, nil
}

// resolveInputs resolves what a pod depends on, and returns why no pod can be created
// now; nil if one can.
func (d *decision) resolveInputs() *Blocker {
	if d.o.History.Deleted {
		return &Blocker{v1alpha1.ReasonHistoryDeleted,
			"the history of this Task was deleted before the Task was restored, so nothing can be recorded for it: delete the Task and apply it again"}
	}
	if d.o.History.ContinuedBy != "" {
		return &Blocker{v1alpha1.ReasonHistoryContinued, d.continuedMessage()}
	}
	if d.o.TemplateProblem != "" {
		return &Blocker{v1alpha1.ReasonInvalidTemplate, d.o.TemplateProblem}
	}
	if d.awaited != nil {
		return d.awaited
	}
	if b := cmp.Or(d.answersBlocker(), d.resolveSource()); b != nil {
		return b
	}
	return d.claimBlocker()
}

// claimBlocker returns why the task's claim cannot be used; nil if it can, or if there is
// none yet.
func (d *decision) claimBlocker() *Blocker {
	c := d.o.Claim
	switch {
	case c == nil:
		return nil
	case !resources.IsOf(c, d.task):
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s does not belong to this Task: delete it, or give the Task another name", c.Name)}
	case c.DeletionTimestamp != nil, d.plan.DeleteClaim != "":
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s is being deleted: a new one is created when it is gone", c.Name)}
	case c.Status.Phase == corev1.ClaimLost:
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s has lost its volume: delete it, and the work is restored from the gitstore to a new one", c.Name)}
	}
	return nil
}

// claimRefused reports whether the claim, which does not exist, could not be created before. It
// is then tried again, and no pod is announced until it exists.
func (d *decision) claimRefused() bool {
	if d.o.Claim != nil || d.o.Blocker == nil {
		return false
	}
	d.plan.CreateClaim = true
	d.wait(d.o.Blocker.Reason, d.o.Blocker.Message)
	return true
}

// ensureClaim plans the claim if it does not exist, and adds an entry if the task's
// former volume is lost.
func (d *decision) ensureClaim() {
	lost := d.s.ClaimUID != "" && (d.o.Claim == nil || string(d.o.Claim.UID) != d.s.ClaimUID)
	if lost {
		d.addEntry(v1alpha1.EventVolumeLost, clew, "the volume was lost: the work is restored from the gitstore to a new volume")
		d.s.Released = nil
	}
	d.takeNewVolume()
	if d.o.Claim == nil {
		d.plan.CreateClaim = true
		return
	}
	d.s.ClaimUID = string(d.o.Claim.UID)
}

// dropFinishedPods deletes the pods of ended attempts, which were kept for their logs.
func (d *decision) dropFinishedPods() {
	for i := range d.o.Pods {
		if v := inspect(&d.o.Pods[i]); v.finished {
			d.stop(v)
		}
	}
}

// makePod plans the pod of a reserved attempt, unless something blocks it.
func (d *decision) makePod(a *v1alpha1.Attempt) {
	if b := d.resolveInputs(); b != nil {
		d.wait(b.Reason, b.Message)
		d.requeue(d.patience())
		return
	}
	if d.claimRefused() {
		return
	}
	if b := d.resultsBlocker(); b != nil {
		d.waitFor(b)
		return
	}
	d.ensureClaim()
	if d.want() == wantRewindOnly {
		a.Purpose = v1alpha1.AttemptForRewind
	}
	d.makePodAs(a, a.Purpose == v1alpha1.AttemptForRewind)
}

// makePodAs plans the pod of an attempt; prepareOnly for one without an agent.
func (d *decision) makePodAs(a *v1alpha1.Attempt, prepareOnly bool) {
	d.dropFinishedPods()
	d.plan.StartPod = &Pod{
		Attempt: a.Number, PrepareOnly: prepareOnly, Operation: d.operation(a.Number), Prompt: d.nextPrompt(), Answers: d.answers(),
		AvoidedNode: d.avoidedNode(a.Number), VolumeReleased: d.s.Released != nil,
		Budgets: d.limitedBudgets(),
	}
	if src := d.s.Source; src != nil {
		d.plan.StartPod.Source = &daemonapi.Source{
			TaskUID: src.TaskUID, TaskName: d.task.Spec.StartFrom.TaskRef.Name,
			Checkpoint: src.Checkpoint, Commit: src.Commit, Position: src.Position,
			IncludeConversation: d.task.Spec.StartFrom.Conversation != v1alpha1.ConversationExclude && len(d.task.Spec.StartFrom.CopyFiles) == 0,
			CopyFiles:           d.task.Spec.StartFrom.CopyFiles,
			Branch:              d.task.Spec.StartFrom.Branch,
			NumberBranch:        d.task.Spec.StartFrom.Branch == daemonapi.ForkBranch(d.task.Name),
		}
	}
}

// wait records why no pod is started.
func (d *decision) wait(reason, message string) {
	d.waiting = &Blocker{Reason: reason, Message: message}
}
