// Package checkpoint is the controller of Checkpoints: it fills their status
// from the records of the history store.
//
// A Checkpoint created by the manager names its number in a label, and one applied by a
// person may name it in its spec. Any other applied by a person waits until the task's daemon has taken it (the record names the
// object's UID); when the task is not running, its last checkpoint is already the
// requested one, and the object refers to that. What a status says about the
// contents of a checkpoint never changes; only its conditions do. Nothing is
// written on the basis of a cache that lags behind.
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
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
)

// Store is the part of the history store that this controller needs. Its errors wrap
// those of package history.
type Store interface {
	// Checkpoint returns the record of one checkpoint.
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
	// RecordEvents records events. Those that are recorded already have no effect.
	RecordEvents(ctx context.Context, events []history.Event) error
	// LostCheckpoints calls each with the lost checkpoints of all tasks, some at a time,
	// until it returns an error. After history.ErrSkipTask it skips the remaining ones of
	// the last task.
	LostCheckpoints(ctx context.Context, each func([]history.CheckpointKey) error) error
	// CheckpointsAfter lists the task's checkpoints after a number, in order.
	CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error)
	// ReportDamage records that whoever used a checkpoint found it damaged, until it has been
	// verified.
	ReportDamage(ctx context.Context, task history.Key, number int64, damage string) error
	// VerifiedTasks calls each with the tasks whose verdicts have changed since a time, or with
	// all that were ever verified.
	VerifiedTasks(ctx context.Context, since time.Time, each func([]history.VerifiedTask) error) error
	// NameCheckpoint records for which checkpoint an object stands.
	NameCheckpoint(ctx context.Context, task history.Key, named history.NamedCheckpoint) error
	// ClaimCheckpoint returns the number of the checkpoint that an object of that name stood for, of
	// the former task whose history this one continues.
	ClaimCheckpoint(ctx context.Context, task history.Key, name, object string) (int64, error)
	// TaskState returns what the history knows of a task, with how holds of its agent ended.
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	// ForgetCheckpointName forgets for which checkpoint an object stands that was deleted.
	ForgetCheckpointName(ctx context.Context, task history.Key, named history.NamedCheckpoint) error
}

const (
	// retryAfter is the pause before a waiting Checkpoint is reconciled again without any
	// change.
	retryAfter = 30 * time.Second
	// pushTime is the default of Reconciler.PushTime.
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
	// Events emits Kubernetes Events.
	Events events.EventRecorder
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
	// PushTime is how long the status of an automatic checkpoint waits for its push, which
	// usually follows at once: one write then reports both. It is 3 s if 0.
	PushTime time.Duration

	mu sync.Mutex
	// searched is the number up to which the task's checkpoints have been searched for a
	// waiting Checkpoint, by its UID.
	searched map[types.UID]int64
	// doubted are lost records whose Checkpoints are already final.
	doubted map[string]bool

	names names
	begun begunSets
}

// Reconcile brings the status of one Checkpoint up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if err := r.giveUpNames(ctx, request.NamespacedName); err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
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
		if set := c.Status.Set; set == nil || set.State.Ended() {
			r.begun.end(c)
			return 0, nil
		}
	}
	if c.Spec.Scope == v1alpha1.CheckpointOfContract && (c.Status.Set == nil || !c.Status.Set.State.Ended()) {
		return r.followSet(ctx, c)
	}
	if c.Status.Set != nil && c.Status.Number == 0 {
		return r.completeSet(ctx, c)
	}
	if taskUID, number, ok := resources.CheckpointNumber(c); ok {
		return r.followLabel(ctx, c, taskUID, number)
	}
	if c.Status.Number != 0 {
		taskUID, err := r.owner(ctx, c)
		if err != nil {
			return 0, err
		}
		return r.follow(ctx, c, taskUID, c.Status.Number)
	}
	if c.Spec.Number != nil {
		return r.followNumber(ctx, c, *c.Spec.Number)
	}
	return r.await(ctx, c)
}

// owner returns the UID of the task that has a taken checkpoint: the one that took it, or the one
// that has adopted that one's history.
func (r *Reconciler) owner(ctx context.Context, c *v1alpha1.Checkpoint) (string, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	if a := task.Status.Adoption; err == nil && a != nil && a.TaskUID == c.Status.TaskUID {
		return string(task.UID), nil
	}
	return c.Status.TaskUID, nil
}

