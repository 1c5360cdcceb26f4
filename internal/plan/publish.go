package plan

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	// publishPatience is how long a pod that publishes may take, from its creation.
	publishPatience = time.Hour
	// publisherLostAfter is how long after its grace period a pod that is being deleted counts
	// as lost with its node, which nobody may ever confirm.
	publisherLostAfter = time.Minute
	// publishFor is how long pods follow one another that all fail.
	publishFor = 24 * time.Hour
	// maxUnknownFailures is how many follow one another at most once one fails for a reason that
	// Clew does not know: it may be the same each time.
	maxUnknownFailures = 10
)

// publish follows the pod that publishes the task's work, plans the next one, and says what is
// true of publishing.
func (d *decision) publish() {
	d.stopPublishers()
	d.noteApproval()
	trouble := ""
	if p := d.s.Publish; p != nil && p.PodName != "" {
		trouble = d.followPublisher(p)
	}
	if spec := d.publishesItself(); spec != nil {
		d.considerPublishing(spec)
	}
	d.reportPublishing(trouble)
}

// publishesItself returns how the task's work is published without anybody who calls for it; nil if it is
// not.
func (d *decision) publishesItself() *v1alpha1.Publish {
	if spec := d.task.Spec.Publish; spec != nil && spec.When != v1alpha1.PublishCalled {
		return spec
	}
	return nil
}

// noteApproval adds an entry about a commit that somebody approves.
func (d *decision) noteApproval() {
	approved := ""
	if spec := d.task.Spec.Publish; spec != nil {
		approved = spec.ApprovedCommit
	}
	switch p := d.s.Publish; {
	case p == nil && approved == "", p != nil && p.ApprovedCommit == approved:
		return
	case p == nil:
		d.s.Publish = &v1alpha1.PublishStatus{}
	}
	d.s.Publish.ApprovedCommit = approved
	if approved != "" {
		d.addEntry(v1alpha1.EventCommitApproved, d.publishRequester(), "approved that commit "+approved+" is published, whatever it changes")
	}
}

// stopPublishers deletes the pods whose outcome is known.
func (d *decision) stopPublishers() {
	for i := range d.o.Publishers {
		pod := &d.o.Publishers[i]
		if p := d.old.Publish; p == nil || p.PodName != pod.Name || p.PodUID != "" && p.PodUID != string(pod.UID) {
			d.stop(inspect(pod))
		}
	}
}

// followPublisher follows the pod that publishes. It returns why the pod does not start; "" if
// it does.
func (d *decision) followPublisher(p *v1alpha1.PublishStatus) (trouble string) {
	var pod *corev1.Pod
	for i := range d.o.Publishers {
		if d.o.Publishers[i].Name == p.PodName {
			pod = &d.o.Publishers[i]
		}
	}
	switch {
	case d.o.PublisherRefused != "":
		d.published(p, daemonapi.PublishResult{Reason: v1alpha1.ReasonPodRefused, Message: d.o.PublisherRefused, Retryable: true, NotPushed: true})
	case pod == nil && d.task.Spec.Publish == nil:
		p.PodName, p.PodUID, p.StartTime = "", "", nil
		p.Tries = afterPod(p.Tries, daemonapi.PublishResult{}) // nobody will learn what it has pushed
	case pod == nil && p.PodUID == "" && d.o.ReservedPublisher != p.Number:
		d.passOverPublisher(p)
	case pod == nil && p.PodUID == "" && !d.o.Publication.Known:
		d.requeue(d.o.Limits.RetryBase)
	case pod == nil && p.PodUID == "": // it has yet to be created
		d.plan.StartPublisher = d.publisher(p)
	case pod == nil || p.PodUID != "" && p.PodUID != string(pod.UID):
		d.published(p, publishFailed("the pod that publishes is gone"))
	default:
		return d.observePublisher(p, pod)
	}
	return ""
}

// passOverPublisher lets another pod follow one that may have been created, may have pushed, and is
// gone: its number is not given again.
func (d *decision) passOverPublisher(p *v1alpha1.PublishStatus) {
	p.PodName, p.StartTime, p.RetryTime = "", nil, ptr.To(metav1.NewTime(d.now))
	p.Tries = afterPod(p.Tries, daemonapi.PublishResult{})
}

