package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// publishPatience is how long a pod that publishes may take, from its creation.
const publishPatience = time.Hour

// publish follows the pod that publishes the task's work, and plans the next one.
func (d *decision) publish() {
	d.stopPublishers()
	if p := d.s.Publish; p != nil && p.PodName != "" {
		d.followPublisher(p)
	}
	switch spec, p := d.task.Spec.Publish, d.s.Publish; {
	case p != nil && p.PodName != "":
	case spec == nil:
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskPublished)
	default:
		d.considerPublishing(spec)
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

// followPublisher reports what the pod that publishes does.
func (d *decision) followPublisher(p *v1alpha1.PublishStatus) {
	var pod *corev1.Pod
	for i := range d.o.Publishers {
		if d.o.Publishers[i].Name == p.PodName {
			pod = &d.o.Publishers[i]
		}
	}
	switch {
	case d.o.PublisherRefused != "":
		d.published(p, daemonapi.PublishResult{Reason: v1alpha1.ReasonPodRefused, Message: d.o.PublisherRefused, Retryable: true})
	case pod == nil && d.task.Spec.Publish == nil:
		p.PodName, p.PodUID, p.StartTime = "", "", nil
	case pod == nil && p.PodUID == "": // it has yet to be created
		d.plan.StartPublisher = d.publisher(p)
	case pod == nil || p.PodUID != "" && p.PodUID != string(pod.UID):
		d.published(p, publishFailed("the pod that publishes is gone"))
	default:
		d.observePublisher(p, pod)
	}
}

// observePublisher reports the outcome of the pod, or why it does not start.
func (d *decision) observePublisher(p *v1alpha1.PublishStatus, pod *corev1.Pod) {
	p.PodUID = string(pod.UID)
	v := inspect(pod)
	if s := containerStatus(pod, daemonapi.PublishContainer); s != nil && s.State.Terminated != nil {
		d.published(p, publishResult(s.State.Terminated))
		return
	}
	end := pod.CreationTimestamp.Add(publishPatience)
	switch {
	case v.finished:
		d.published(p, publishFailed(fmt.Sprintf("the pod that publishes was ended (%s): %s", pod.Status.Reason, pod.Status.Message)))
	case !d.now.Before(end) && !v.deleting:
		d.stop(v)
		d.published(p, publishFailed("the pod that publishes took too long"))
	case v.problem != nil && !d.now.Before(d.graceEnd(v)):
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishing, "the pod that publishes does not start: "+v.problem.Message)
		d.requeueAt(end)
	default:
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishing, fmt.Sprintf("checkpoint %d is being published", p.Checkpoint))
		if v.problem != nil {
			d.requeueAt(d.graceEnd(v))
		}
		d.requeueAt(end)
	}
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
	if !result.Retryable {
		p.Refusals = refusals(p.Refusals, result.Reason)
	}
	if p.EarliestTime != nil && started != nil {
		p.EarliestTime = d.nextPublishing(p, started.Time)
	}
	for _, file := range result.Protected {
		p.ProtectedFiles = append(p.ProtectedFiles, resources.PlainText(file, 256))
	}
	switch {
	case result.Reason == v1alpha1.ReasonPublished:
		d.publishedTo(p, result)
	case result.Retryable:
		p.Failures++
		pause := backoff(d.o.Limits.RetryBase, d.o.Limits.RetryCap, int(p.Failures))
		p.RetryTime = ptr.To(metav1.NewTime(d.now.Add(pause)))
		if p.Failures == 1 {
			d.addCheckpointEntry(v1alpha1.EventTaskNotPublished, clew, result.Message+"; trying again", p.Checkpoint)
		}
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionFalse, result.Reason, result.Message+"; trying again")
	default:
		p.Failures = 0
		if result.Reason != v1alpha1.ReasonNothingToPublish {
			d.addCheckpointEntry(v1alpha1.EventTaskNotPublished, clew, result.Message, p.Checkpoint)
		}
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionFalse, result.Reason, result.Message)
	}
}

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
	message := fmt.Sprintf("checkpoint %d is at %s as %s", p.Checkpoint, result.Ref, result.Commit)
	known := p.Ref == result.Ref && p.Commit == result.Commit
	p.Failures, p.Ref, p.Commit, p.PublishedCheckpoint = 0, resources.PlainText(result.Ref, 255), resources.PlainText(result.Commit, 64), p.Checkpoint
	p.Onto = resources.PlainText(result.Onto, 64)
	if result.Answer != "" || !known {
		p.Answer = resources.PlainText(result.Answer, maxMessage)
	}
	if !known {
		d.addCheckpointEntry(v1alpha1.EventTaskPublished, clew, message, p.Checkpoint)
	}
	d.setCondition(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, message)
}

