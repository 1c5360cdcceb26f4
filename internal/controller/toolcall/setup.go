package toolcall

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// Indexes of the cache: Tasks by the name of their parent, and by that of their contract.
const (
	tasksByParentRef  = "toolcall.parentRef"
	membersOfContract = "toolcall.contract"
)

// workers are how many calls are looked at at a time, of each namespace one: the calls of one contract count
// on what the ones before have made.
const workers = 4

// pageOfCalls is how many calls are listed at once, each with its arguments.
const pageOfCalls = 20

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=clew.dev,resources=forks,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch;patch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	for name, of := range map[string]func(*v1alpha1.Task) string{tasksByParentRef: parentName, membersOfContract: plan.ContractName} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Task{}, name, func(object client.Object) []string {
			if t, ok := object.(*v1alpha1.Task); ok && of(t) != "" {
				return []string{of(t)}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, checkpointsByUse, usesOf); err != nil {
		return err
	}
	calls := &callSource{store: r.Store, started: make(chan struct{})}
	if err := mgr.Add(calls); err != nil {
		return err
	}
	waiting := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, changed client.Object) []reconcile.Request { return r.waits.of(changed) })
	return ctrl.NewControllerManagedBy(mgr).
		Named("toolcall").
		Watches(&v1alpha1.Task{}, waiting).
		Watches(&v1alpha1.Task{}, handler.Funcs{DeleteFunc: r.deleted}).
		Watches(&v1alpha1.Fork{}, waiting).
		Watches(&v1alpha1.Checkpoint{}, waiting).
		WatchesRawSource(calls.source()).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.Serial()}).
		Complete(r)
}

// deleted forgets what the calls of a supervisor have made that is gone.
func (r *Reconciler) deleted(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	r.made.gone(e.Object.GetUID())
}

// parentName returns the name of a task's parent; "" for none.
func parentName(t *v1alpha1.Task) string {
	if ref := t.Spec.ParentRef; ref != nil {
		return ref.Name
	}
	return ""
}

// callSource enqueues the calls that are made, and all that have no answer whenever some may have been
// missed. It is a runnable of the manager that runs only while the manager leads.
type callSource struct {
	store Store
	// started is closed when queue is set.
	started chan struct{}
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

var _ manager.LeaderElectionRunnable = &callSource{}

// source returns the source of the controller's requests.
func (s *callSource) source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		s.queue = queue
		close(s.started)
		return nil
	})
}

// NeedLeaderElection returns true: only the leader listens.
func (s *callSource) NeedLeaderElection() bool { return true }

// Start listens until ctx ends.
func (s *callSource) Start(ctx context.Context) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil
	}
	err := s.store.ListenToolCalls(ctx, func(n history.ToolCallNotification) {
		switch {
		case n.Answered:
		case n.ID != "":
			s.queue.Add(requestOf(n.Task.Namespace, n.Task.UID, n.ID))
		default:
			if err := s.addPending(ctx); err != nil && ctx.Err() == nil {
				logf.FromContext(ctx).Error(err, "could not list the calls that wait for an answer; they are looked at when the connection to the history store is made again, or when they are made again")
			}
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("listen for calls of tools: %w", err)
	}
	return nil
}

// addPending enqueues all calls without an answer.
func (s *callSource) addPending(ctx context.Context) error {
	after := int64(0)
	for {
		calls, next, err := s.store.PendingToolCalls(ctx, after, pageOfCalls)
		if err != nil {
			return err
		}
		for _, call := range calls {
			s.queue.Add(requestOf(call.Task.Namespace, call.Task.UID, call.ID))
		}
		after = next
		if len(calls) < pageOfCalls {
			return nil
		}
	}
}