// observePublisher reports the outcome of the pod, or why it does not start.
func (d *decision) observePublisher(p *v1alpha1.PublishStatus, pod *corev1.Pod) (trouble string) {
	p.PodUID = string(pod.UID)
	w := watchPublisher(pod, d.o.Limits, d.now)
	if w.stop {
		d.stop(inspect(pod))
	}
	if w.result != nil {
		d.published(p, *w.result)
		return ""
	}
	d.requeueAt(w.next)
	return w.problem
}

// publisherView is what is seen of a pod that publishes.
type publisherView struct {
	// result is its outcome; nil while there is none.
	result *daemonapi.PublishResult
	// problem is why it does not start; "" if it does.
	problem string
	// stop is set if it has to be deleted.
	stop bool
	// next is when to look at it again.
	next time.Time
}

// watchPublisher looks at a pod that publishes.
func watchPublisher(pod *corev1.Pod, limits Limits, now time.Time) publisherView {
	v := inspect(pod)
	if s := containerStatus(pod, daemonapi.PublishContainer); s != nil && s.State.Terminated != nil {
		return publisherView{result: ptr.To(publishResult(s.State.Terminated))}
	}
	end, grace := pod.CreationTimestamp.Add(publishPatience), pod.CreationTimestamp.Add(limits.ProblemGrace)
	switch {
	case v.finished:
		return publisherView{result: ptr.To(publishFailed(fmt.Sprintf("the pod that publishes was ended (%s): %s", pod.Status.Reason, pod.Status.Message)))}
	case PublisherIsLost(pod, now):
		return publisherView{result: ptr.To(publishFailed("the pod that publishes was deleted, and its node does not confirm that it has ended"))}
	case v.deleting:
		return publisherView{next: pod.DeletionTimestamp.Add(publisherLostAfter)}
	case !now.Before(end):
		return publisherView{stop: true, result: ptr.To(publishFailed("the pod that publishes took too long"))}
	case v.problem != nil && !now.Before(grace):
		return publisherView{problem: "the pod that publishes does not start: " + v.problem.Message, next: end}
	case v.problem != nil:
		return publisherView{next: grace}
	}
	return publisherView{next: end}
}

// PublisherIsLost reports whether a pod that publishes is to have ended by now, although its node
// does not say so. Another one may follow: a push discards nothing that it has not seen.
func PublisherIsLost(pod *corev1.Pod, now time.Time) bool {
	at := PublisherLostAt(pod)
	return !at.IsZero() && !now.Before(at)
}

// PublisherLostAt returns when PublisherIsLost becomes true of the pod; zero if it is not being
// deleted.
func PublisherLostAt(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(publisherLostAfter)
}

// publishResult returns what the container reported.
func publishResult(t *corev1.ContainerStateTerminated) daemonapi.PublishResult {
	var result daemonapi.PublishResult
	if err := json.Unmarshal([]byte(t.Message), &result); err != nil || result.Reason == "" {
		return publishFailed(fmt.Sprintf("the pod that publishes ended with exit code %d (%s): %s", t.ExitCode, t.Reason, clip.Marked(t.Message, 400)))
	}
	return result
}

func publishFailed(message string) daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishFailed, Message: message, Retryable: true}
}

// published records the outcome of a pod.
func (d *decision) published(p *v1alpha1.PublishStatus, result daemonapi.PublishResult) {
	started := p.StartTime
	p.PodName, p.PodUID, p.StartTime, p.RetryTime = "", "", nil, nil
	p.ProtectedFiles, p.HeldCommit = nil, ""
	if result.Reason == v1alpha1.ReasonProtectedPaths {
		p.HeldCommit = resources.PlainText(result.Commit, 64)
	}
	for _, file := range result.Protected {
		p.ProtectedFiles = append(p.ProtectedFiles, resources.PlainText(file, 256))
	}
	p.Reason, p.Message = result.Reason, statusText(result.Message)
	if announcing(p.Reason) {
		p.Reason = v1alpha1.ReasonPushAnnounced
	}
	p.Tries = afterPod(p.Tries, result)
	switch {
	case announcing(result.Reason):
		d.publishingAnnounced(p, result)
	case result.Retryable:
		d.publishingFailed(p)
	default:
		p.Failures, p.FailingSince = 0, nil
		d.publishingEnded(p, result)
	}
	if p.EarliestTime != nil && started != nil {
		p.EarliestTime = d.nextPublishing(p, started.Time)
	}
}

