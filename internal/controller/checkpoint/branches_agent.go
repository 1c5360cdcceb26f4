package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/plan"
)

// agentStarted selects the changes of a Task after which more is known of the branches in its
// agent's repository.
func agentStarted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // every Checkpoint is reconciled at the start
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Task)
			after, is := e.ObjectNew.(*v1alpha1.Task)
			return ok && is && !equality.Semantic.DeepEqual(before.Status.AgentBranches, after.Status.AgentBranches)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// Kinds of lookups, by the UID of a task: its Checkpoints that have branches, those that have some to push,
// and those that ask for a checkout.
const (
	withBranches = "branches"
	toPush       = "pushes"
	checkingOut  = "checkouts"
)

// uidOf returns the UID of a Task.
func uidOf(task client.Object) string { return string(task.GetUID()) }

// withBranches finds the Checkpoints of a task that have branches.
func (r *Branches) withBranches(ctx context.Context, namespace, taskUID string) ([]reconcile.Request, error) {
	return r.requests(ctx, namespace, taskUID, func(c *v1alpha1.Checkpoint) bool { return len(c.Status.Branches) > 0 })
}

// asksForCheckout selects the changes of a Checkpoint that begin or end a request to check a branch
// out: others of the task may wait for that. What else its status says wakes none of them, or they
// would keep one another awake.
func asksForCheckout() predicate.Predicate {
	asks := func(c *v1alpha1.Checkpoint) (ids []string) {
		for _, request := range plan.Checkouts([]v1alpha1.Checkpoint{*c}) {
			ids = append(ids, request.ID)
		}
		return ids
	}
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Checkpoint)
			after, is := e.ObjectNew.(*v1alpha1.Checkpoint)
			return ok && is && !slices.Equal(asks(before), asks(after))
		},
		DeleteFunc: func(e event.DeleteEvent) bool {
			c, ok := e.Object.(*v1alpha1.Checkpoint)
			return ok && plan.ChecksOut(c)
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// takenOf returns the UID of the task of a Checkpoint that was taken; "" for any other.
func takenOf(object client.Object) string {
	if c, ok := object.(*v1alpha1.Checkpoint); ok {
		return c.Status.TaskUID
	}
	return ""
}

// checkingOut finds the Checkpoints of a task that ask for a checkout.
func (r *Branches) checkingOut(ctx context.Context, namespace, taskUID string) ([]reconcile.Request, error) {
	return r.requests(ctx, namespace, taskUID, plan.ChecksOut)
}

// requests returns requests for those Checkpoints of a task that are selected.
func (r *Branches) requests(ctx context.Context, namespace, taskUID string, selected func(*v1alpha1.Checkpoint) bool) (requests []reconcile.Request, err error) {
	list, err := r.ofTask(ctx, namespace, taskUID)
	for i := range list {
		if selected(&list[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
		}
	}
	return requests, err
}

// ofTask lists the Checkpoints of a task as the cache has them, to be read only.
func (r *Branches) ofTask(ctx context.Context, namespace, taskUID string) ([]v1alpha1.Checkpoint, error) {
	list := &v1alpha1.CheckpointList{}
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{byTaskUID: taskUID}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints of the task: %w", err)
	}
	return list.Items, nil
}

// checkouts returns the checkouts that the Checkpoints of a Checkpoint's task request.
func (r *Branches) checkouts(ctx context.Context, c *v1alpha1.Checkpoint) ([]daemonapi.Checkout, error) {
	list, err := r.ofTask(ctx, c.Namespace, c.Status.TaskUID)
	return plan.Checkouts(list), err
}
