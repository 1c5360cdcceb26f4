package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// maxAttempts is how many attempts the status lists. The oldest are dropped, except
// those that say how the task ended: any number of rewinds may follow them.
const maxAttempts = 50

// want is what the task needs a pod for, if it needs one.
type want int

const (
	wantNothing want = iota
	wantAgent
	// wantRewind: a pod that rewinds, and then runs the agent.
	wantRewind
	// wantRewindOnly: a pod that rewinds and then ends.
	wantRewindOnly
)

func (d *decision) want() want {
	switch {
	case d.rewinding() && (d.suspended() || d.settled() != nil):
		return wantRewindOnly
	case d.rewinding():
		return wantRewind
	case d.suspended():
		return wantNothing
	case d.resuming():
		return wantAgent
	case d.settled() != nil:
		return wantNothing
	}
	return wantAgent
}

// steer stops what should not run and starts what should.
func (d *decision) steer() {
	d.stopStrays()
	want := d.want()
	if a := d.active(); a != nil {
		d.steerActive(a, want)
		return
	}
	if want == wantNothing {
		return
	}
	if d.waitForPods() {
		return
	}
	if at := d.notBefore(want); d.now.Before(at) {
		last, reason := d.last(), v1alpha1.ReasonRetrying
		if last.Reason == v1alpha1.ReasonAgentRateLimited {
			reason = last.Reason
		}
		d.wait(reason, fmt.Sprintf("attempt %d follows at %s, since attempt %d ended with %s: %s",
			last.Number+1, at.UTC().Format(time.RFC3339), last.Number, last.Outcome, last.Message))
		d.lookAt(at)
		return
	}
	d.start(want)
}

// stopStrays deletes pods that carry the task's labels but belong to no attempt: a
// manager that lost its lease made them too late, or somebody forged them.
func (d *decision) stopStrays() {
	for i := range d.o.Pods {
		if v := inspect(&d.o.Pods[i]); !v.finished && d.attemptOf(v.pod) == nil {
			d.stop(v)
		}
	}
}

// steerActive leaves the active attempt alone, makes its pod, or stops it.
func (d *decision) steerActive(a *v1alpha1.Attempt, want want) {
	v := d.views[a.Number]
	reason := d.whyStop(a, v, want)
	switch {
	case v == nil && reason != "":
		a.Reason = reason
		d.end(a, d.lostEnding(a, ""))
		d.look(0)
	case v == nil:
		if !d.waitForPods() {
			d.makePod(a)
		}
	case reason != "":
		a.Reason = reason
		d.stop(v)
	case !v.deleting && !v.finished:
		a.Reason = "" // there was a reason to stop it, and it is gone
	}
}

// whyStop is the reason for which the active attempt must stop; "" if it may go on.
func (d *decision) whyStop(a *v1alpha1.Attempt, v *podView, want want) string {
	prepareOnly := v != nil && v.prepareOnly
	switch want {
	case wantNothing:
		if prepareOnly {
			return ""
		}
		return v1alpha1.ReasonSuspending
	case wantRewind, wantRewindOnly:
		if d.s.Rewind.Attempt == a.Number {
			return ""
		}
		return v1alpha1.ReasonRewinding
	}
	// A pod that cannot start is replaced once the template has changed.
	if v != nil && v.problem != nil && v.generation() < d.task.Generation && !v.agentRuns {
		return v1alpha1.ReasonReplaced
	}
	return ""
}

// waitForPods reports whether a pod of an earlier attempt still runs: a worktree never
// has two writers.
func (d *decision) waitForPods() bool {
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		if v.finished {
			continue
		}
		ending := v.agent != nil || (v.prepareOnly && v.prepare != nil)
		if !ending {
			d.stop(v)
		}
		d.wait(v1alpha1.ReasonPreparing, fmt.Sprintf(
			"waiting for the end of pod %s; if its node is gone for good, delete the pod with --force", v.pod.Name))
		return true
	}
	return false
}

// notBefore is when the next attempt may start at the earliest.
func (d *decision) notBefore(want want) time.Time {
	last := d.last()
	if last == nil || last.EndTime == nil {
		return time.Time{}
	}
	if (want >= wantRewind && d.s.Rewind.Attempt == 0) || (d.resuming() && d.s.Resume.Attempt == 0) {
		return time.Time{}
	}
	limits := d.o.Limits
	pause := time.Duration(0)
	switch last.Outcome {
	case v1alpha1.AttemptAgentFailed:
		pause = d.failurePause(last)
	case v1alpha1.AttemptPrepareFailed:
		pause = backoff(limits.RetryBase, limits.PrepareRetryCap, d.inARow(v1alpha1.AttemptPrepareFailed))
	case v1alpha1.AttemptPodLost:
		pause = backoff(limits.LostPodBase, limits.LostPodCap, d.inARow(v1alpha1.AttemptPodLost)-1)
	}
	return last.EndTime.Add(pause)
}