// followLabel follows the record that the labels name. Anybody in the namespace can write
// labels: they count only if the Task of that name has that UID.
func (r *Reconciler) followLabel(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string, number int64) (time.Duration, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if client.IgnoreNotFound(err) != nil {
		return 0, err
	}
	if err != nil || string(task.UID) != taskUID {
		return retryAfter, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotFound, fmt.Sprintf(
			"its labels do not match Task %q in this namespace: delete this object, and apply a Checkpoint without labels of clew.dev", c.Spec.TaskRef.Name))
	}
	return r.follow(ctx, c, taskUID, number)
}

// followNumber looks for the record of the task's checkpoint that the spec names.
func (r *Reconciler) followNumber(ctx context.Context, c *v1alpha1.Checkpoint, number int64) (time.Duration, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if apierrors.IsNotFound(err) {
		return retryAfter, r.noTask(ctx, c)
	}
	if err != nil {
		return 0, err
	}
	row, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, number)
	if errors.Is(err, history.ErrNotFound) {
		return retryAfter, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"the history of task %q has no checkpoint %d: delete this object, and name another number", task.Name, number))
	}
	if err != nil {
		return 0, err
	}
	return r.take(ctx, c, row, wasTaken(true))
}

// noTask reports that the task does not exist.
func (r *Reconciler) noTask(ctx context.Context, c *v1alpha1.Checkpoint) error {
	return r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotFound,
		fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", c.Spec.TaskRef.Name))
}

// follow keeps the status of a taken checkpoint up to date with its record.
func (r *Reconciler) follow(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string, number int64) (time.Duration, error) {
	reported, err := r.reportedDamage(ctx, c, taskUID)
	if err != nil {
		return 0, err
	}
	key := recordKey(taskUID, number)
	if settled(c) && reported == nil && !r.isDoubted(key) && (c.Status.TaskUID == "" || c.Status.TaskUID == taskUID) {
		if err := r.recordName(ctx, c, taskUID, number); err != nil {
			return 0, err
		}
		return 0, r.noteGeneration(ctx, c)
	}
	row, err := r.Store.Checkpoint(ctx, history.Key{Namespace: c.Namespace, UID: taskUID}, number)
	if errors.Is(err, history.ErrNotFound) {
		return retryAfter, nil
	}
	if err != nil {
		return 0, err
	}
	if row, err = r.report(ctx, c, row, reported); err != nil {
		return 0, err
	}
	if wait := cmp.Or(r.PushTime, pushTime) - time.Since(c.CreationTimestamp.Time); wait > 0 && c.Status.Number == 0 && !row.Durable && row.Refused == "" {
		return wait, nil
	}
	after, err := r.take(ctx, c, row, wasTaken(false))
	if err == nil {
		r.trust(key)
	}
	return after, err
}

// settled reports whether nothing more is expected of a Checkpoint: it was taken, or the set that it names
// has ended, and it is in the gitstore.
func settled(c *v1alpha1.Checkpoint) bool {
	ended := c.Status.Set != nil && c.Status.Set.State.Ended()
	return (ended || meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointReady)) && saysDurable(c)
}

// noteGeneration writes to the status of a settled Checkpoint that a change of its spec was seen:
// its retention and its branches may be changed later, and change nothing of the rest.
func (r *Reconciler) noteGeneration(ctx context.Context, c *v1alpha1.Checkpoint) error {
	updated := c.DeepCopy()
	updated.Status.ObservedGeneration = c.Generation
	for i := range updated.Status.Conditions {
		updated.Status.Conditions[i].ObservedGeneration = c.Generation
	}
	return r.write(ctx, c, updated, func() error {
		return r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
	})
}

