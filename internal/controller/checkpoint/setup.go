package checkpoint

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/history"
)

// Notifications delivers changes in the history store. An empty notification means that
// any task may have changed.
type Notifications interface {
	// Subscribe registers a function that is called for each notification.
	Subscribe(f func(history.Notification))
}

// byTask is the cache's index of unsettled Checkpoints by the name of their task.
const byTask = "unsettledOfTask"

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, notifications Notifications, workers int) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, byTask, unsettled); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, byRecord, durable); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, byTaskUID, ofTaskUID); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("checkpoint").
		For(&v1alpha1.Checkpoint{}).
		Watches(&v1alpha1.Checkpoint{}, handler.Funcs{DeleteFunc: r.deleted}).
		Watches(&v1alpha1.Task{}, handler.EnqueueRequestsFromMapFunc(r.ofTask)).
		WatchesRawSource(r.fromHistory(notifications)).
		WatchesRawSource(r.fromLost(notifications)).
		WatchesRawSource(r.fromVerified(notifications)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.Sharing(workers)}).
		Complete(r)
}

// deleted remembers the name of a Checkpoint that was deleted, for Reconcile to give it up.
func (r *Reconciler) deleted(_ context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if c, ok := e.Object.(*v1alpha1.Checkpoint); ok {
		r.names.remove(c)
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
	}
}

// unsettled is the index function of byTask: Checkpoints that are ready and durable are
// settled, and are not reconciled again.
func unsettled(object client.Object) []string {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || settled(c) {
		return nil
	}
	return []string{c.Spec.TaskRef.Name}
}

// ofTask returns requests for the Checkpoints that a change of the task may affect.
func (r *Reconciler) ofTask(ctx context.Context, object client.Object) []reconcile.Request {
	requests := r.listed(ctx, object.GetNamespace(), client.MatchingFields{byTask: object.GetName()})
	if task, ok := object.(*v1alpha1.Task); ok {
		for _, found := range foundDamage(task) {
			requests = append(requests, r.withNumber(ctx, task, found.checkpoint)...)
		}
		if a := task.Status.Adoption; a != nil && a.TaskUID != "" {
			requests = append(requests, r.listed(ctx, task.Namespace, client.MatchingFields{byTaskUID: a.TaskUID})...)
		}
	}
	return requests
}

// withNumber returns requests for the Checkpoints that represent the task's checkpoint with
// that number.
func (r *Reconciler) withNumber(ctx context.Context, task *v1alpha1.Task, number int64) []reconcile.Request {
	list := &v1alpha1.CheckpointList{}
	// The listed objects are only read.
	err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{byTaskUID: string(task.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not list the checkpoints to find a damaged one")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if c := &list.Items[i]; c.Status.Number == number {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return requests
}

// listed returns requests for the Checkpoints that the options select.
func (r *Reconciler) listed(ctx context.Context, namespace string, which ...client.ListOption) []reconcile.Request {
	list := &v1alpha1.CheckpointList{}
	if err := r.Client.List(ctx, list, append(which, client.InNamespace(namespace))...); err != nil {
		logf.FromContext(ctx).Error(err, "could not list the checkpoints to reconcile")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// fromHistory enqueues the unsettled Checkpoints of the task that a notification names, or
// all Checkpoints.
func (r *Reconciler) fromHistory(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		notifications.Subscribe(func(n history.Notification) {
			var which []client.ListOption
			if n.Task == (history.Task{}) {
				r.names.doubt()
			}
			if n.Name != "" {
				which = append(which, client.MatchingFields{byTask: n.Name})
			}
			for _, request := range r.listed(ctx, n.Namespace, which...) {
				queue.Add(request)
			}
		})
		return nil
	})
}
