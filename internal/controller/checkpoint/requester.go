package checkpoint

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// recordRequester writes the requester of a checkpoint to its status and, once, to the
// history. An object created by the manager has no requester.
func (r *Reconciler) recordRequester(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint, named bool) error {
	if _, _, ours := resources.CheckpointNumber(c); ours || c.Status.RequestedBy != "" {
		return nil
	}
	requester, err := r.requester(ctx, c)
	if err != nil || requester == "" {
		return err
	}
	kind, id, message := v1alpha1.EventCheckpointRequested, "checkpoint-requested/", fmt.Sprintf("checkpoint %d was requested as %s", row.Number, c.Name)
	if named {
		kind, id, message = v1alpha1.EventCheckpointNamed, "checkpoint-named/", fmt.Sprintf("checkpoint %d got the object %s", row.Number, c.Name)
	}
	if c.Spec.Message != "" {
		message += ": " + c.Spec.Message
	}
	err = r.Store.RecordEvents(ctx, []history.Event{{
		ID:   id + string(c.UID),
		Task: history.Task{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name, UID: row.TaskUID},
		Time: c.CreationTimestamp.Time, Type: history.EventTypeCheckpoint, Reason: kind,
		Actor: requester, Message: message, Attempt: row.Attempt, Checkpoint: row.Number,
	}})
	if err != nil {
		return fmt.Errorf("record the requester of Checkpoint %s: %w", c.Name, err)
	}
	c.Status.RequestedBy = requester
	return nil
}

// requester returns who requested the Checkpoint. The cache does not keep field managers,
// which are therefore read from the API server when admission wrote no name.
func (r *Reconciler) requester(ctx context.Context, c *v1alpha1.Checkpoint) (string, error) {
	var object metav1.Object = c
	stamp := c.Spec.RequestedBy
	if !r.Stamped {
		stamp = ""
	}
	if stamp == "" {
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Checkpoint"))
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(c), live); err != nil {
			return "", err
		}
		object = live
	}
	return plan.Requester(object, stamp, "spec", "taskRef", "name"), nil
}

// byClause returns a clause about the requester, for an Event; "" if it is unknown.
func byClause(requester string) string {
	if requester == "" {
		return ""
	}
	return ", requested by " + requester
}
