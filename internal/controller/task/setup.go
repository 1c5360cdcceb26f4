package task

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// gather is how long notifications about one task are gathered before it is reconciled: a
// busy agent causes many.
const gather = 100 * time.Millisecond

// The controller's permissions. The status of Checkpoints belongs to the checkpoint
// controller.
//
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch;update;patch;delete
// +kubebuilder:rbac:groups=clew.dev,resources=tasks/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks/finalizers,verbs=update
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=clew.dev,resources=conversationsnapshots,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, notifications Notifications, workers int) error {
	index := func(object client.Object) []string { return []string{object.GetLabels()[v1alpha1.LabelTaskUID]} }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, podsByTask, index); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, checkpointsByTask, func(object client.Object) []string {
		if c, ok := object.(*v1alpha1.Checkpoint); ok && c.Status.TaskUID != "" {
			return []string{c.Status.TaskUID}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Task{}, tasksBySource, sourceUID); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Task{}, tasksByParent, parentUID); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Task{}, supervisorsByContract, supervisedContract); err != nil {
		return err
	}
	if err := indexNodes(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	lookups := lookup.New(r.relations.Lookups())
	b := ctrl.NewControllerManagedBy(mgr).
		Named("task").
		For(&v1alpha1.Task{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(taskOf)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(taskOf)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.tasksOnNode), builder.WithPredicates(nodeNews())).
		Watches(&v1alpha1.Task{}, handler.EnqueueRequestsFromMapFunc(sourceOf), builder.WithPredicates(startPointResolved())).
		Watches(&v1alpha1.Task{}, r.relations.Handler()).
		Watches(&v1alpha1.Checkpoint{}, r.relations.OfSource(namedTask), builder.WithPredicates(startpoint.NewConditions())).
		Watches(&v1alpha1.Checkpoint{}, handler.EnqueueRequestsFromMapFunc(phaseStartOf)).
		WatchesRawSource(r.fromHistory(notifications)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: lookups.Queue(fairqueue.Sharing(workers))})
	if r.Places != nil {
		b = b.WatchesRawSource(r.Places)
	}
	if r.PhaseCalls != nil {
		b = b.WatchesRawSource(r.PhaseCalls)
	}
	return b.Complete(lookups.Serve(r))
}

// namedTask returns the name of a Checkpoint's task.
func namedTask(object client.Object) string {
	if c, ok := object.(*v1alpha1.Checkpoint); ok {
		return c.Spec.TaskRef.Name
	}
	return ""
}

// phaseStartOf returns a request for the supervisor of which a phase begins with a Checkpoint.
func phaseStartOf(_ context.Context, object client.Object) []reconcile.Request {
	if c, ok := object.(*v1alpha1.Checkpoint); ok && resources.IsPhaseStart(c) {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}}}
	}
	return nil
}

// taskOf returns a request for the task that the labels of an object name.
func taskOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[v1alpha1.LabelTask]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// fromHistory enqueues the task that a notification names, or every task.
func (r *Reconciler) fromHistory(notifications Notifications) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		notifications.Subscribe(func(n history.Notification) {
			if n.Name != "" {
				queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: n.Namespace, Name: n.Name}}, gather)
				return
			}
			r.memory.copies.Add(1)
			for _, request := range r.relations.All() {
				queue.Add(request)
			}
		})
		return nil
	})
}