// publishingEnded records an outcome that another pod would not change.
func (d *decision) publishingEnded(p *v1alpha1.PublishStatus, result daemonapi.PublishResult) {
	p.Refusals = refusals(p.Refusals, p.Reason)
	switch p.Reason {
	case v1alpha1.ReasonPublished:
		d.publishedTo(p, result)
	case v1alpha1.ReasonNothingToPublish:
	default:
		d.addCheckpointEntry(v1alpha1.EventTaskNotPublished, clew, p.Message, p.Checkpoint)
	}
}

// publishingAnnounced records the push that a pod has announced, and plans the pod that makes it.
func (d *decision) publishingAnnounced(p *v1alpha1.PublishStatus, result daemonapi.PublishResult) {
	tries, atOnce := announce(p.Tries, p.Checkpoint, result)
	p.Tries = tries
	if !atOnce {
		p.Reason, p.Message = v1alpha1.ReasonPublishFailed, stillMoving
		d.publishingFailed(p)
		return
	}
	p.RetryTime = ptr.To(metav1.NewTime(d.now))
}

// stillMoving is the message about a ref that others push to again and again.
const stillMoving = "others keep pushing to the same ref"

// publishingFailed plans another pod after one that failed, unless they fail for too long.
func (d *decision) publishingFailed(p *v1alpha1.PublishStatus) {
	p.Failures++
	if p.FailingSince == nil {
		p.FailingSince = ptr.To(metav1.NewTime(d.now))
	}
	tooMany := p.Failures >= branchFailures || p.Reason == v1alpha1.ReasonPublishFailed && p.Failures >= maxUnknownFailures
	if tooMany || !d.now.Before(p.FailingSince.Add(publishFor)) {
		p.Message = statusText(clip.Marked(p.Message, maxMessage-len(givenUp)-10) + givenUp)
		d.publishingEnded(p, daemonapi.PublishResult{})
		return
	}
	if p.Failures == 1 {
		d.addCheckpointEntry(v1alpha1.EventTaskNotPublished, clew, p.Message+tryingAgain, p.Checkpoint)
	}
	p.RetryTime = retryTime(p.Reason, p.Failures, d.o.Limits, d.now)
}

const (
	// tryingAgain ends the message about a failure that is followed by another pod.
	tryingAgain = "; trying again"
	// givenUp ends that about one that is followed by none.
	givenUp = "; it is not tried again: remove the cause, then request it again"
)

// refusals returns how many checkpoints in a row were refused, with another outcome.
func refusals(before int32, reason string) int32 {
	if reason == v1alpha1.ReasonPublished || reason == v1alpha1.ReasonNothingToPublish {
		return 0
	}
	return before + 1
}

// nextPublishing returns when the next checkpoint may be published of a task that works on.
func (d *decision) nextPublishing(p *v1alpha1.PublishStatus, started time.Time) *metav1.Time {
	pause := backoff(d.o.Limits.PublishEvery, d.o.Limits.PublishEveryCap, max(1, int(p.Refusals)))
	return ptr.To(metav1.NewTime(started.Add(pause)))
}

// publishedTo records that the work is at the repository.
func (d *decision) publishedTo(p *v1alpha1.PublishStatus, result daemonapi.PublishResult) {
	known := p.Ref == result.Ref && p.Commit == result.Commit
	found := d.o.Publication.Found // by this task, or by a former one that it continues
	recorded := p.Ref == "" && found != nil && found.Ref == result.Ref && found.Commit == result.Commit
	p.Ref, p.Commit, p.PublishedCheckpoint = resources.PlainText(result.Ref, 255), resources.PlainText(result.Commit, 64), p.Checkpoint
	p.Tries = settled(p.Tries, v1alpha1.PublishTry{Ref: p.Ref, Checkpoint: p.Checkpoint})
	p.Onto, p.PublishedTime = resources.PlainText(result.Onto, 64), ptr.To(metav1.NewTime(d.now.Truncate(time.Second)))
	if result.Answer != "" || !known {
		p.Answer = resources.PlainText(result.Answer, maxMessage)
	}
	if !known && !recorded {
		d.addPublishedEntry(p)
	}
}

