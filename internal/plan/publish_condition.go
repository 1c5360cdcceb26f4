package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// reportPublishing sets the condition Published. It is computed in every decision, from
// spec.publish and status.publish alone, so that it is always about both as they are now.
// trouble is why the pod that publishes does not start.
func (d *decision) reportPublishing(trouble string) {
	spec, p := d.publishesItself(), d.s.Publish
	switch {
	case p != nil && p.PodName != "":
		if trouble == "" {
			trouble = fmt.Sprintf("checkpoint %d is being published", p.Checkpoint)
		}
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishing, trouble)
	case spec == nil:
		meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskPublished)
	default:
		d.reportAnswer(spec, p)
	}
}

// reportAnswer sets the condition Published while no pod publishes.
func (d *decision) reportAnswer(spec *v1alpha1.Publish, p *v1alpha1.PublishStatus) {
	selected, request := d.selected(spec), requestOf(spec)
	switch {
	case selected == 0:
		d.publishPending(pending(spec.When), p)
	case p != nil && request.answered(p, selected) && request.published(p):
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, whereabouts(p))
	case p != nil && request.answered(p, selected) && p.Reason == v1alpha1.ReasonNothingToPublish:
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionTrue, p.Reason, p.Message)
	case p != nil && request.isOf(p) && announcing(p.Reason):
		d.publishUnknown(v1alpha1.ReasonPushAnnounced, p.Message, p)
	case p != nil && request.isOf(p) && !succeeded(p.Reason):
		message := p.Message
		if p.RetryTime != nil && !isHeld(p) {
			message += tryingAgain
		}
		d.setCondition(v1alpha1.TaskPublished, metav1.ConditionFalse, p.Reason, message)
	case p != nil && request.isOf(p) && p.EarliestTime != nil:
		d.publishPending("newer checkpoints are published from "+p.EarliestTime.UTC().Format(time.RFC3339)+" on", p)
	default:
		d.publishPending("the newest checkpoint is published once the gitstore and the history store have it", p)
	}
}

// publishPending says why publishing waits.
func (d *decision) publishPending(message string, p *v1alpha1.PublishStatus) {
	d.publishUnknown(v1alpha1.ReasonPublishPending, message, p)
}

// publishUnknown sets the condition Published to Unknown, and says what is at the repository.
func (d *decision) publishUnknown(reason, message string, p *v1alpha1.PublishStatus) {
	if p != nil && p.Ref != "" {
		message += "; " + whereabouts(p)
	}
	d.setCondition(v1alpha1.TaskPublished, metav1.ConditionUnknown, reason, message)
}

// whereabouts says what was published last, and where it is.
func whereabouts(p *v1alpha1.PublishStatus) string {
	return fmt.Sprintf("checkpoint %d is at %s as %s", p.PublishedCheckpoint, p.Ref, p.Commit)
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

// succeeded reports whether an outcome leaves nothing to be done. An earlier version of Clew has
// not written it down.
func succeeded(reason string) bool {
	return slices.Contains([]string{"", v1alpha1.ReasonPublished, v1alpha1.ReasonNothingToPublish}, reason)
}

// publishRequest identifies what spec.publish asks for. When it differs from that of
// status.publish, the work is published anew.
type publishRequest struct {
	ref string
	// content identifies what is pushed and where; consent, what may be discarded or changed
	// by that.
	content, consent string
}

// requestVersion is the version of the fields that requestOf reads and of how it writes them.
// Work that was published by a request of another version is not published again.
const requestVersion = "v1"

// requestOf returns the request of spec.publish. A field that has its default is left out, so
// that the requests of old Tasks stay the same when a field is added.
func requestOf(spec *v1alpha1.Publish) publishRequest {
	ref := resources.PublishRef(spec.Branch)
	content := []any{"ref", ref}
	add := func(list []any, name string, value any, isDefault bool) []any {
		if isDefault {
			return list
		}
		return append(list, name, value)
	}
	content = add(content, "id", spec.ID, spec.ID == "")
	content = add(content, "uncommitted", spec.Uncommitted, spec.Uncommitted == "" || spec.Uncommitted == v1alpha1.PublishCommit)
	content = add(content, "message", spec.Message, spec.Message == "")
	if a := spec.Author; a != nil {
		content = append(content, "author", []string{a.Name, a.Email})
	}
	content = add(content, "pushOptions", spec.PushOptions, len(spec.PushOptions) == 0)
	consent := add(nil, "onDiverged", spec.OnDiverged, spec.OnDiverged == "" || spec.OnDiverged == v1alpha1.DivergedFail)
	consent = add(consent, "protectedPaths", spec.ProtectedPaths, spec.ProtectedPaths == nil)
	consent = add(consent, "approvedCommit", spec.ApprovedCommit, spec.ApprovedCommit == "")
	return publishRequest{ref: ref, content: digest(content), consent: digest(consent)}
}

// digest returns a short digest of a list.
func digest(list []any) string {
	text, _ := json.Marshal(list) //nolint:errchkjson // it has only texts
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:24]
}

// String returns the request as status.publish.request has it.
func (r publishRequest) String() string { return requestVersion + "." + r.content + "." + r.consent }

// isOf reports whether status.publish is about this request.
func (r publishRequest) isOf(p *v1alpha1.PublishStatus) bool {
	return p.Request == r.String() || r.published(p)
}

// published reports whether the last outcome is that what the request asks for is at the
// repository, whatever it consents to.
func (r publishRequest) published(p *v1alpha1.PublishStatus) bool {
	return p.Reason == v1alpha1.ReasonPublished && strings.HasPrefix(p.Request, requestVersion+"."+r.content+".")
}

// takeOver makes status.publish be about this request if another version of Clew has written
// it, and the checkpoint that it is about was published to the same ref.
func (r publishRequest) takeOver(p *v1alpha1.PublishStatus) {
	version, _, _ := strings.Cut(p.Request, ".")
	if version != requestVersion && p.RetryTime == nil && succeeded(p.Reason) && p.PublishedCheckpoint == p.Checkpoint && p.Ref == r.ref {
		p.Request, p.Reason = r.String(), v1alpha1.ReasonPublished
	}
}

// answered reports whether the last pod has said all there is to say about the request and a
// checkpoint.
func (r publishRequest) answered(p *v1alpha1.PublishStatus, checkpoint int64) bool {
	return r.isOf(p) && p.RetryTime == nil && p.Checkpoint == checkpoint
}
