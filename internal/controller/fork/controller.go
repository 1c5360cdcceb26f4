// Package fork is the controller of Forks: it resolves the moment to fork from to a
// checkpoint, once, and creates the new tasks.
//
// It promises that the source is never written, that a Fork creates each of its
// tasks once, under the requested name, and that the new tasks are kept when the
// Fork is deleted. A Fork with adopt: Latest goes on where the last one of its name stood.
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
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// Store is the part of the history store that knows moments, and tasks that are gone.
type Store interface {
	startpoint.Store
	// KeptSpec returns the kept spec of a task.
	KeptSpec(ctx context.Context, task history.Key) (history.KeptSpec, error)
	// ForkedTasks returns the tasks that have a history and were made for a Fork of a name, newest
	// first.
	ForkedTasks(ctx context.Context, namespace, fork string) ([]history.ForkedTask, error)
}

// maxNote is the length of an Event's note, in bytes.
const maxNote = 1000

// Reconciler is the controller of Forks. All fields are required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store is the history store.
	Store Store
	// Events emits Kubernetes Events.
	Events events.EventRecorder
	// Clock is the source of the time.
	Clock clock.PassiveClock
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
}

// Reconcile creates the missing tasks of one Fork.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var f *v1alpha1.Fork
	// The cache may lack the last write, so a Fork that is not complete there is read from
	// the API server as well.
	for _, reader := range []client.Reader{r.Client, r.Live} {
		f = &v1alpha1.Fork{}
		err := reader.Get(ctx, request.NamespacedName, f)
		if err == nil && f.DeletionTimestamp == nil && meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete) {
			return requeue.Result(logf.FromContext(ctx), r.noteGeneration(ctx, f))
		}
		if err != nil || f.DeletionTimestamp != nil {
			return requeue.Result(logf.FromContext(ctx), err)
		}
	}
	after, err := r.fork(ctx, f)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// noteGeneration says in the status of a complete Fork that it is about the current spec, of which only
// adopt can have changed: it counts no more.
func (r *Reconciler) noteGeneration(ctx context.Context, f *v1alpha1.Fork) error {
	if f.Status.ObservedGeneration >= f.Generation {
		return nil
	}
	noted := f.DeepCopy()
	noted.Status.ObservedGeneration = f.Generation
	meta.FindStatusCondition(noted.Status.Conditions, v1alpha1.ForkComplete).ObservedGeneration = f.Generation
	return r.Client.Status().Patch(ctx, noted, client.MergeFromWithOptions(f, client.MergeFromWithOptimisticLock{}))
}

// fork resolves the checkpoint and creates the tasks, and returns when to reconcile again.
func (r *Reconciler) fork(ctx context.Context, f *v1alpha1.Fork) (time.Duration, error) {
	if f.Status.RequestedBy == "" {
		f.Status.RequestedBy = r.requester(f)
	}
	source, blocker, err := r.resolve(ctx, f)
	if err != nil {
		return 0, err
	}
	if blocker != nil {
		return r.wait(ctx, f, blocker.Reason, blocker.Message)
	}
	return r.makeTasks(ctx, f, source)
}

// requester returns who requested the Fork.
func (r *Reconciler) requester(f *v1alpha1.Fork) string {
	stamp := ""
	if r.Stamped {
		stamp = f.Spec.RequestedBy
	}
	return cmp.Or(plan.Requester(f, stamp, "spec", "sourceRef", "name"), plan.Unknown)
}

