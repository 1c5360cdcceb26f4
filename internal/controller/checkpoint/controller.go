// Package checkpoint is the controller of Checkpoints: it fills their status
// from what the history store recorded.
//
// A Checkpoint that the manager made names its number in a label. One that a
// person applied waits until the task's daemon has taken it (the record names
// the object's UID); when the task is not running, its last checkpoint already
// is what was asked for, and the object points at that one. What a status says
// a checkpoint holds never changes; only its conditions do. Nothing is written
// on the word of a cache that lags behind.
package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
)

// Store is the history store, as far as this controller needs it. Errors wrap
// those of package history.
type Store interface {
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
	RecordEvents(ctx context.Context, events []history.Event) error
	// LostCheckpoints gives each those of all tasks that are nowhere any more, some
	// at a time, until it returns an error. With history.ErrSkipTask it leaves out
	// what else there is of the last task.
	LostCheckpoints(ctx context.Context, each func([]history.CheckpointKey) error) error
	CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error)
}

const (
	// again is when a Checkpoint that waits is looked at without being told to.
	again    = 30 * time.Second
	pushTime = 3 * time.Second
)

// Reconciler is the controller of Checkpoints. All fields but PushTime are required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store is the history store.
	Store Store
	// Events tells people.
	Events events.EventRecorder
	// Stamped says that admission writes who asked into what is applied.
	Stamped bool
	// PushTime is how long the status of a checkpoint that nobody asked for waits
	// for its push, which mostly follows at once: one write tells of both. It is
	// 3 s if 0.
	PushTime time.Duration

	mu sync.Mutex
	// searched is, by the UID of a waiting Checkpoint, up to which number the
	// task's checkpoints have been searched for it.
	searched map[types.UID]int64
	// doubted are the records that are lost though their Checkpoints are settled.
	doubted map[string]bool
}

// Reconcile brings the status of one Checkpoint up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	c := &v1alpha1.Checkpoint{}
	if err := r.Client.Get(ctx, request.NamespacedName, c); err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	after, err := r.reconcile(ctx, c)
	if errors.Is(err, errStale) {
		return ctrl.Result{}, nil
	}
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

func (r *Reconciler) reconcile(ctx context.Context, c *v1alpha1.Checkpoint) (time.Duration, error) {
	if c.DeletionTimestamp != nil {
		r.forget(c)
		return 0, nil
	}
	if taskUID, number, ok := resources.CheckpointNumber(c); ok {
		return r.followLabel(ctx, c, taskUID, number)
	}
	if c.Status.Number != 0 {
		return r.follow(ctx, c, c.Status.TaskUID, c.Status.Number)
	}
	return r.await(ctx, c)
}

// followLabel follows the record that the labels name. Anybody in the namespace
// can write labels: they count only where the Task of that name has that UID.
func (r *Reconciler) followLabel(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string, number int64) (time.Duration, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if client.IgnoreNotFound(err) != nil {
		return 0, err
	}
	if err != nil || string(task.UID) != taskUID {
		return again, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotFound, fmt.Sprintf(
			"its labels are not those of Task %q in this namespace: delete this object, and apply a Checkpoint without labels of clew.dev", c.Spec.TaskRef.Name))
	}
	return r.follow(ctx, c, taskUID, number)
}

// follow keeps the status of a taken checkpoint in step with its record.
func (r *Reconciler) follow(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string, number int64) (time.Duration, error) {
	damaged, err := r.foundDamaged(ctx, c, taskUID)
	if err != nil {
		return 0, err
	}
	key := recordKey(taskUID, number)
	settled := meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointReady) && saysDurable(c)
	if settled && damaged == "" && !r.isDoubted(key) {
		return 0, nil
	}
	row, err := r.Store.Checkpoint(ctx, history.Key{Namespace: c.Namespace, UID: taskUID}, number)
	if errors.Is(err, history.ErrNotFound) {
		return again, nil
	}
	if err != nil {
		return 0, err
	}
	if wait := cmp.Or(r.PushTime, pushTime) - time.Since(c.CreationTimestamp.Time); wait > 0 && c.Status.Number == 0 && !row.Durable && row.Refused == "" {
		return wait, nil
	}
	after, err := r.take(ctx, c, row, v1alpha1.ReasonTaken, "the checkpoint was taken", damaged)
	if err == nil {
		r.trust(key)
	}
	return after, err
}

