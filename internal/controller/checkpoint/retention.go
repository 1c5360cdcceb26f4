package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/pages"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/retention"
)

// Retention keeps only the Checkpoint objects of each task that its checkpointPolicy says,
// because an agent can cause any number of them and etcd stores them all. It deletes objects
// only: the history keeps the record, the gitstore the code, and every verb still finds the
// checkpoint by its number. Package retention decides which objects are surplus.
type Retention struct {
	// Client reads from the cache and deletes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Keep is the number of objects that a task's policy may keep at most; 0 for any number.
	Keep int
	// Clock is the source of the time.
	Clock clock.PassiveClock
	// Settle is how long a task must have taken no checkpoint before the last few surplus
	// objects are deleted. It is a minute if 0.
	Settle time.Duration
}

// retained is the cache's index of the Checkpoints that a policy may be about, by the UID of
// their task.
const retained = "retainedOfTask"

// settleTime is the default of Retention.Settle.
const settleTime = time.Minute

// deletedAtOnce is the number of objects deleted for one task at a time, so that it does not
// delay the others.
const deletedAtOnce = 200

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=clew.dev,resources=tasks;forks;conversationsnapshots,verbs=get;list;watch

// SetupWithManager adds the controller to the manager.
func (r *Retention) SetupWithManager(mgr ctrl.Manager, workers int) error {
	index := func(object client.Object) []string {
		if c, ok := object.(*v1alpha1.Checkpoint); ok {
			if uid, _, ok := resources.CheckpointNumber(c); ok {
				return []string{uid}
			}
			if c.Spec.Retention == v1alpha1.CheckpointByPolicy && c.Status.TaskUID != "" {
				return []string{c.Status.TaskUID}
			}
		}
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, retained, index); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("checkpoint-retention").
		For(&v1alpha1.Task{}).
		Watches(&v1alpha1.Checkpoint{}, handler.EnqueueRequestsFromMapFunc(taskOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.Sharing(workers)}).
		Complete(r)
}

// taskOf returns a request for the task that a Checkpoint names.
func taskOf(_ context.Context, object client.Object) []reconcile.Request {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}}}
}

// Reconcile deletes the surplus Checkpoints of one task.
func (r *Retention) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	task := &v1alpha1.Task{}
	if err := r.Client.Get(ctx, request.NamespacedName, task); err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	after, err := r.trim(ctx, task)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// trim deletes surplus Checkpoints, and returns after which time there may be more; 0 if only
// a change can bring some.
func (r *Retention) trim(ctx context.Context, task *v1alpha1.Task) (time.Duration, error) {
	rule := retention.RuleOf(task, r.Keep)
	if task.DeletionTimestamp != nil || task.Status.CheckpointCount <= int64(rule.KeepLast) {
		return 0, nil
	}
	list := &v1alpha1.CheckpointList{}
	// The listed objects are only read.
	err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{retained: string(task.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, err
	}
	// Most often nothing is surplus even if nothing is named, which costs little to find out.
	now := r.Clock.Now()
	answer := retention.Decide(list.Items, task, retention.Names{}, rule, now)
	if wait := r.pause(answer, rule, now); len(answer.Surplus) == 0 || wait > 0 {
		return wait, nil
	}
	named, err := namedIn(ctx, r.Client, task.Namespace, 0, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, err
	}
	answer = retention.Decide(list.Items, task, named, rule, now)
	if wait := r.pause(answer, rule, now); len(answer.Surplus) == 0 || wait > 0 {
		return wait, nil
	}
	return r.remove(ctx, task, answer)
}

// pause returns how long nothing is deleted: until an object is old enough; or, if fewer than a
// tenth too many exist, until the task has taken no checkpoint for a while, so that a task that
// works does not have them deleted one by one.
func (r *Retention) pause(answer retention.Answer, rule retention.Rule, now time.Time) time.Duration {
	settle := cmp.Or(r.Settle, settleTime)
	if len(answer.Surplus) == 0 {
		if answer.Next.IsZero() {
			return 0
		}
		return max(answer.Next.Sub(now), settle)
	}
	if len(answer.Surplus) > rule.KeepLast/10 {
		return 0
	}
	return max(0, answer.Newest.Add(settle).Sub(now))
}

// remove deletes the surplus, and returns after which time there may be more.
func (r *Retention) remove(ctx context.Context, task *v1alpha1.Task, answer retention.Answer) (time.Duration, error) {
	// The cache may lack what was applied a moment ago.
	named, err := namedIn(ctx, r.Live, task.Namespace, pages.Size)
	if err != nil {
		return 0, err
	}
	surplus := slices.DeleteFunc(answer.Surplus, named.Has)
	for _, c := range surplus[:min(len(surplus), deletedAtOnce)] {
		// An object that has changed since is judged again.
		unchanged := client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}
		err := r.Client.Delete(ctx, c, unchanged)
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("delete Checkpoint %s, which the task's retention does not keep: %w", c.Name, err)
		}
	}
	if len(surplus) > deletedAtOnce {
		return retryAfter, nil
	}
	if !answer.Next.IsZero() {
		return max(answer.Next.Sub(r.Clock.Now()), cmp.Or(r.Settle, settleTime)), nil
	}
	return 0, nil
}

// namedIn returns the Checkpoints that are named in a namespace. Of what it reads, so many at a time, it
// keeps what names them; 0 for all at once, as from the cache.
func namedIn(ctx context.Context, reader client.Reader, namespace string, page int64, options ...client.ListOption) (retention.Names, error) {
	names := retention.NewNames()
	options = append(options, client.InNamespace(namespace))
	err := pages.Each(ctx, reader, page, func(list *v1alpha1.TaskList) { names.AddTasks(list.Items) }, options...)
	if err == nil {
		err = pages.Each(ctx, reader, page, func(list *v1alpha1.ForkList) { names.AddForks(list.Items) }, options...)
	}
	if err == nil {
		err = pages.Each(ctx, reader, page, func(list *v1alpha1.ConversationSnapshotList) { names.AddSnapshots(list.Items) }, options...)
	}
	if err != nil {
		return names, fmt.Errorf("list the objects that may name checkpoints of the task: %w", err)
	}
	return names, nil
}