// addPublishedEntry adds the entry that makes the history store remember what was pushed.
func (d *decision) addPublishedEntry(p *v1alpha1.PublishStatus) {
	attempt := int64(0)
	if a := d.last(); a != nil {
		attempt = a.Number
	}
	d.appendEntry(v1alpha1.HistoryEntry{
		Reason: v1alpha1.EventTaskPublished, Actor: d.publishRequester(), Message: whereabouts(p), Attempt: attempt, Checkpoint: p.Checkpoint,
		Publication: &v1alpha1.Publication{Ref: p.Ref, Commit: p.Commit, Onto: p.Onto, Number: p.Number},
	})
}

// considerPublishing starts a pod if the checkpoint that spec.publish selects has to be
// published now.
func (d *decision) considerPublishing(spec *v1alpha1.Publish) {
	p, request, due := d.s.Publish, requestOf(spec), d.toPublish(spec)
	if p != nil && p.PodName != "" {
		return
	}
	if p != nil {
		request.takeOver(p)
	}
	switch {
	case due == 0:
		return
	case p == nil || !request.isOf(p):
	case p.RetryTime != nil && d.now.Before(d.nextTry(p)):
		d.requeueAt(d.nextTry(p))
		return
	case request.answered(p, due):
		return
	case p.RetryTime == nil && p.EarliestTime != nil && d.now.Before(p.EarliestTime.Time):
		d.requeueAt(p.EarliestTime.Time)
		return
	}
	if !d.o.Publication.Known {
		d.requeue(d.o.Limits.RetryBase)
		return
	}
	if p != nil && announcing(p.Reason) && request.isOf(p) && !d.withdrawn(p.Checkpoint) {
		due = p.Checkpoint // the push of this one is announced
	}
	if c := d.o.Publication.Damaged; c != nil && c.Number == due {
		d.holdPublishing(*c, request)
		return
	}
	d.startPublishing(due, request)
}

// nextTry returns when another pod may follow one that has failed.
func (d *decision) nextTry(p *v1alpha1.PublishStatus) time.Time {
	return retriedAt(p.Reason, p.Failures, d.o.Limits, p.RetryTime)
}

// withdrawn reports whether the task was rewound since it had taken a checkpoint.
func (d *decision) withdrawn(checkpoint int64) bool {
	r := d.s.Rewind
	return r != nil && r.State == v1alpha1.OperationCompleted && checkpoint <= r.FromCheckpoint
}

// startPublishing plans a pod that publishes a checkpoint.
func (d *decision) startPublishing(checkpoint int64, request publishRequest) {
	if d.s.Publish == nil {
		d.s.Publish = &v1alpha1.PublishStatus{}
	}
	p := d.s.Publish
	if !request.isOf(p) {
		p.Failures, p.FailingSince, p.Refusals = 0, nil, 0
	}
	if d.olderCopy(p) {
		p.Tries = ofOlderCopy(p.Tries)
	}
	try := v1alpha1.PublishTry{Ref: resources.PublishRef(d.task.Spec.Publish.Branch), Checkpoint: checkpoint}
	p.Tries = begin(p.Tries, try, d.firstPod(p, checkpoint))
	p.Number = d.nextPublisher(p)
	p.PodName, p.PodUID = resources.PublisherName(d.task.Name, p.Number), ""
	p.Checkpoint, p.Request, p.Reason, p.Message = checkpoint, request.String(), "", ""
	p.StartTime, p.RetryTime, p.EarliestTime = ptr.To(metav1.NewTime(d.now)), nil, nil
	if d.task.Spec.Publish.When == v1alpha1.PublishCheckpoint {
		p.EarliestTime = d.nextPublishing(p, d.now)
	}
	d.plan.StartPublisher = d.publisher(p)
}

