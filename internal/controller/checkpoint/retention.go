package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/resources"
)

// Retention keeps only the newest automatic Checkpoint objects of each task, because an
// agent can cause any number of them and etcd stores them all. It deletes objects only: the
// history keeps the record, the gitstore the code, and a rewind to a message or a time still
// finds the checkpoint.
//
// It never deletes an object that a person applied or a person's rewind caused, one that a
// Task, Fork or ConversationSnapshot names, or a task's latest.
type Retention struct {
	// Client reads from the cache and deletes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Keep is the number of objects to keep per task; 0 keeps all.
	Keep int
}

// madeFor is the cache's index of the Checkpoints that the manager created, by the UID of
// their task.
const madeFor = "madeForTask"

// deletedAtOnce is the number of objects deleted for one task at a time, so that it does not
// delay the others.
const deletedAtOnce = 200

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=clew.dev,resources=tasks;forks;conversationsnapshots,verbs=get;list;watch

// SetupWithManager adds the controller to the manager.
func (r *Retention) SetupWithManager(mgr ctrl.Manager) error {
	index := func(object client.Object) []string {
		if c, ok := object.(*v1alpha1.Checkpoint); ok {
			if uid, _, ok := resources.CheckpointNumber(c); ok {
				return []string{uid}
			}
		}
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Checkpoint{}, madeFor, index); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("checkpoint-retention").
		For(&v1alpha1.Task{}).
		Watches(&v1alpha1.Checkpoint{}, handler.EnqueueRequestsFromMapFunc(taskOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, NewQueue: fairqueue.New}).
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
	more, err := r.trim(ctx, task)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	if more {
		return ctrl.Result{RequeueAfter: retryAfter}, nil
	}
	return ctrl.Result{}, nil
}

// trim deletes surplus Checkpoints, and reports whether more are left.
func (r *Retention) trim(ctx context.Context, task *v1alpha1.Task) (more bool, err error) {
	if r.Keep == 0 || task.DeletionTimestamp != nil || task.Status.CheckpointCount <= int64(r.Keep) {
		return false, nil
	}
	list := &v1alpha1.CheckpointList{}
	// The listed objects are only read.
	err = r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{madeFor: string(task.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, err
	}
	named, err := namedIn(ctx, r.Client, task.Namespace)
	if err != nil {
		return false, err
	}
	surplus := surplusOf(list.Items, task, named, r.Keep)
	if len(surplus) == 0 {
		return false, nil
	}
	// The cache may lack what was applied a moment ago.
	if named, err = namedIn(ctx, r.Live, task.Namespace); err != nil {
		return false, err
	}
	surplus = slices.DeleteFunc(surplus, named.has)
	for _, c := range surplus[:min(len(surplus), deletedAtOnce)] {
		// An object that has changed since is judged again.
		unchanged := client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}
		err := r.Client.Delete(ctx, c, unchanged)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete Checkpoint %s, which is not among the newest: %w", c.Name, err)
		}
	}
	return len(surplus) > deletedAtOnce, nil
}

// surplusOf returns the oldest of a task's automatic Checkpoints beyond the number to keep.
// It returns none before a tenth too many exist, so that objects are not deleted one by one.
func surplusOf(list []v1alpha1.Checkpoint, task *v1alpha1.Task, named names, keep int) []*v1alpha1.Checkpoint {
	var automatic []*v1alpha1.Checkpoint
	for i := range list {
		if c := &list[i]; managed(c, task) && isAutomatic(c.Status.Trigger) && !named.has(c) {
			automatic = append(automatic, c)
		}
	}
	if len(automatic) <= keep+keep/10 {
		return nil
	}
	slices.SortFunc(automatic, func(a, b *v1alpha1.Checkpoint) int { return cmp.Compare(a.Status.Number, b.Status.Number) })
	return automatic[:len(automatic)-keep]
}

