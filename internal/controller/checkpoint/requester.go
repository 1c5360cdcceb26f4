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

// noteRequester writes who asked for a checkpoint into its status and, once,
// into the history. Nobody asked for one that the manager made the object for.
func (r *Reconciler) noteRequester(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint) error {
	if _, _, ours := resources.CheckpointNumber(c); ours || c.Status.RequestedBy != "" {
		return nil
	}
	requester, err := r.requester(ctx, c)
	if err != nil || requester == "" {
		return err
	}
	message := fmt.Sprintf("checkpoint %d was asked for as %s", row.Number, c.Name)
	if c.Spec.Message != "" {
		message += ": " + c.Spec.Message
	}
	err = r.Store.RecordEvents(ctx, []history.Event{{
		ID:   "checkpoint-requested/" + string(c.UID),
		Task: history.Task{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name, UID: row.TaskUID},
		Time: c.CreationTimestamp.Time, Type: history.EventTypeCheckpoint, Reason: v1alpha1.EventCheckpointRequested,
		Actor: requester, Message: message, Attempt: row.Attempt, Checkpoint: row.Number,
	}})
	if err != nil {
		return fmt.Errorf("record who asked for Checkpoint %s: %w", c.Name, err)
	}
	c.Status.RequestedBy = requester
	return nil
}

// requester is who asked for the Checkpoint. Field managers are not kept in the
// cache, and are read where admission wrote no name.
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

// by names who asked, for an Event.
func by(requester string) string {
	if requester == "" {
		return ""
	}
	return ", asked for by " + requester
}
