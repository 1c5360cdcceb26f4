package plan

import (
	"fmt"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// RewindPreview is what Decide would make of a rewind. Exactly one of Accepted, Refusal and
// Waits is set.
type RewindPreview struct {
	// Accepted is the rewind's status, with its target, and Operation what prepare would carry
	// out.
	Accepted  *v1alpha1.OperationStatus
	Operation *daemonapi.Operation
	// Refusal is why the rewind would be refused, and Waits what it would wait for.
	Refusal, Waits *Blocker
	// Fails is why the rewind would be accepted, and then fail, as far as that is known; nil if it
	// may succeed.
	Fails *Blocker
	// Stops is set if the rewind would stop a pod that is about to run the agent, or runs it.
	Stops bool
}

// PreviewRewind returns what Decide would make of the rewind in the task's spec, which must
// have an id that no other rewind had. Its target has to be observed before.
func PreviewRewind(o Observed, now time.Time) RewindPreview {
	d := newDecision(o, now)
	r := d.task.Spec.Rewind
	switch {
	case d.task.DeletionTimestamp != nil:
		return RewindPreview{Refusal: &Blocker{v1alpha1.ReasonInvalidState, "the task is being deleted"}}
	case d.rewinding():
		return RewindPreview{Waits: &Blocker{v1alpha1.ReasonRewinding, fmt.Sprintf("the rewind %s is in progress: wait until it has ended", d.s.Rewind.ID)}}
	}
	if next := NewRewind(d.task); next != nil && next.ID != r.ID {
		return RewindPreview{Waits: &Blocker{v1alpha1.ReasonRewinding, fmt.Sprintf("the rewind %s, by which the task follows its parent, comes first: wait until it has ended", next.ID)}}
	}
	stops := d.active() != nil
	d.considerRewind()
	switch s := d.s.Rewind; {
	case s == nil || s.ID != r.ID:
		return RewindPreview{Refusal: &Blocker{v1alpha1.ReasonInvalidOperation, fmt.Sprintf("a rewind with the id %s was requested before: give it a new id", r.ID)}}
	case s.State == v1alpha1.OperationRefused:
		return RewindPreview{Refusal: &Blocker{s.Reason, s.Message}}
	case s.State == v1alpha1.OperationPending:
		return RewindPreview{Waits: &Blocker{s.Reason, s.Message}}
	default:
		return RewindPreview{Accepted: s, Operation: d.rewindOperation(), Fails: d.knownDrift(r.OnDrift), Stops: stops}
	}
}

// knownDrift returns why an operation is known to fail: files that were found changed while the task
// was not running, about which neither anybody has decided since, nor the operation does.
func (d *decision) knownDrift(onDrift v1alpha1.OnDrift) *Blocker {
	found := d.old.UndecidedDrift()
	if found == nil || onDrift == v1alpha1.OnDriftPreserve || onDrift == v1alpha1.OnDriftOverride {
		return nil
	}
	text := "1 file"
	if found.FileCount != 1 {
		text = fmt.Sprintf("%d files", found.FileCount)
	}
	text += " changed while the task was not running"
	if len(found.Files) > 0 {
		text += fmt.Sprintf(", for example %q", clip.Marked(found.Files[0].Path, 200))
	}
	return &Blocker{v1alpha1.ReasonDriftDetected, text + ": have the changes kept (onDrift Preserve) or discarded (Override)"}
}
