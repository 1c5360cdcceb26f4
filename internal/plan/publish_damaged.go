package plan

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// A checkpoint that is recorded as damaged is not published: no pod is started before it has been
// healed, or there is another one. A pod that finds damage itself has the checkpoint verified, and is
// followed by another one unless that confirms the damage.

// holdPublishing says that a checkpoint is not published because it is damaged.
func (d *decision) holdPublishing(c history.Checkpoint, request publishRequest) {
	if d.s.Publish == nil {
		d.s.Publish = &v1alpha1.PublishStatus{}
	}
	p, known := d.s.Publish, false
	if request.isOf(p) {
		known = p.Reason == v1alpha1.ReasonCheckpointCorrupted && p.Checkpoint == c.Number
	} else {
		p.Failures, p.Refusals = 0, 0
	}
	p.Checkpoint, p.Request, p.Reason = c.Number, request.String(), v1alpha1.ReasonCheckpointCorrupted
	p.Message = statusText(heldMessage(c.Number, Damage(c.Integrity)))
	p.FailingSince, p.ProtectedFiles, p.HeldCommit = nil, nil, ""
	if !known {
		p.RetryTime = ptr.To(metav1.NewTime(d.now))
		d.addCheckpointEntry(v1alpha1.EventTaskNotPublished, clew, p.Message, p.Checkpoint)
	}
}

// heldMessage is the message about a checkpoint that is not published because it is damaged.
func heldMessage(number int64, damage string) string {
	return fmt.Sprintf("checkpoint %d is damaged (%s): it is published by itself once it is healed, as by a restore of the gitstore from a backup", number, damage)
}

// isHeld reports whether the checkpoint is not published because it is recorded as damaged. A pod that
// has found damage itself has failed.
func isHeld(p *v1alpha1.PublishStatus) bool {
	return p.Reason == v1alpha1.ReasonCheckpointCorrupted && p.RetryTime != nil && p.FailingSince == nil
}

// retryTime returns what a status says of when another pod follows one that fails now. If that has
// found its checkpoint damaged, the status has the time of that: what was verified since is known by it.
func retryTime(reason string, failures int32, l Limits, now time.Time) *metav1.Time {
	if reason != v1alpha1.ReasonCheckpointCorrupted {
		now = now.Add(backoff(l.RetryBase, l.RetryCap, int(failures)))
	}
	return ptr.To(metav1.NewTime(now))
}

// retriedAt returns when another pod may follow, after what retryTime has returned.
func retriedAt(reason string, failures int32, l Limits, retry *metav1.Time) time.Time {
	if reason != v1alpha1.ReasonCheckpointCorrupted {
		return retry.Time
	}
	return retry.Add(backoff(l.RetryBase, l.RetryCap, int(failures)))
}