// resolve returns the source, and writes the resolved checkpoint to the status, once, before
// any task is created. After that, a task that has been deleted remains the source.
func (r *Reconciler) resolve(ctx context.Context, f *v1alpha1.Fork) (*v1alpha1.Task, *plan.Blocker, error) {
	from := &v1alpha1.StartFrom{TaskRef: f.Spec.SourceRef, TaskUID: f.Spec.TaskUID, CheckpointRef: f.Spec.CheckpointRef, At: f.Spec.At}
	var blocker *plan.Blocker
	point := f.Status.Source
	if point == nil {
		f.Status.Adoption = nil // adopt may have been changed since the last try
	}
	if point == nil && f.Spec.Adopt == v1alpha1.AdoptLatest {
		if f.Status.Adoption, point, blocker = r.adoption(ctx, f); blocker != nil {
			return nil, blocker, nil
		}
	}
	if point != nil {
		from.TaskUID = point.TaskUID
	}
	found, err := startpoint.Find(ctx, r.Live, r.Store, f.Namespace, from)
	if err != nil {
		return nil, nil, err
	}
	source := found.Task
	if point == nil {
		if source != nil && from.Point() == nil && source.Status.LatestCheckpoint == nil {
			return nil, &plan.Blocker{Reason: v1alpha1.ReasonWaitingForSource, Message: fmt.Sprintf(
				"task %s has no checkpoint yet: it is forked when it has one", source.Name)}, nil
		}
		if point, blocker = plan.ResolveSource(repository(source), from, found); blocker != nil {
			return nil, blocker, nil
		}
	}
	if source == nil {
		uid := point.TaskUID
		if len(found.Kept) == 1 {
			uid = found.Kept[0] // another task may continue it, and be gone as well
		}
		if source, blocker = r.gone(ctx, f, uid); blocker != nil {
			return nil, blocker, nil
		}
	}
	if f.Status.Source == nil {
		f.Status.Source = point
		point.TaskUID = string(source.UID) // of the task that continues the source, if one does
		if _, err = r.wait(ctx, f, v1alpha1.ReasonPending, "the new tasks are being created"); err == nil {
			r.tellAdoption(f)
		}
	}
	return source, nil, err
}

// tellAdoption emits an Event about what the Fork continues.
func (r *Reconciler) tellAdoption(f *v1alpha1.Fork) {
	a := f.Status.Adoption
	if a == nil {
		return
	}
	event := v1alpha1.EventNothingAdopted
	if len(a.Tasks) > 0 {
		event = v1alpha1.EventTaskAdopted
	}
	r.Events.Eventf(f, nil, corev1.EventTypeNormal, event, "Adopt", "%s", clip.Bytes(a.Message, maxNote))
}

// makeTasks creates the tasks of the Fork that it has not created yet: one that was deleted
// since is not made again, since its work would be done twice. One that cannot be created does
// not hold up the others.
func (r *Reconciler) makeTasks(ctx context.Context, f *v1alpha1.Fork, source *v1alpha1.Task) (time.Duration, error) {
	var blocked *plan.Blocker
	inherited, alone, err := r.withParent(ctx, source)
	if err != nil {
		return 0, err
	}
	for _, variant := range f.Spec.Variants {
		task := newTask(f, inherited, variant, r.Stamped)
		if slices.ContainsFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == task.Name }) {
			continue
		}
		made, blocker, err := r.makeTask(ctx, f, task)
		if err != nil {
			return 0, err
		}
		if blocker != nil {
			blocked = cmp.Or(blocked, blocker)
			continue
		}
		addTask(f, made)
	}
	if blocked != nil {
		return r.wait(ctx, f, blocked.Reason, blocked.Message)
	}
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ForkComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonForked,
		Message: clip.Bytes(fmt.Sprintf("forked from checkpoint %d", f.Status.Source.Checkpoint)+alone, maxNote), ObservedGeneration: f.Generation,
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
	err := r.Client.Create(ctx, task, owner(task)...)
	switch {
	case err == nil:
		return task, nil, nil
	case apierrors.IsAlreadyExists(err):
	case apierrors.IsInvalid(err):
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonInvalidTemplate, Message: "the new task was refused: " + err.Error()}, nil
	case apierrors.IsForbidden(err):
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonTaskRefused, Message: "the new task was refused: " + err.Error()}, nil
	default:
		return nil, nil, fmt.Errorf("create task %s: %w", task.Name, err)
	}
	found := &v1alpha1.Task{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(task), found); err != nil {
		return nil, nil, err
	}
	if found.DeletionTimestamp != nil {
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonTaskExists, Message: fmt.Sprintf(
			"the Task %q is being deleted: the Fork makes its own when that one is gone", found.Name)}, nil
	}
	if by := plan.ForkOf(found); by != nil && by.UID == string(f.UID) {
		return found, nil, nil
	}
	if f.Status.Adoption != nil {
		if former, blocker := r.madeByFormer(ctx, f, found); former || blocker != nil {
			return found, blocker, nil
		}
	}
	return nil, &plan.Blocker{Reason: v1alpha1.ReasonTaskExists, Message: taskExists(f, found)}, nil
}