// managed reports whether the manager created the Checkpoint, for this task. Anybody in the
// namespace can write labels and owners; the name and the requester that admission writes
// distinguish the manager's objects from imitations.
func managed(c *v1alpha1.Checkpoint, task *v1alpha1.Task) bool {
	uid, number, ok := resources.CheckpointNumber(c)
	return ok && uid == string(task.UID) && c.Status.TaskUID == uid && c.Status.Number == number &&
		c.DeletionTimestamp == nil && c.Spec.TaskRef.Name == task.Name && c.Spec.RequestedBy == "" && c.Status.RequestedBy == "" &&
		(c.Name == resources.CheckpointName(task.Name, number) || c.Name == resources.CheckpointNameOr(task, number))
}

// isAutomatic reports whether the checkpoint was taken for an agent and not for a person.
// Triggers unknown to this version are not automatic.
func isAutomatic(trigger v1alpha1.CheckpointTrigger) bool {
	return slices.Contains([]v1alpha1.CheckpointTrigger{
		v1alpha1.TriggerToolCalls, v1alpha1.TriggerInterval, v1alpha1.TriggerBeforeRiskyTool,
		v1alpha1.TriggerSuspend, v1alpha1.TriggerCompletion, v1alpha1.TriggerFailure, v1alpha1.TriggerDrift,
	}, trigger)
}

// names are the Checkpoints that the objects of a namespace name.
type names struct {
	// objects are named by their name.
	objects map[string]bool
	// numbers are named by task and number.
	numbers map[point]bool
}

// point identifies a checkpoint by the UID of its task and its number.
type point struct {
	task   types.UID
	number int64
}

// has reports whether something names the Checkpoint.
func (n names) has(c *v1alpha1.Checkpoint) bool {
	return n.objects[c.Name] || n.numbers[point{types.UID(c.Status.TaskUID), c.Status.Number}]
}

// ref adds a reference by name.
func (n names) ref(r *v1alpha1.NameReference) {
	if r != nil {
		n.objects[r.Name] = true
	}
}

// source adds the checkpoint that a task or fork started from.
func (n names) source(s *v1alpha1.SourceStatus) {
	if s != nil {
		n.numbers[point{types.UID(s.TaskUID), s.Checkpoint}] = true
	}
}

// namedIn returns the Checkpoints that are named in a namespace. Nothing names a Checkpoint
// of another namespace.
func namedIn(ctx context.Context, reader client.Reader, namespace string) (names, error) {
	n := names{objects: map[string]bool{}, numbers: map[point]bool{}}
	tasks, forks, snapshots := &v1alpha1.TaskList{}, &v1alpha1.ForkList{}, &v1alpha1.ConversationSnapshotList{}
	for _, list := range []client.ObjectList{tasks, forks, snapshots} {
		if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return n, fmt.Errorf("list the objects that may name checkpoints of the task: %w", err)
		}
	}
	for i := range tasks.Items {
		n.ofTask(&tasks.Items[i])
	}
	for i := range forks.Items {
		n.ref(forks.Items[i].Spec.CheckpointRef)
		n.source(forks.Items[i].Status.Source)
	}
	for i := range snapshots.Items {
		n.ref(snapshots.Items[i].Spec.CheckpointRef)
	}
	return n, nil
}

// ofTask adds the checkpoints that a Task names.
func (n names) ofTask(t *v1alpha1.Task) {
	if t.Spec.StartFrom != nil {
		n.ref(t.Spec.StartFrom.CheckpointRef)
	}
	if t.Spec.Rewind != nil {
		n.ref(t.Spec.Rewind.To.CheckpointRef)
	}
	n.source(t.Status.Source)
	if latest := t.Status.LatestCheckpoint; latest != nil {
		n.objects[latest.Name] = true
		n.numbers[point{t.UID, latest.Number}] = true
	}
	if rewind := t.Status.Rewind; rewind != nil {
		n.numbers[point{t.UID, rewind.FromCheckpoint}] = true
		n.numbers[point{t.UID, rewind.ToCheckpoint}] = true
	}
}
