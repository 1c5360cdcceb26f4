// Package fork is the controller of Forks: it resolves the checkpoint to fork
// from, once, and creates the new tasks.
//
// It promises that the source is never written, that a Fork creates each of its
// tasks once, under the requested name, and that the new tasks are kept when the
// Fork is deleted.
package fork

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/plan"
)

// retryAfter is the pause before a Fork that waits for something is reconciled again.
const retryAfter = 5 * time.Second

// Reconciler is the controller of Forks. All fields are required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Events emits Kubernetes Events.
	Events events.EventRecorder
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
}

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=forks,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=forks/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, workers int) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("fork").
		For(&v1alpha1.Fork{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.New}).
		Complete(r)
}

// Reconcile creates the missing tasks of one Fork.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var f *v1alpha1.Fork
	// The cache may lack the last write, so a Fork that is not complete there is read from
	// the API server as well.
	for _, reader := range []client.Reader{r.Client, r.Live} {
		f = &v1alpha1.Fork{}
		err := reader.Get(ctx, request.NamespacedName, f)
		if err != nil || f.DeletionTimestamp != nil || meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete) {
			return requeue.Result(logf.FromContext(ctx), err)
		}
	}
	after, err := r.fork(ctx, f)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// fork resolves the checkpoint and creates the tasks, and returns when to reconcile again.
func (r *Reconciler) fork(ctx context.Context, f *v1alpha1.Fork) (time.Duration, error) {
	if f.Status.RequestedBy == "" {
		f.Status.RequestedBy = r.requester(f)
	}
	source := &v1alpha1.Task{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: f.Spec.SourceRef.Name}, source)
	if apierrors.IsNotFound(err) {
		return retryAfter, r.wait(ctx, f, v1alpha1.ReasonSourceNotFound,
			fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", f.Spec.SourceRef.Name))
	}
	if err != nil {
		return 0, err
	}
	checkpoint, blocker, err := r.resolve(ctx, f, source)
	if err != nil {
		return 0, err
	}
	if blocker != nil {
		return retryAfter, r.wait(ctx, f, blocker.Reason, blocker.Message)
	}
	return r.makeTasks(ctx, f, source, checkpoint)
}

// requester returns who requested the Fork.
func (r *Reconciler) requester(f *v1alpha1.Fork) string {
	stamp := ""
	if r.Stamped {
		stamp = f.Spec.RequestedBy
	}
	return cmp.Or(plan.Requester(f, stamp, "spec", "sourceRef", "name"), plan.Unknown)
}

// resolve writes the resolved checkpoint to the status, once, before any task is created,
// and returns the name of the Checkpoint.
func (r *Reconciler) resolve(ctx context.Context, f *v1alpha1.Fork, source *v1alpha1.Task) (string, *plan.Blocker, error) {
	name := ""
	if f.Spec.CheckpointRef != nil {
		name = f.Spec.CheckpointRef.Name
	} else if latest := source.Status.LatestCheckpoint; latest != nil {
		name = latest.Name
	}
	if name == "" {
		return "", &plan.Blocker{Reason: v1alpha1.ReasonWaitingForSource, Message: fmt.Sprintf(
			"Task %q has no checkpoint yet: it is forked when it has one", source.Name)}, nil
	}
	checkpoint := &v1alpha1.Checkpoint{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: name}, checkpoint); err != nil {
		if !apierrors.IsNotFound(err) {
			return "", nil, err
		}
		checkpoint = nil
	}
	point, blocker := plan.ResolveSource(source.Spec.Repository, source.Name, source, checkpoint)
	if blocker != nil {
		return "", blocker, nil
	}
	if f.Status.Source != nil && *f.Status.Source != *point {
		if f.Spec.CheckpointRef == nil {
			return r.resolved(ctx, f, source)
		}
		return "", &plan.Blocker{Reason: v1alpha1.ReasonCheckpointNotFound, Message: fmt.Sprintf(
			"Checkpoint %q is no longer the one that this Fork started with: apply a new Fork", name)}, nil
	}
	if f.Status.Source == nil {
		f.Status.Source = point
		if err := r.wait(ctx, f, v1alpha1.ReasonPending, "the new task is being created"); err != nil {
			return "", nil, err
		}
	}
	return name, nil, nil
}

