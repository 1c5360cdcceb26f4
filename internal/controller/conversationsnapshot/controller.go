// Package conversationsnapshot is the controller of ConversationSnapshots: it
// resolves the position each one names, once. A snapshot is a pointer into the
// history store; resolved, it does not change any more.
package conversationsnapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/failure"
	"github.com/clew-dev/clew/internal/history"
)

// Store is the history store, as far as this controller needs it. Errors wrap
// those of package history.
type Store interface {
	// Snapshot resolves a checkpoint's position, a position, or the newest one.
	Snapshot(ctx context.Context, taskUID string, query history.SnapshotQuery) (history.Snapshot, error)
}

// again is when a snapshot that cannot be resolved yet is tried again.
const again = 10 * time.Second

// Reconciler is the controller of ConversationSnapshots. All fields are required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Store is the history store.
	Store Store
}

// What the controller may do.
//
// +kubebuilder:rbac:groups=clew.dev,resources=conversationsnapshots,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=conversationsnapshots/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks;checkpoints,verbs=get;list;watch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, workers int) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("conversationsnapshot").
		For(&v1alpha1.ConversationSnapshot{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// Reconcile resolves one snapshot.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &v1alpha1.ConversationSnapshot{}
	err := r.Client.Get(ctx, request.NamespacedName, s)
	if err == nil && s.DeletionTimestamp == nil && !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.SnapshotReady) {
		return r.resolve(ctx, s)
	}
	return failure.Result(logf.FromContext(ctx), err)
}

func (r *Reconciler) resolve(ctx context.Context, s *v1alpha1.ConversationSnapshot) (ctrl.Result, error) {
	was := s.Status.DeepCopy()
	unresolved, err := r.find(ctx, s)
	if err != nil {
		return failure.Result(logf.FromContext(ctx), err)
	}
	condition := metav1.Condition{
		Type: v1alpha1.SnapshotReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved,
		Message: "the position is resolved", ObservedGeneration: s.Generation,
	}
	after := time.Duration(0)
	if unresolved != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, unresolved.reason, unresolved.message
		after = again
	}
	s.Status.ObservedGeneration = s.Generation
	meta.SetStatusCondition(&s.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(*was, s.Status) {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	if err := r.Client.Status().Update(ctx, s); err != nil {
		return failure.Result(logf.FromContext(ctx), fmt.Errorf("write the snapshot's status: %w", err))
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// problem is why a snapshot cannot be resolved yet.
type problem struct{ reason, message string }

// find fills the status from the store, or says why it cannot yet.
func (r *Reconciler) find(ctx context.Context, s *v1alpha1.ConversationSnapshot) (*problem, error) {
	task := &v1alpha1.Task{}
	name := s.Spec.TaskRef.Name
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, task); err != nil {
		return &problem{v1alpha1.ReasonTaskNotFound, fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", name)},
			client.IgnoreNotFound(err)
	}
	number, p, err := r.checkpoint(ctx, s, task)
	if p != nil || err != nil {
		return p, err
	}
	found, err := r.Store.Snapshot(ctx, string(task.UID), history.SnapshotQuery{Checkpoint: number})
	switch {
	case errors.Is(err, history.ErrNotFound):
		return &problem{v1alpha1.ReasonNoConversation, fmt.Sprintf("task %q has no conversation yet", name)}, nil
	case errors.Is(err, history.ErrUnavailable):
		return &problem{v1alpha1.ReasonHistoryUnavailable, "the history store cannot be reached; it is tried again"}, nil
	case err != nil:
		return nil, err
	}
	s.Status.TaskUID = string(task.UID)
	s.Status.Conversation = &v1alpha1.ConversationPosition{
		Branch: found.Position.Branch, Position: found.Position.Position, ToolCalls: found.Position.ToolCalls,
	}
	s.Status.MessageCount = found.Totals.Messages
	s.Status.InputTokens, s.Status.OutputTokens = found.Totals.InputTokens, found.Totals.OutputTokens
	s.Status.CostMicroUSD, s.Status.Digest = found.Totals.CostMicroUSD, found.Digest
	return nil, nil
}

// checkpoint is the number of the checkpoint whose position is meant; 0 for
// the newest position.
func (r *Reconciler) checkpoint(ctx context.Context, s *v1alpha1.ConversationSnapshot, task *v1alpha1.Task) (int64, *problem, error) {
	if s.Spec.CheckpointRef == nil {
		return 0, nil, nil
	}
	name := s.Spec.CheckpointRef.Name
	c := &v1alpha1.Checkpoint{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, c); err != nil {
		return 0, &problem{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf("there is no Checkpoint %q in this namespace: name one of the task's checkpoints", name)},
			client.IgnoreNotFound(err)
	}
	switch {
	case c.Spec.TaskRef.Name != task.Name || (c.Status.TaskUID != "" && c.Status.TaskUID != string(task.UID)):
		return 0, &problem{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf("Checkpoint %q is not of task %q: name one of that task's checkpoints", name, task.Name)}, nil
	case c.Status.Number == 0:
		return 0, &problem{v1alpha1.ReasonCheckpointNotReady, fmt.Sprintf("Checkpoint %q has not been taken yet", name)}, nil
	}
	return c.Status.Number, nil, nil
}