// considerPublishing starts a pod if the newest checkpoint has to be published.
func (d *decision) considerPublishing(spec *v1alpha1.Publish) {
	due, request := d.toPublish(spec.When), publishRequest(spec)
	p := d.s.Publish
	switch {
	case due == 0 && d.findCondition(v1alpha1.TaskPublished) == nil:
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, pending(spec.When))
		return
	case due == 0:
		return
	case p != nil && p.Request == request && p.RetryTime != nil && d.now.Before(p.RetryTime.Time):
		d.requeueAt(p.RetryTime.Time)
		return
	case p != nil && p.Request == request && p.RetryTime == nil && p.Checkpoint == due:
		return
	case p != nil && p.Request == request && p.RetryTime == nil && p.EarliestTime != nil && d.now.Before(p.EarliestTime.Time):
		d.requeueAt(p.EarliestTime.Time)
		return
	}
	d.startPublishing(due, request)
}

// startPublishing plans a pod that publishes a checkpoint.
func (d *decision) startPublishing(checkpoint int64, request string) {
	if d.s.Publish == nil {
		d.s.Publish = &v1alpha1.PublishStatus{}
	}
	p := d.s.Publish
	if p.Request != request {
		p.Failures, p.Refusals = 0, 0
	}
	p.Number++
	p.PodName, p.PodUID = resources.PublisherName(d.task.Name, p.Number), ""
	p.Checkpoint, p.Request = checkpoint, request
	p.StartTime, p.RetryTime, p.EarliestTime = ptr.To(metav1.NewTime(d.now)), nil, nil
	if d.task.Spec.Publish.When == v1alpha1.PublishCheckpoint {
		p.EarliestTime = d.nextPublishing(p, d.now)
	}
	d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishing, fmt.Sprintf("checkpoint %d is being published", checkpoint))
	d.plan.StartPublisher = d.publisher(p)
}

// publisher describes the pod that the status names.
func (d *decision) publisher(p *v1alpha1.PublishStatus) *Publisher {
	out := &Publisher{Number: p.Number, Checkpoint: p.Checkpoint}
	if p.Ref == resources.PublishRef(d.task.Spec.Publish.Branch) {
		out.Replaces, out.Onto = p.Commit, p.Onto
	}
	return out
}

// toPublish returns the number of the checkpoint that has to be published; 0 if none has.
func (d *decision) toPublish(when v1alpha1.PublishWhen) int64 {
	latest := d.o.History.State.Latest
	if !d.o.History.Known || d.o.History.Deleted || d.behind() || latest == nil || !latest.Durable || d.rewinding() {
		return 0
	}
	if when == v1alpha1.PublishCheckpoint {
		return latest.Number
	}
	if d.active() != nil || d.want() != wantNothing {
		return 0
	}
	_, reason, _ := d.succeededCondition()
	if reason == v1alpha1.ReasonCompleted || reason == v1alpha1.ReasonSuspended && when == v1alpha1.PublishSuspended {
		return latest.Number
	}
	return 0
}

// pending says what publishing waits for.
func pending(when v1alpha1.PublishWhen) string {
	switch when {
	case v1alpha1.PublishCheckpoint:
		return "the task's work is published with its next checkpoint"
	case v1alpha1.PublishSuspended:
		return "the task's work is published when it is suspended or completed"
	}
	return "the task's work is published when it is completed"
}

// publishRequest identifies the content of spec.publish.
func publishRequest(spec *v1alpha1.Publish) string {
	text, _ := json.Marshal(spec) //nolint:errchkjson // it has only texts and numbers
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:32]
}