// await looks for the record of a checkpoint that a person requested.
func (r *Reconciler) await(ctx context.Context, c *v1alpha1.Checkpoint) (time.Duration, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if apierrors.IsNotFound(err) {
		return retryAfter, r.noTask(ctx, c)
	}
	if err != nil {
		return 0, err
	}
	row, err := r.search(ctx, c, string(task.UID))
	if err != nil {
		return 0, err
	}
	if row != nil {
		return r.take(ctx, c, *row, wasTaken(false))
	}
	if row, err = r.recall(ctx, c, task); err != nil {
		return 0, err
	}
	if row != nil {
		return r.take(ctx, c, *row, taking{named: true, reason: v1alpha1.ReasonTaken, message: fmt.Sprintf(
			"checkpoint %d was taken for the last Checkpoint of this name, of the former task that the task continues", row.Number)})
	}
	over, err := r.endedWithout(ctx, c)
	switch {
	case err != nil:
		return 0, err
	case over != nil && over.number != 0:
		return r.takeRested(ctx, c, task, over.number)
	case over != nil:
		return 0, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonNotTakenTogether, over.why)
	}
	switch {
	case !atRest(task):
		return retryAfter, r.wait(ctx, c, metav1.ConditionUnknown, v1alpha1.ReasonRequested, "the checkpoint was requested from the task's daemon"+blockerClause(task))
	case task.Status.LatestCheckpoint == nil:
		return retryAfter, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonTaskNotStarted,
			"the task has not run yet, so there is nothing to take: the checkpoint is taken when it runs")
	case task.Status.UndecidedDrift() != nil:
		return retryAfter, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonDriftDetected, drifted(task.Status.UndecidedDrift().FileCount))
	}
	latest, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, task.Status.LatestCheckpoint.Number)
	if errors.Is(err, history.ErrNotFound) {
		return retryAfter, r.wait(ctx, c, metav1.ConditionFalse, v1alpha1.ReasonHistoryBehind, fmt.Sprintf(
			"the task is not running, and the history store, which was restored from an older copy, does not have its last checkpoint, number %d: resume the task to have it sent again", task.Status.LatestCheckpoint.Number))
	}
	if err != nil {
		return 0, err
	}
	return r.take(ctx, c, latest, taking{reason: v1alpha1.ReasonTaskStopped, message: fmt.Sprintf(
		"the task is not running, so its last checkpoint, number %d, is its current state; if somebody has changed its volume since, its next pod finds that", latest.Number)})
}

// drifted says why the last checkpoint of a stopped task is not its current state.
func drifted(files int64) string {
	what := "1 file was"
	if files != 1 {
		what = fmt.Sprintf("%d files were", files)
	}
	return what + " changed while the task was not running, which no checkpoint has: resume the task with onDrift Preserve to have a checkpoint taken of them first; this one is taken when the task runs"
}

// blockerClause returns a clause for the condition's message about what keeps the task's
// daemon from taking checkpoints; "" if nothing does.
func blockerClause(task *v1alpha1.Task) string {
	s := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	if s == nil || s.Status != metav1.ConditionUnknown || !reason.Find(s.Reason).NoCheckpoints {
		return ""
	}
	return ", which cannot take it now: " + s.Message
}

// atRest reports whether no pod of the task runs or is about to, so that the status has the
// task's last checkpoint.
func atRest(task *v1alpha1.Task) bool {
	if n := len(task.Status.Attempts); n > 0 && task.Status.Attempts[n-1].Outcome == "" {
		return false
	}
	s := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	return s != nil && s.ObservedGeneration == task.Generation && (s.Status != metav1.ConditionUnknown ||
		reason.Find(s.Reason).Standing == reason.Resting)
}

// searchPage is the number of records read at a time in a search.
const searchPage = 500

// search returns the record that names the Checkpoint; nil while there is none.
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

// forget drops what is known about a Checkpoint that no longer waits.
func (r *Reconciler) forget(c *v1alpha1.Checkpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.searched, c.UID)
}

// wait reports in the condition Ready what the Checkpoint waits for.
func (r *Reconciler) wait(ctx context.Context, c *v1alpha1.Checkpoint, status metav1.ConditionStatus, reason, message string) error {
	updated := c.DeepCopy()
	updated.Status.ObservedGeneration = c.Generation
	meta.SetStatusCondition(&updated.Status.Conditions, metav1.Condition{
		Type: v1alpha1.CheckpointReady, Status: status, Reason: reason, Message: message, ObservedGeneration: c.Generation,
	})
	// The cache does not have the whole status, so the other fields must not be written.
	return r.write(ctx, c, updated, func() error {
		return r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
	})
}

