package fork

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/history"
)

// Notifications delivers changes in the history store. An empty notification means that
// any task may have changed.
type Notifications interface {
	// Subscribe registers a function that is called for each notification.
	Subscribe(f func(history.Notification))
}

// byTask is the cache's index of Forks that are not complete by the names of the tasks that
// they wait for: the source, and any that has the name of a variant.
const byTask = "incompleteOfTask"

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=forks,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=forks/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, notifications Notifications, workers int) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Fork{}, byTask, incomplete); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("fork").
		For(&v1alpha1.Fork{}).
		Watches(&v1alpha1.Task{}, handler.EnqueueRequestsFromMapFunc(r.ofTask), builder.WithPredicates(startpoint.NewCheckpoint())).
		Watches(&v1alpha1.Checkpoint{}, handler.EnqueueRequestsFromMapFunc(r.ofCheckpoint), builder.WithPredicates(startpoint.NewConditions())).
		WatchesRawSource(r.fromHistory(notifications)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.Sharing(workers)}).
		Complete(r)
}

// Cached returns the part of a Fork that the manager's cache keeps: a Fork that is not
// complete is read from the API server.
func Cached(object any) (any, error) {
	f, ok := object.(*v1alpha1.Fork)
	if !ok {
		return object, nil
	}
	kept := *f
	kept.ManagedFields = nil
	kept.Spec = v1alpha1.ForkSpec{SourceRef: f.Spec.SourceRef}
	for _, v := range f.Spec.Variants {
		kept.Spec.Variants = append(kept.Spec.Variants, v1alpha1.ForkVariant{Name: v.Name})
	}
	kept.Status = v1alpha1.ForkStatus{Conditions: f.Status.Conditions}
	return &kept, nil
}

// incomplete is the index function of byTask.
func incomplete(object client.Object) []string {
	f, ok := object.(*v1alpha1.Fork)
	if !ok || meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete) {
		return nil
	}
	names := []string{f.Spec.SourceRef.Name}
	for _, v := range f.Spec.Variants {
		names = append(names, v.Name)
	}
	return names
}

// ofTask returns requests for the Forks that wait for a task.
func (r *Reconciler) ofTask(ctx context.Context, object client.Object) []reconcile.Request {
	return r.waiting(ctx, client.InNamespace(object.GetNamespace()), client.MatchingFields{byTask: object.GetName()})
}

// ofCheckpoint returns requests for the Forks that wait for the task of a checkpoint.
func (r *Reconciler) ofCheckpoint(ctx context.Context, object client.Object) []reconcile.Request {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return nil
	}
	return r.waiting(ctx, client.InNamespace(c.Namespace), client.MatchingFields{byTask: c.Spec.TaskRef.Name})
}

// waiting returns requests for the Forks that the options select and that are not complete.
func (r *Reconciler) waiting(ctx context.Context, which ...client.ListOption) []reconcile.Request {
	list := &v1alpha1.ForkList{}
	// The listed objects are only read.
	if err := r.Client.List(ctx, list, append(which, client.UnsafeDisableDeepCopy)...); err != nil {
		logf.FromContext(ctx).Error(err, "could not list the forks to reconcile")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if incomplete(&list.Items[i]) != nil {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// fromHistory enqueues all Forks that are not complete when the history store is back. What
// it records of one task shows in that Task's status.
func (r *Reconciler) fromHistory(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		notifications.Subscribe(func(n history.Notification) {
			if n.Name != "" {
				return
			}
			for _, request := range r.waiting(ctx) {
				queue.Add(request)
			}
		})
		return nil
	})
}