// foundDamaged is why the checkpoint is known to be damaged: a rewind to it
// said so; "" when nothing is known.
func (r *Reconciler) foundDamaged(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string) (string, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if err != nil {
		return "", client.IgnoreNotFound(err)
	}
	rewind := task.Status.Rewind
	if string(task.UID) == taskUID && rewind != nil && rewind.Reason == v1alpha1.ReasonCheckpointCorrupted &&
		c.Status.Number != 0 && rewind.ToCheckpoint == c.Status.Number &&
		!meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact) {
		return rewind.Message, nil
	}
	return "", nil
}

// await looks for the record of a checkpoint that a person asked for.
func (r *Reconciler) await(ctx context.Context, c *v1alpha1.Checkpoint) (time.Duration, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if apierrors.IsNotFound(err) {
		return again, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotFound,
			fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", c.Spec.TaskRef.Name))
	}
	if err != nil {
		return 0, err
	}
	row, err := r.search(ctx, c, string(task.UID))
	if err != nil {
		return 0, err
	}
	if row != nil {
		return r.take(ctx, c, *row, v1alpha1.ReasonTaken, "the checkpoint was taken", "")
	}
	switch {
	case !atRest(task):
		return again, r.wait(ctx, c, metav1.ConditionUnknown, v1alpha1.ReasonRequested, "the task's daemon was asked to take the checkpoint"+blocker(task))
	case task.Status.LatestCheckpoint == nil:
		return again, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotStarted,
			"the task has not run yet and has nothing to keep: the checkpoint is taken when it runs")
	}
	latest, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, task.Status.LatestCheckpoint.Number)
	if errors.Is(err, history.ErrNotFound) {
		return again, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonHistoryBehind, fmt.Sprintf(
			"the task is not running, and the history store, which was put back to an older copy, does not have its last checkpoint, number %d: resume the task, and it is sent again", task.Status.LatestCheckpoint.Number))
	}
	if err != nil {
		return 0, err
	}
	return r.take(ctx, c, latest, v1alpha1.ReasonTaskStopped,
		fmt.Sprintf("the task is not running, so that its last checkpoint, number %d, is its state", latest.Number), "")
}

// blocker is what keeps the task's daemon from taking checkpoints, to go on
// with; "" when nothing does.
func blocker(task *v1alpha1.Task) string {
	s := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if s == nil || s.Status != metav1.ConditionUnknown || !reason.Find(s.Reason).NoCheckpoints {
		return ""
	}
	return ", which cannot do so now: " + s.Message
}

// atRest says that no pod of the task runs or is about to, and that the
// status tells of its last checkpoint.
func atRest(task *v1alpha1.Task) bool {
	if n := len(task.Status.Attempts); n > 0 && task.Status.Attempts[n-1].Outcome == "" {
		return false
	}
	s := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	return s != nil && s.ObservedGeneration == task.Generation && (s.Status != metav1.ConditionUnknown ||
		reason.Find(s.Reason).Standing == reason.Resting)
}

const searchPage = 500

// search finds the record that names the Checkpoint; nil while there is none.
func (r *Reconciler) search(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string) (*history.Checkpoint, error) {
	r.mu.Lock()
	after := r.searched[c.UID]
	r.mu.Unlock()
	for {
		rows, err := r.Store.CheckpointsAfter(ctx, taskUID, after, searchPage)
		if err != nil {
			if errors.Is(err, history.ErrNotFound) {
				err = nil
			}
			return nil, err
		}
		for i := range rows {
			if rows[i].RequestedByUID == string(c.UID) {
				return &rows[i], nil
			}
			after = rows[i].Number
		}
		r.mu.Lock()
		if r.searched == nil {
			r.searched = map[types.UID]int64{}
		}
		r.searched[c.UID] = after
		r.mu.Unlock()
		if len(rows) < searchPage {
			return nil, nil
		}
	}
}