// olderCopy reports whether the history store knows of a pod that the status does not know.
func (d *decision) olderCopy(p *v1alpha1.PublishStatus) bool {
	found := d.o.Publication.Found
	return found != nil && found.Number > p.Number
}

// firstPod reports whether there was certainly no pod of a checkpoint before.
func (d *decision) firstPod(p *v1alpha1.PublishStatus, checkpoint int64) bool {
	latest := d.o.History.State.Latest
	return (p.Number == 0 || p.Checkpoint != checkpoint) && !d.olderCopy(p) &&
		latest != nil && latest.Number == checkpoint && knowsPods(d.s.Attempts, latest.Attempt, latest.Time, d.now)
}

// nextPublisher returns the number of the next pod. What was pushed last to a ref is known by the
// highest number, so that of a status that was restored from an older copy is not given again.
func (d *decision) nextPublisher(p *v1alpha1.PublishStatus) int64 {
	if found := d.o.Publication.Found; found != nil {
		return max(p.Number, found.Number) + 1
	}
	return p.Number + 1
}

// publisher describes the pod that the status names.
func (d *decision) publisher(p *v1alpha1.PublishStatus) *Publisher {
	out := &Publisher{Number: p.Number, Checkpoint: p.Checkpoint}
	ref := resources.PublishRef(d.task.Spec.Publish.Branch)
	out.know(p.Tries, ref)
	out.announced(p.Tries, ref)
	pushed := d.pushed(p)
	if len(pushed) > 0 {
		out.Replaces, out.Onto, out.Earlier = pushed[0].Commit, pushed[0].Onto, pushed[1:]
	}
	return out
}

// pushed returns what the task is known to have pushed to the ref that it publishes to, and
// what it may still have. The status may be an older copy, or that of a Task that continues another one, and it has
// one ref only; the history store may lack the newest push, or be an older copy as well.
func (d *decision) pushed(p *v1alpha1.PublishStatus) (pushed []daemonapi.OwnPush) {
	found := d.o.Publication.Found
	if p.Ref == resources.PublishRef(d.task.Spec.Publish.Branch) {
		pushed = append(pushed, daemonapi.OwnPush{Commit: p.Commit, Onto: p.Onto})
	}
	if found == nil || len(pushed) > 0 && pushed[0].Commit == found.Commit {
		return pushed
	}
	return append(pushed, daemonapi.OwnPush{Commit: found.Commit, Onto: found.Onto})
}

// toPublish returns the number of the checkpoint that has to be published, if it can be now; 0
// otherwise.
func (d *decision) toPublish(spec *v1alpha1.Publish) int64 {
	latest := d.o.History.State.Latest
	if !d.historyCurrent() || latest == nil || !latest.Durable {
		return 0
	}
	return d.selected(spec)
}

// selected returns the number of the checkpoint that spec.publish selects in the task's state;
// 0 if it selects none.
func (d *decision) selected(spec *v1alpha1.Publish) int64 {
	if d.rewinding() || spec.When != v1alpha1.PublishCheckpoint && !d.restsFor(spec.When) {
		return 0
	}
	switch latest, known := d.o.History.State.Latest, d.s.LatestCheckpoint; {
	case d.historyCurrent() && latest != nil:
		return latest.Number
	case !d.historyCurrent() && known != nil:
		return known.Number
	}
	return 0
}

// historyCurrent reports whether the history store knows the task's newest checkpoint.
func (d *decision) historyCurrent() bool {
	return d.o.History.Known && !d.o.History.Deleted && !d.behind()
}

// restsFor reports whether the task is in the state that spec.publish.when names.
func (d *decision) restsFor(when v1alpha1.PublishWhen) bool {
	if d.active() != nil || d.want() != wantNothing {
		return false
	}
	_, reason, _ := d.succeededCondition()
	return reason == v1alpha1.ReasonCompleted || reason == v1alpha1.ReasonSuspended && when == v1alpha1.PublishSuspended
}