// backoff is the pause after this many failures in a row.
func backoff(base, limit time.Duration, failures int) time.Duration {
	steps, pause := wait.Backoff{Duration: min(base, limit), Factor: 2, Steps: failures, Cap: limit}, time.Duration(0)
	for range min(failures, 64) { // every limit is reached before that
		pause = steps.Step()
	}
	return pause
}

// quickLoss is how soon an attempt must be lost for the next one to wait: if it ran for
// longer, the next one starts at once.
const quickLoss = 10 * time.Second

// inARow counts the latest attempts in a row that ended with this outcome. A lost pod
// counts only if it was lost quickly.
func (d *decision) inARow(outcome v1alpha1.AttemptOutcome) int {
	n := 0
	for i := len(d.s.Attempts) - 1; i >= 0 && d.s.Attempts[i].Outcome == outcome; i-- {
		a := d.s.Attempts[i]
		if outcome == v1alpha1.AttemptPodLost && a.StartTime != nil && a.EndTime.Sub(a.StartTime.Time) > quickLoss {
			break
		}
		n++
	}
	return n
}

// start reserves the next attempt and has its pod made, if everything it needs exists.
func (d *decision) start(want want) {
	number, h := d.nextNumber()
	if h == nil {
		h = d.blocker()
	}
	if h != nil {
		d.wait(h.Reason, h.Message)
		d.look(d.o.Limits.ProblemGrace)
		return
	}
	d.ownClaim()
	trigger := d.trigger(want)
	if last := d.last(); last == nil {
		d.entryOf(number, v1alpha1.EventTaskStarted, clew, "the task was started"+d.startedFrom())
		if d.task.Spec.StartFrom != nil {
			d.entryOf(number, v1alpha1.EventTaskForked, somebody(d.forkRequester()), "the task begins"+d.startedFrom())
		}
	} else {
		d.noteRestart(number, trigger, last)
	}
	d.enterAttempt(v1alpha1.Attempt{
		Number: number, PodName: resources.PodName(d.task.Name, number),
		Trigger: trigger, StartTime: ptr.To(metav1.NewTime(d.now)),
	})
	if d.rewinding() {
		d.s.Rewind.Attempt = number
	} else if d.resuming() {
		d.s.Resume.Attempt = number
	}
	d.dropFinishedPods()
	d.makePodAs(d.last(), want == wantRewindOnly)
}

func (d *decision) enterAttempt(a v1alpha1.Attempt) {
	d.s.Attempts = append(d.s.Attempts, a)
	for len(d.s.Attempts) > maxAttempts {
		i := droppable(d.s.Attempts)
		d.s.Attempts = slices.Delete(d.s.Attempts, i, i+1)
	}
}

// droppable is the oldest attempt that does not say how the task ended.
func droppable(attempts []v1alpha1.Attempt) int {
	rest := settledBy(attempts)
	for i := range attempts[:len(attempts)-1] {
		if ptr.Equal(settledBy(slices.Delete(slices.Clone(attempts), i, i+1)), rest) {
			return i
		}
	}
	return 0
}

func (d *decision) startedFrom() string {
	if src := d.s.Source; src != nil {
		return fmt.Sprintf(" from checkpoint %d of task %s", src.Checkpoint, d.task.Spec.StartFrom.TaskRef.Name)
	}
	return ""
}

func (d *decision) noteRestart(number int64, trigger v1alpha1.AttemptTrigger, last *v1alpha1.Attempt) {
	switch {
	case trigger == v1alpha1.AttemptResume:
		d.entryOf(number, v1alpha1.EventTaskResumed, d.resumedBy(last), fmt.Sprintf("the task goes on with attempt %d", number))
	case trigger == v1alpha1.AttemptRewind:
	case d.slept(): // between two attempts
		d.entryOf(number, v1alpha1.EventTaskResumed, somebody(d.modeRequester()), fmt.Sprintf("the task goes on with attempt %d, after attempt %d (%s): %s", number, last.Number, last.Outcome, last.Message))
	default:
		d.entryOf(number, v1alpha1.EventTaskRetried, clew, fmt.Sprintf("attempt %d follows attempt %d (%s): %s", number, last.Number, last.Outcome, last.Message))
	}
}

// resumedBy is who resumed the task after its last attempt; "" if Clew itself had
// stopped it, for example for a rewind.
func (d *decision) resumedBy(last *v1alpha1.Attempt) string {
	switch {
	case d.resuming():
		return somebody(d.s.Resume.RequestedBy)
	case last.Outcome == v1alpha1.AttemptSuspended, d.slept():
		return somebody(d.modeRequester())
	}
	return clew
}