// taking is how an object comes to stand for a checkpoint: reason and message of its condition Ready.
type taking struct {
	reason, message string
	// named: it stands for one that was taken, and reported, long ago.
	named bool
}

// wasTaken is how an object comes to stand for a checkpoint that a record names.
func wasTaken(named bool) taking {
	return taking{reason: v1alpha1.ReasonTaken, message: "the checkpoint was taken", named: named}
}

// take fills the status from the record, and emits Events when it does so for the first
// time.
func (r *Reconciler) take(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint, how taking) (time.Duration, error) {
	updated := c.DeepCopy()
	fill(&updated.Status, row, c.Generation, how.reason, how.message)
	if err := r.recordRequester(ctx, updated, row, how.named); err != nil {
		return 0, err
	}
	if err := r.recordName(ctx, c, row.TaskUID, row.Number); err != nil {
		return 0, err
	}
	setIntact(&updated.Status, row.Integrity, c.Generation)
	err := r.write(ctx, c, updated, func() error { return r.update(ctx, updated) })
	if err != nil {
		return 0, err
	}
	r.forget(c)
	r.tellIntact(c, updated)
	if how.named {
		return next(row), nil
	}
	if c.Status.Number == 0 && (updated.Status.RequestedBy != "" || !endsAttempt(row.Trigger)) {
		r.Events.Eventf(updated, nil, corev1.EventTypeNormal, v1alpha1.EventCheckpointCreated, "TakeCheckpoint",
			"checkpoint %d of task %s was taken: %d files changed%s", row.Number, c.Spec.TaskRef.Name, row.FilesChanged, byClause(updated.Status.RequestedBy))
	}
	if s := updated.Status.Consistency; c.Status.Number == 0 && s != "" && s != v1alpha1.ConsistencyPointInTime {
		r.Events.Eventf(updated, nil, corev1.EventTypeWarning, v1alpha1.EventCheckpointNotPointInTime, "TakeCheckpoint",
			"the agent ran while checkpoint %d of task %s was taken (%s): its files may be from different moments", row.Number, c.Spec.TaskRef.Name, s)
	}
	return next(row), nil
}

// update writes a whole status. The members of a set that has ended are not in the cache.
func (r *Reconciler) update(ctx context.Context, updated *v1alpha1.Checkpoint) error {
	if set := updated.Status.Set; set != nil && set.State.Ended() {
		live := &v1alpha1.Checkpoint{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(updated), live); err != nil {
			return err
		}
		updated.Status.Set = live.Status.Set
	}
	return r.Client.Status().Update(ctx, updated)
}

// next returns when to read a record again if nothing is heard of it; 0 for never.
func next(row history.Checkpoint) time.Duration {
	if !row.Durable && !row.Lost {
		return retryAfter
	}
	return 0
}

// endsAttempt reports whether a checkpoint was taken as the pod ended: the Task has an
// Event about that end, and another one would say nothing new.
func endsAttempt(trigger string) bool {
	return slices.Contains([]string{
		string(v1alpha1.TriggerCompletion), string(v1alpha1.TriggerFailure), string(v1alpha1.TriggerSuspend),
	}, trigger)
}

// errStale is returned when the cache lags behind the object: the event that updates the
// cache also enqueues the object again.
var errStale = errors.New("the cache lags behind")

// write writes the status if it changed, and the cache has the object's newest version:
// changes of the Task and of the history store also enqueue a Checkpoint, often before its
// own last write has reached the cache.
func (r *Reconciler) write(ctx context.Context, old, updated *v1alpha1.Checkpoint, store func() error) error {
	if equality.Semantic.DeepEqual(cached.Slim(old).Status, cached.Slim(updated).Status) {
		return nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Checkpoint"))
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(old), live); err != nil {
		return err
	}
	if live.ResourceVersion != old.ResourceVersion {
		return errStale
	}
	if err := store(); err != nil {
		return fmt.Errorf("write the status of Checkpoint %s: %w", updated.Name, err)
	}
	return nil
}