// owner makes the task the agent's own whose tool has made the Fork: its supervisor may steer it.
func owner(task *v1alpha1.Task) (options []client.CreateOption) {
	if by := task.Spec.StartFrom.Fork.FieldManager; plan.IsTaskRequester(by) {
		options = append(options, client.FieldOwner(by))
	}
	return options
}

// taskExists returns what to do about a Task that has the name of one of a Fork's tasks. A
// task of the Fork that was restored from a backup is known by its label only, and contains
// work: the message must not advise to delete it.
func taskExists(f *v1alpha1.Fork, found *v1alpha1.Task) string {
	if found.Labels[v1alpha1.LabelFork] == f.Name {
		return fmt.Sprintf("a Task %q that names a Fork %q exists already: if it is this Fork's own, restored from a backup, keep it and delete the Fork; if it is not, make a new Fork whose task has another name", found.Name, f.Name)
	}
	return fmt.Sprintf("a Task %q that this Fork did not create exists already: delete it, or make a new Fork whose task has another name", found.Name)
}

// addTask lists a created task in the status.
func addTask(f *v1alpha1.Fork, task *v1alpha1.Task) {
	made := v1alpha1.ForkedTask{Name: task.Name, UID: string(task.UID)}
	i := slices.IndexFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == task.Name })
	if i < 0 {
		f.Status.Tasks = append(f.Status.Tasks, made)
	} else {
		f.Status.Tasks[i] = made
	}
	f.Status.TaskCount = int32(len(f.Status.Tasks)) //nolint:gosec // at most 16
}

// wait reports in the condition Complete what the Fork waits for, and returns when to try
// again if nothing that is watched happens before.
func (r *Reconciler) wait(ctx context.Context, f *v1alpha1.Fork, reason, message string) (time.Duration, error) {
	current := &v1alpha1.Fork{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(f), current); err != nil {
		return 0, err
	}
	f.Status.ObservedGeneration = f.Generation
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: f.Generation,
	})
	after := pause(f, r.Clock.Now())
	if reason == v1alpha1.ReasonHistoryNotGranted {
		after = min(after, grantPause) // nothing that is watched tells that it is
	}
	if equality.Semantic.DeepEqual(current.Status, f.Status) {
		return after, nil
	}
	if err := r.Client.Status().Update(ctx, f); err != nil {
		return 0, fmt.Errorf("write the fork's status: %w", err)
	}
	return after, nil
}

const (
	// minPause and maxPause bound the pause before a Fork that waits is tried again.
	minPause = time.Second
	maxPause = 10 * time.Minute
	// grantPause is the longest pause of a Fork that waits for a history to be granted.
	grantPause = 10 * time.Second
)

// pause returns how long a Fork that is not complete rests: as long as it has waited so far.
func pause(f *v1alpha1.Fork, now time.Time) time.Duration {
	waited := time.Duration(0)
	if c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete); c != nil {
		waited = now.Sub(c.LastTransitionTime.Time)
	}
	return min(max(waited, minPause), maxPause)
}
