package fork

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/history"
)

// Notifications delivers changes in the history store. An empty notification means that
// any task may have changed.
type Notifications interface {
	// Subscribe registers a function that is called for each notification.
	Subscribe(f func(history.Notification))
}

// ofTask is the kind of the lookups of Forks that wait for a task, by its name.
const ofTask = "task"

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
	lookups := lookup.New(map[string]lookup.Find{ofTask: r.ofTask})
	return ctrl.NewControllerManagedBy(mgr).
		Named("fork").
		For(&v1alpha1.Fork{}).
		Watches(&v1alpha1.Task{}, lookup.Handler(ofTask, client.Object.GetName), builder.WithPredicates(startpoint.NewCheckpoint())).
		Watches(&v1alpha1.Checkpoint{}, lookup.Handler(ofTask, taskOf), builder.WithPredicates(startpoint.NewConditions())).
		WatchesRawSource(r.fromHistory(notifications)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: lookups.Queue(fairqueue.Sharing(workers))}).
		Complete(lookups.Serve(r))
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

// ofTask finds the Forks that wait for a task.
func (r *Reconciler) ofTask(ctx context.Context, namespace, name string) ([]reconcile.Request, error) {
	return r.waiting(ctx, client.InNamespace(namespace), client.MatchingFields{byTask: name})
}

// taskOf returns the name of a Checkpoint's task.
func taskOf(object client.Object) string {
	if c, ok := object.(*v1alpha1.Checkpoint); ok {
		return c.Spec.TaskRef.Name
	}
	return ""
}

// waiting returns requests for the Forks that the options select and that are not complete.
func (r *Reconciler) waiting(ctx context.Context, which ...client.ListOption) (requests []reconcile.Request, err error) {
	list := &v1alpha1.ForkList{}
	// The listed objects are only read.
	if err := r.Client.List(ctx, list, append(which, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list the forks to reconcile: %w", err)
	}
	for i := range list.Items {
		if incomplete(&list.Items[i]) != nil {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests, nil
}

// fromHistory enqueues all Forks that are not complete when the history store is back. What
// it records of one task shows in that Task's status.
func (r *Reconciler) fromHistory(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		notifications.Subscribe(func(n history.Notification) {
			if n.Name != "" {
				return
			}
			requests, err := r.waiting(ctx)
			if err != nil {
				logf.FromContext(ctx).Error(err, "could not reconcile the forks that are not complete")
			}
			for _, request := range requests {
				queue.Add(request)
			}
		})
		return nil
	})
}
