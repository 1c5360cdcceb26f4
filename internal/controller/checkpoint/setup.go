package checkpoint

import (
	"context"
	"fmt"
	"time"

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
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/history"
)

// Notifications delivers changes in the history store. An empty notification means that
// any task may have changed.
type Notifications interface {
	// Subscribe registers a function that is called for each notification.
	Subscribe(f func(history.Notification))
}

// Kinds of lookups: the Checkpoints that a change of a Task may affect, and those that the history of a task
// may, by the name of the task.
const (
	ofTask    = "task"
	ofHistory = "history"
)

// gather is how long notifications about one task are gathered before its Checkpoints are looked up: a
// busy agent causes many.
const gather = 100 * time.Millisecond

// byTask is the cache's index of unsettled Checkpoints by the name of their task.
const byTask = "unsettledOfTask"

// childrenOf and setsOf are the cache's indexes of Tasks by the UID of the parent in their status, and of
// sets that have begun by the name of their supervisor.
const (
	childrenOf = "checkpoint.parent"
	setsOf     = "checkpoint.set"
)

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch;create
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
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, setsOf, supervisorOf); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Task{}, childrenOf, parentOf); err != nil {
		return err
	}
	lookups := lookup.New(map[string]lookup.Find{ofTask: r.ofTask, ofHistory: r.ofHistory})
	return ctrl.NewControllerManagedBy(mgr).
		Named("checkpoint").
		For(&v1alpha1.Checkpoint{}).
		Watches(&v1alpha1.Checkpoint{}, handler.Funcs{DeleteFunc: r.deleted}).
		Watches(&v1alpha1.Checkpoint{}, handler.EnqueueRequestsFromMapFunc(r.related)).
		Watches(&v1alpha1.Task{}, lookup.Handler(ofTask, client.Object.GetName)).
		WatchesRawSource(r.fromHistory(notifications)).
		WatchesRawSource(r.fromLost(notifications)).
		WatchesRawSource(r.fromVerified(notifications)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: lookups.Queue(fairqueue.Sharing(workers))}).
		Complete(lookups.Serve(r))
}

// deleted remembers the name of a Checkpoint that was deleted, for Reconcile to give it up. If it names a set,
// the supervisor's other sets have waited for it.
func (r *Reconciler) deleted(_ context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if c, ok := e.Object.(*v1alpha1.Checkpoint); ok {
		r.names.remove(c)
		r.begun.gone(c)
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		if c.Spec.Scope == v1alpha1.CheckpointOfContract {
			queue.Add(lookup.Request(ofHistory, c.Namespace, c.Spec.TaskRef.Name))
		}
	}
}

// parentOf is the index function of childrenOf.
func parentOf(object client.Object) []string {
	if task, ok := object.(*v1alpha1.Task); ok && task.Status.Parent != nil {
		return []string{task.Status.Parent.UID}
	}
	return nil
}

// supervisorOf is the index function of setsOf.
func supervisorOf(object client.Object) []string {
	if c, ok := object.(*v1alpha1.Checkpoint); ok && c.Status.Set != nil {
		return []string{c.Spec.TaskRef.Name}
	}
	return nil
}

// unsettled is the index function of byTask: Checkpoints that are ready and durable are
// settled, and are not reconciled again, nor are those for which none was taken in a set that has ended.
func unsettled(object client.Object) []string {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || settled(c) || isUntaken(c) {
		return nil
	}
	tasks := []string{c.Spec.TaskRef.Name}
	if set := c.Status.Set; set != nil && !set.State.Ended() {
		for _, m := range set.Members {
			if m.Task != c.Spec.TaskRef.Name {
				tasks = append(tasks, m.Task)
			}
		}
	}
	return tasks
}

// ofTask finds the Checkpoints that a change of the task may affect.
func (r *Reconciler) ofTask(ctx context.Context, namespace, name string) ([]reconcile.Request, error) {
	requests, err := r.ofHistory(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	task := &v1alpha1.Task{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, task, client.UnsafeDisableDeepCopy); err != nil {
		return requests, client.IgnoreNotFound(err)
	}
	for _, found := range foundDamage(task) {
		with, err := r.withNumber(ctx, task, found.checkpoint)
		if err != nil {
			return nil, err
		}
		requests = append(requests, with...)
	}
	if a := task.Status.Adoption; a != nil && a.TaskUID != "" {
		adopted, err := r.listed(ctx, namespace, client.MatchingFields{byTaskUID: a.TaskUID})
		return append(requests, adopted...), err
	}
	return requests, nil
}

// ofHistory finds the Checkpoints of a task that more may be known of by now.
func (r *Reconciler) ofHistory(ctx context.Context, namespace, task string) ([]reconcile.Request, error) {
	return r.listed(ctx, namespace, client.MatchingFields{byTask: task})
}

// withNumber returns requests for the Checkpoints that represent the task's checkpoint with
// that number.
func (r *Reconciler) withNumber(ctx context.Context, task *v1alpha1.Task, number int64) (requests []reconcile.Request, err error) {
	list, err := r.list(ctx, task.Namespace, client.MatchingFields{byTaskUID: string(task.UID)})
	for i := range list {
		if list[i].Status.Number == number {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
		}
	}
	return requests, err
}

// listed returns requests for the Checkpoints that the options select.
func (r *Reconciler) listed(ctx context.Context, namespace string, which ...client.ListOption) (requests []reconcile.Request, err error) {
	list, err := r.list(ctx, namespace, which...)
	for i := range list {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
	return requests, err
}

// list lists Checkpoints as the cache has them, to be read only.
func (r *Reconciler) list(ctx context.Context, namespace string, which ...client.ListOption) ([]v1alpha1.Checkpoint, error) {
	list := &v1alpha1.CheckpointList{}
	if err := r.Client.List(ctx, list, append(which, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list the checkpoints to reconcile: %w", err)
	}
	return list.Items, nil
}

// fromHistory has the unsettled Checkpoints of the task looked up that a notification names, or enqueues
// all Checkpoints.
func (r *Reconciler) fromHistory(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		notifications.Subscribe(func(n history.Notification) {
			if n.Task == (history.Task{}) {
				r.names.doubt()
			}
			if n.Name != "" {
				queue.AddAfter(lookup.Request(ofHistory, n.Namespace, n.Name), gather)
				return
			}
			requests, err := r.listed(ctx, n.Namespace)
			if err != nil {
				logf.FromContext(ctx).Error(err, "could not reconcile all checkpoints after notifications may have been missed")
			}
			for _, request := range requests {
				queue.Add(request)
			}
		})
		return nil
	})
}