func (r *Reconciler) forget(c *v1alpha1.Checkpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.searched, c.UID)
}

// wait says in the condition Ready what the Checkpoint waits for.
func (r *Reconciler) wait(ctx context.Context, c *v1alpha1.Checkpoint, status metav1.ConditionStatus, reason, message string) error {
	updated := c.DeepCopy()
	updated.Status.ObservedGeneration = c.Generation
	meta.SetStatusCondition(&updated.Status.Conditions, metav1.Condition{
		Type: v1alpha1.CheckpointReady, Status: status, Reason: reason, Message: message, ObservedGeneration: c.Generation,
	})
	// The cache does not have the whole status: what it lacks stays as it is.
	return r.write(ctx, c, updated, func() error {
		return r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
	})
}

// take writes what the record says into the status, and tells of it once.
func (r *Reconciler) take(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint, reason, message, damaged string) (time.Duration, error) {
	updated := c.DeepCopy()
	fill(&updated.Status, row, c.Generation, reason, message)
	if err := r.noteRequester(ctx, updated, row); err != nil {
		return 0, err
	}
	if damaged != "" {
		meta.SetStatusCondition(&updated.Status.Conditions, metav1.Condition{
			Type: v1alpha1.CheckpointIntact, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCorrupted, Message: damaged, ObservedGeneration: c.Generation,
		})
	}
	err := r.write(ctx, c, updated, func() error { return r.Client.Status().Update(ctx, updated) })
	if err != nil {
		return 0, err
	}
	r.forget(c)
	if c.Status.Number == 0 && (updated.Status.RequestedBy != "" || !endsAttempt(row.Trigger)) {
		r.Events.Eventf(updated, nil, corev1.EventTypeNormal, v1alpha1.EventCheckpointCreated, "TakeCheckpoint",
			"checkpoint %d of task %s was taken: %d files changed%s", row.Number, c.Spec.TaskRef.Name, row.FilesChanged, by(updated.Status.RequestedBy))
	}
	if s := updated.Status.Consistency; c.Status.Number == 0 && s != "" && s != v1alpha1.ConsistencyPointInTime {
		r.Events.Eventf(updated, nil, corev1.EventTypeWarning, v1alpha1.EventCheckpointNotPointInTime, "TakeCheckpoint",
			"the agent ran while checkpoint %d of task %s was taken (%s): its files may be of different instants", row.Number, c.Spec.TaskRef.Name, s)
	}
	if damaged != "" {
		r.Events.Eventf(updated, nil, corev1.EventTypeWarning, v1alpha1.EventCheckpointCorrupted, "VerifyCheckpoint", "%s", damaged)
	}
	if !row.Durable && !row.Lost {
		return again, nil
	}
	return 0, nil
}

// endsAttempt says that a checkpoint was taken as the pod ended: the Task's own
// Event tells of that end, and one more would say nothing new.
func endsAttempt(trigger string) bool {
	return slices.Contains([]string{
		string(v1alpha1.TriggerCompletion), string(v1alpha1.TriggerFailure), string(v1alpha1.TriggerSuspend),
	}, trigger)
}

// errStale says that the cache lags behind the object: what brings it up to
// date has the object looked at again.
var errStale = errors.New("the cache lags behind")

// write writes the status if it changed. Changes of the Task and of the history
// store have a Checkpoint looked at too, often before its own last write has
// come back.
func (r *Reconciler) write(ctx context.Context, was, is *v1alpha1.Checkpoint, store func() error) error {
	if equality.Semantic.DeepEqual(slim(was).Status, slim(is).Status) {
		return nil
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Checkpoint"))
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(was), now); err != nil {
		return err
	}
	if now.ResourceVersion != was.ResourceVersion {
		return errStale
	}
	if err := store(); err != nil {
		return fmt.Errorf("write the status of Checkpoint %s: %w", is.Name, err)
	}
	return nil
}
