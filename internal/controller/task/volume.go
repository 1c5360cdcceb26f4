package task

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// growthRefusal is why the API server did not let a claim grow. It is tried again once the task's spec
// or the claim has changed.
type growthRefusal struct {
	message    string
	generation int64
	claim      types.UID
	version    string
}

// of returns the message if neither the task's spec nor the claim has changed since; "" otherwise.
func (g growthRefusal) of(task *v1alpha1.Task, claim *corev1.PersistentVolumeClaim) string {
	if claim == nil || g.generation != task.Generation || g.claim != claim.UID || g.version != claim.ResourceVersion {
		return ""
	}
	return g.message
}

// decide lets package plan decide, and reads what the decision turns out to depend on.
func (r *Reconciler) decide(ctx context.Context, o *plan.Observed, m *known) plan.Plan {
	p := plan.Decide(*o, r.Clock.Now())
	for range 2 { // the first answer may raise another question
		if p.Inspect == 0 && p.InspectClass == "" && p.InspectVolume == "" && !p.InspectDurable {
			break
		}
		r.inspect(ctx, o, p, m)
		p = plan.Decide(*o, r.Clock.Now())
	}
	return p
}

// inspect reads what a plan asks for.
func (r *Reconciler) inspect(ctx context.Context, o *plan.Observed, p plan.Plan, m *known) {
	if p.Inspect != 0 {
		o.Stored = r.stored(ctx, o.Task, p.Inspect)
	}
	if p.InspectClass != "" {
		o.StorageClass = r.storageClass(ctx, p.InspectClass, m)
	}
	if p.InspectVolume != "" {
		var err error
		if o.Volume, err = r.volume(ctx, p.InspectVolume, m); err == nil && !o.Elsewhere {
			o.Elsewhere, err = r.anyReachable(ctx)
		}
		if err != nil { // the task goes on as if every node could attach it
			logf.FromContext(ctx).Info("could not read which nodes can attach the task's volume", "volume", p.InspectVolume, "error", err.Error())
		}
	}
	if p.InspectDurable {
		o.Durable = r.durable(ctx, o.Task)
	}
}

// stored asks the history store what else it knows of a checkpoint.
func (r *Reconciler) stored(ctx context.Context, task *v1alpha1.Task, number int64) plan.Stored {
	found, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, number)
	var unpushed, damaged []int64
	if err == nil {
		unpushed, err = r.Store.UnpushedCheckpoints(ctx, string(task.UID))
	}
	if err == nil {
		damaged, err = r.Store.DamagedObjects(ctx, string(task.UID))
	}
	if err != nil {
		logf.FromContext(ctx).V(1).Info("could not find out whether the volume can be released", "checkpoint", number, "error", err.Error())
		return plan.Stored{}
	}
	return plan.Stored{Known: true, Checkpoint: found, Unpushed: unpushed, Damaged: damaged}
}

// classKept is how long it is not read again whether a storage class expands volumes: a task that works
// is reconciled often.
const classKept = time.Minute

// readClass is what a storage class was when it was read.
type readClass struct {
	name  string
	at    time.Time
	class plan.StorageClass
}

// storageClass reads whether a storage class expands volumes.
func (r *Reconciler) storageClass(ctx context.Context, name string, m *known) plan.StorageClass {
	now := r.Clock.Now()
	if m.class.name == name && now.Sub(m.class.at) < classKept {
		return m.class.class
	}
	class, found := &storagev1.StorageClass{}, plan.StorageClass{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, class); client.IgnoreNotFound(err) == nil {
		found = plan.StorageClass{Known: true, Expands: ptr.Deref(class.AllowVolumeExpansion, false)}
	} else { // the task goes on with the volume as it is
		logf.FromContext(ctx).Info("could not read the storage class of the volume, which is to grow", "class", name, "error", err.Error())
	}
	m.class = readClass{name: name, at: now, class: found}
	return found
}

// requestVerification has a checkpoint verified. The history store's notification says when that is
// done.
func (r *Reconciler) requestVerification(ctx context.Context, task *v1alpha1.Task, v plan.Verification) error {
	if err := r.Store.RequestVerification(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, v.Checkpoint, v.Since.Time); err != nil {
		return fmt.Errorf("request the verification of checkpoint %d: %w", v.Checkpoint, err)
	}
	return nil
}

// changeClaim deletes the claim that the status says was released, or has it grow.
func (r *Reconciler) changeClaim(ctx context.Context, task *v1alpha1.Task, p plan.Plan, m *known) error {
	if p.DeleteClaim != "" {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: resources.ClaimOf(task)}}
		err := r.Client.Delete(ctx, claim, client.Preconditions{UID: ptr.To(types.UID(p.DeleteClaim))})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the volume claim that was released: %w", err)
		}
	}
	if err := r.dropClaims(ctx, task.Namespace, p.DropClaims); err != nil {
		return err
	}
	if p.GrowClaim != nil {
		return r.growClaim(ctx, task, *p.GrowClaim, m)
	}
	return nil
}

// dropClaims deletes claims that the status says were left behind.
func (r *Reconciler) dropClaims(ctx context.Context, namespace string, claims []plan.ObjectRef) error {
	for _, ref := range claims {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ref.Name}}
		err := r.Client.Delete(ctx, claim, client.Preconditions{UID: ptr.To(types.UID(ref.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // another one has its name by now
			return fmt.Errorf("delete the volume claim %s that was left behind: %w", ref.Name, err)
		}
	}
	return nil
}

// growClaim has the task's claim ask for more. A refusal is remembered, and reported by the next
// decision.
func (r *Reconciler) growClaim(ctx context.Context, task *v1alpha1.Task, g plan.Growth, m *known) error {
	claim, err := read[corev1.PersistentVolumeClaim](ctx, r.Live, task.Namespace, resources.ClaimOf(task))
	if err != nil || claim == nil || string(claim.UID) != g.ClaimUID {
		return err // its own event follows
	}
	base := claim.DeepCopy()
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = g.Size
	err = r.Client.Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	m.growthRefused = growthRefusal{}
	if requeue.Refused(err) {
		m.growthRefused = growthRefusal{message: err.Error(), generation: task.Generation, claim: base.UID, version: base.ResourceVersion}
		m.growthAnswered = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("have the volume claim grow: %w", err)
	}
	return nil
}

// deleteTask deletes a finished Task, unless it has changed since that was decided.
func (r *Reconciler) deleteTask(ctx context.Context, task *v1alpha1.Task) error {
	unchanged := client.Preconditions{UID: &task.UID, ResourceVersion: &task.ResourceVersion}
	if err := client.IgnoreNotFound(r.Client.Delete(ctx, task, unchanged)); err != nil {
		return fmt.Errorf("delete the finished Task: %w", err)
	}
	return nil
}