func (d *decision) trigger(want want) v1alpha1.AttemptTrigger {
	last := d.last()
	switch {
	case want == wantRewind || want == wantRewindOnly:
		return v1alpha1.AttemptRewind
	case last == nil:
		return v1alpha1.AttemptStart
	case d.resuming():
		return v1alpha1.AttemptResume
	case last.Outcome == v1alpha1.AttemptPodLost:
		return v1alpha1.AttemptAfterPodLost
	case last.Outcome == v1alpha1.AttemptAgentFailed || last.Outcome == v1alpha1.AttemptPrepareFailed:
		return v1alpha1.AttemptRetry
	}
	return v1alpha1.AttemptResume
}

// nextNumber is larger than every number used before, including those missing from a
// status that was restored from a backup: servers accept writes of the newest attempt
// only. The history store has seen them all, so it is asked before anything starts. That
// costs nothing: without the store no pod gets past its preparation either.
func (d *decision) nextNumber() (int64, *Blocker) {
	if !d.o.History.Known && !d.o.Attempts.Known {
		return 0, &Blocker{v1alpha1.ReasonPending, "the task starts when the history store answers: it knows which attempts there were"}
	}
	number := max(d.o.History.State.Attempt, d.o.Attempts.Highest)
	if last := d.last(); last != nil {
		number = max(number, last.Number)
	}
	if number == math.MaxInt64 {
		return 0, &Blocker{v1alpha1.ReasonPodRefused, "no attempt can follow: a pod that Clew did not make has used the highest number there is; fork the task from its latest checkpoint"}
	}
	return number + 1, nil
}

// blocker is why no pod can be made now; nil if one can.
func (d *decision) blocker() *Blocker {
	if d.o.History.Deleted {
		return &Blocker{v1alpha1.ReasonHistoryDeleted,
			"the history of this Task was deleted, and the Task restored since: nothing of it can be recorded any more; delete it, and apply it anew"}
	}
	if d.o.TemplateProblem != "" {
		return &Blocker{v1alpha1.ReasonInvalidTemplate, d.o.TemplateProblem}
	}
	if h := d.resolveSource(); h != nil {
		return h
	}
	return d.claimHindrance()
}

func (d *decision) claimHindrance() *Blocker {
	c := d.o.Claim
	switch {
	case c == nil:
		return nil
	case !resources.IsOf(c, d.task):
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s belongs to something else: delete it, or give the Task another name", c.Name)}
	case c.DeletionTimestamp != nil:
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s is being deleted: a new one follows when it is gone", c.Name)}
	case c.Status.Phase == corev1.ClaimLost:
		return &Blocker{v1alpha1.ReasonVolumeUnavailable, fmt.Sprintf(
			"the PersistentVolumeClaim %s has lost its volume: delete it, and the work comes back from the gitstore on a new one", c.Name)}
	}
	return nil
}

// ownClaim has the claim made if it does not exist, and notes that the task's former
// volume is lost.
func (d *decision) ownClaim() {
	lost := d.s.ClaimUID != "" && (d.o.Claim == nil || string(d.o.Claim.UID) != d.s.ClaimUID)
	if lost {
		d.entry(v1alpha1.EventVolumeLost, clew, "the volume was lost: the work comes back from the gitstore on a new one")
	}
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

// makePod has the pod of a reserved attempt made.
func (d *decision) makePod(a *v1alpha1.Attempt) {
	if h := d.blocker(); h != nil {
		d.wait(h.Reason, h.Message)
		d.look(d.o.Limits.ProblemGrace)
		return
	}
	d.ownClaim()
	d.makePodAs(a, d.want() == wantRewindOnly)
}

func (d *decision) makePodAs(a *v1alpha1.Attempt, prepareOnly bool) {
	d.plan.StartPod = &Pod{
		Attempt: a.Number, PrepareOnly: prepareOnly, Operation: d.operation(a.Number), Prompt: d.prompt(),
	}
	if src := d.s.Source; src != nil {
		d.plan.StartPod.Source = &daemonapi.Source{
			TaskUID: src.TaskUID, TaskName: d.task.Spec.StartFrom.TaskRef.Name,
			Checkpoint: src.Checkpoint, Commit: src.Commit, Position: src.Position,
			IncludeConversation: d.task.Spec.StartFrom.Conversation != v1alpha1.ConversationExclude,
		}
	}
}

func (d *decision) wait(reason, message string) {
	d.waiting = &Blocker{Reason: reason, Message: message}
}