// resolved returns the name of the Checkpoint that a Fork of the latest one was resolved to
// before the source had a newer one.
func (r *Reconciler) resolved(ctx context.Context, f *v1alpha1.Fork, source *v1alpha1.Task) (string, *plan.Blocker, error) {
	list := &v1alpha1.CheckpointList{}
	if err := r.Live.List(ctx, list, client.InNamespace(f.Namespace)); err != nil {
		return "", nil, err
	}
	for _, c := range list.Items {
		if c.Spec.TaskRef.Name == source.Name && c.Status.TaskUID == f.Status.Source.TaskUID && c.Status.Number == f.Status.Source.Checkpoint {
			return c.Name, nil, nil
		}
	}
	return "", &plan.Blocker{Reason: v1alpha1.ReasonCheckpointNotFound, Message: fmt.Sprintf(
		"the Checkpoint with number %d, with which this Fork started, no longer exists: apply a new Fork", f.Status.Source.Checkpoint)}, nil
}

// makeTasks creates the missing tasks of the Fork.
func (r *Reconciler) makeTasks(ctx context.Context, f *v1alpha1.Fork, source *v1alpha1.Task, checkpoint string) (time.Duration, error) {
	for _, variant := range f.Spec.Variants {
		made, blocker, err := r.makeTask(ctx, f, newTask(f, source, variant, checkpoint, r.Stamped))
		if err != nil {
			return 0, err
		}
		if blocker != nil {
			return retryAfter, r.wait(ctx, f, blocker.Reason, blocker.Message)
		}
		addTask(f, made)
	}
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ForkComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonForked,
		Message: fmt.Sprintf("forked from checkpoint %d", f.Status.Source.Checkpoint), ObservedGeneration: f.Generation,
	})
	f.Status.ObservedGeneration = f.Generation
	if err := r.Client.Status().Update(ctx, f); err != nil {
		return 0, fmt.Errorf("write the fork's status: %w", err)
	}
	for _, t := range f.Status.Tasks {
		r.Events.Eventf(f, &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task", Namespace: f.Namespace, Name: t.Name},
			corev1.EventTypeNormal, v1alpha1.EventTaskForked, "Fork", "task %s starts from checkpoint %d of task %s, requested by %s", t.Name, f.Status.Source.Checkpoint, source.Name, f.Status.RequestedBy)
	}
	return 0, nil
}

// makeTask creates one task, or returns the one that this Fork created before.
func (r *Reconciler) makeTask(ctx context.Context, f *v1alpha1.Fork, task *v1alpha1.Task) (*v1alpha1.Task, *plan.Blocker, error) {
	err := r.Client.Create(ctx, task)
	switch {
	case err == nil:
		return task, nil, nil
	case apierrors.IsAlreadyExists(err):
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonInvalidTemplate, Message: "the new task was refused: " + err.Error()}, nil
	default:
		return nil, nil, fmt.Errorf("create task %s: %w", task.Name, err)
	}
	found := &v1alpha1.Task{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(task), found); err != nil {
		return nil, nil, err
	}
	if by := plan.ForkOf(found); by == nil || by.UID != string(f.UID) {
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonTaskExists, Message: taskExists(f, found)}, nil
	}
	return found, nil, nil
}

// taskExists returns what to do about a Task that has the name of one of a Fork's tasks. A
// task of the Fork that was restored from a backup is known by its label only, and contains
// work: the message must not advise to delete it.
func taskExists(f *v1alpha1.Fork, found *v1alpha1.Task) string {
	if found.Labels[v1alpha1.LabelFork] == f.Name {
		return fmt.Sprintf("a Task %q that names a Fork %q exists already: if it is this Fork's own, restored from a backup, keep it and delete the Fork; if it is not, apply a new Fork whose variant has another name", found.Name, f.Name)
	}
	return fmt.Sprintf("a Task %q that this Fork did not create exists already: delete it, or apply a new Fork whose variant has another name", found.Name)
}

// addTask lists a created task in the status.
func addTask(f *v1alpha1.Fork, task *v1alpha1.Task) {
	made := v1alpha1.ForkedTask{Name: task.Name, UID: string(task.UID)}
	i := slices.IndexFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == task.Name })
	if i < 0 {
		f.Status.Tasks = append(f.Status.Tasks, made)
		return
	}
	f.Status.Tasks[i] = made
}

// wait reports in the condition Complete what the Fork waits for.
func (r *Reconciler) wait(ctx context.Context, f *v1alpha1.Fork, reason, message string) error {
	current := &v1alpha1.Fork{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(f), current); err != nil {
		return err
	}
	f.Status.ObservedGeneration = f.Generation
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: f.Generation,
	})
	if equality.Semantic.DeepEqual(current.Status, f.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, f); err != nil {
		return fmt.Errorf("write the fork's status: %w", err)
	}
	return nil
}
