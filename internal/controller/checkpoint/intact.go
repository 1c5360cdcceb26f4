package checkpoint

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// Clew's server verifies every checkpoint once a day, and records what it found in the history.
// What has changed is read after each of the history's notifications.

const (
	// verifiedEvery is the pause after what has changed was read.
	verifiedEvery = 2 * time.Second
	// intactMessage never changes, so that an object is written once and not every day.
	intactMessage = "every object in the gitstore and every message is as it was stored; this is verified once a day"
)

// byTaskUID is the cache's index of the Checkpoints that were taken, by the UID of their task.
const byTaskUID = "takenOfTask"

// ofTaskUID is the index function of byTaskUID.
func ofTaskUID(object client.Object) []string {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || c.Status.Number == 0 {
		return nil
	}
	return []string{c.Status.TaskUID}
}

// setIntact sets the condition Intact as the history says. A checkpoint that was never verified
// has no such condition.
func setIntact(s *v1alpha1.CheckpointStatus, i history.Integrity, generation int64) {
	is := metav1.Condition{Type: v1alpha1.CheckpointIntact, ObservedGeneration: generation}
	switch {
	case i.Damage != "":
		is.Status, is.Reason = metav1.ConditionFalse, v1alpha1.ReasonCorrupted
		is.Message = plan.Damage(i)
	case !i.Verified.IsZero():
		is.Status, is.Reason, is.Message = metav1.ConditionTrue, v1alpha1.ReasonVerified, intactMessage
	default:
		return
	}
	meta.SetStatusCondition(&s.Conditions, is)
}

// tellIntact emits an Event if the Checkpoint was found damaged, or healed.
func (r *Reconciler) tellIntact(before, after *v1alpha1.Checkpoint) {
	was := meta.IsStatusConditionFalse(before.Status.Conditions, v1alpha1.CheckpointIntact)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.CheckpointIntact)
	switch {
	case is == nil:
	case is.Status == metav1.ConditionFalse && !was:
		r.Events.Eventf(after, nil, corev1.EventTypeWarning, v1alpha1.EventCheckpointCorrupted, "VerifyCheckpoint", "%s", is.Message)
	case is.Status == metav1.ConditionTrue && was:
		r.Events.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.EventCheckpointHealed, "VerifyCheckpoint",
			"checkpoint %d of task %s, which was damaged, is intact again", after.Status.Number, after.Spec.TaskRef.Name)
	}
}

// damageReport is what a pod has found of a checkpoint.
type damageReport struct {
	checkpoint int64
	message    string
	// at is when the pod ended; nil if that is not known.
	at *metav1.Time
}

// foundDamage returns what the pods of a task have found damaged: those of a rewind or a resume, and
// the last one that published.
func foundDamage(task *v1alpha1.Task) (found []damageReport) {
	for _, op := range []*v1alpha1.OperationStatus{task.Status.Rewind, task.Status.Resume} {
		if op != nil && op.Reason == v1alpha1.ReasonCheckpointCorrupted && op.ToCheckpoint > 0 {
			found = append(found, damageReport{op.ToCheckpoint, op.Message, op.EndTime})
		}
	}
	// The reason of one that has not failed is what the history has recorded.
	if p := task.Status.Publish; p != nil && p.Reason == v1alpha1.ReasonCheckpointCorrupted && p.FailingSince != nil && p.RetryTime != nil {
		found = append(found, damageReport{p.Checkpoint, p.Message, p.RetryTime})
	}
	return found
}

// foundByPush returns what the pods have found damaged that push the Checkpoint's branches.
func foundByPush(c *v1alpha1.Checkpoint) (found []damageReport) {
	for i := range c.Status.Branches {
		o := c.Status.Branches[i].Origin
		if o != nil && o.Reason == v1alpha1.ReasonCheckpointCorrupted && o.Failures > 0 && o.RetryTime != nil {
			found = append(found, damageReport{c.Status.Number, o.Message, o.RetryTime})
		}
	}
	return found
}

// reportedDamage returns what a pod has found that uses the checkpoint; nil if none has found damage, or
// if the condition already says so.
func (r *Reconciler) reportedDamage(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string) (*damageReport, error) {
	task := &v1alpha1.Task{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if string(task.UID) != taskUID || c.Status.Number == 0 || meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact) {
		return nil, nil
	}
	for _, found := range append(foundDamage(task), foundByPush(c)...) {
		if found.checkpoint == c.Status.Number {
			return &found, nil
		}
	}
	return nil, nil
}

// report records what a pod found, unless the checkpoint has been verified since, and returns the
// record with it.
func (r *Reconciler) report(ctx context.Context, c *v1alpha1.Checkpoint, row history.Checkpoint, found *damageReport) (history.Checkpoint, error) {
	if found == nil || row.Integrity.Damage != "" || found.at != nil && row.Integrity.Verified.After(found.at.Time) {
		return row, nil
	}
	key := history.Key{Namespace: c.Namespace, UID: row.TaskUID}
	if err := r.Store.ReportDamage(ctx, key, row.Number, found.message); err != nil {
		return row, err
	}
	return r.Store.Checkpoint(ctx, key, row.Number)
}

// fromVerified enqueues the Checkpoints whose condition Intact is not what the history says.
func (r *Reconciler) fromVerified(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changed := make(chan struct{}, 1)
		changed <- struct{}{} // notifications may have been missed before this process started
		notifications.Subscribe(func(history.Notification) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		go r.watchVerified(ctx, changed, queue)
		return nil
	})
}

// watchVerified reads what has changed after each notification.
func (r *Reconciler) watchVerified(ctx context.Context, changed chan struct{}, queue workqueue.TypedInterface[reconcile.Request]) {
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		err := r.Store.VerifiedTasks(ctx, since, func(tasks []history.VerifiedTask) error {
			for _, t := range tasks {
				r.queueVerified(ctx, t, queue)
				since = t.Changed
			}
			return ctx.Err()
		})
		if err != nil && ctx.Err() == nil {
			logf.FromContext(ctx).V(1).Info("could not ask which checkpoints are intact", "error", err.Error())
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		pause(ctx, verifiedEvery)
	}
}

// queueVerified enqueues the Checkpoints of a task whose condition Intact is not what the
// history says. That of damaged ones also names another checkpoint, so they are always read.
func (r *Reconciler) queueVerified(ctx context.Context, t history.VerifiedTask, queue workqueue.TypedInterface[reconcile.Request]) {
	list, err := r.list(ctx, t.Task.Namespace, client.MatchingFields{byTaskUID: t.Task.UID})
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not list the checkpoints that were verified")
		return
	}
	for i := range list {
		c := &list[i]
		damaged := slices.Contains(t.Damaged, c.Status.Number)
		intact := c.Status.Number <= t.Through || slices.Contains(t.Intact, c.Status.Number)
		if damaged || intact && !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointIntact) {
			r.doubt(recordKey(t.Task.UID, c.Status.Number))
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
}
