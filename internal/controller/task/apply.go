package task

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// apply carries a plan out. What has no way back comes after the status that
// tells of it: a pod is made only when its attempt is on record.
func (r *Reconciler) apply(ctx context.Context, task *v1alpha1.Task, p plan.Plan, m *known) error {
	if p.Farewell != nil {
		return r.sayFarewell(ctx, task, p, m)
	}
	for _, ref := range p.StopPods {
		if err := r.stopPod(ctx, task, ref); err != nil {
			return err
		}
	}
	if p.CreateClaim {
		uid, blocker, err := r.createClaim(ctx, task)
		if err != nil {
			return err
		}
		if blocker != nil {
			return r.reportBlocker(ctx, task, blocker, m)
		}
		p.Status.ClaimUID = string(uid)
	}
	if p.Checkpoints != nil {
		newest, through, err := r.makeCheckpoints(ctx, task, *p.Checkpoints)
		if err != nil {
			return err
		}
		if p.Status.LatestCheckpoint != nil {
			p.Status.LatestCheckpoint.Name = newest
		}
		if through < p.Checkpoints.UpTo {
			p.Status.CheckpointObjectsThrough = &through
		}
	}
	if p.Snapshots != nil {
		// What cannot be made now is made with the next write.
		newest, err := r.makeSnapshots(ctx, task, *p.Snapshots)
		if err != nil {
			logf.FromContext(ctx).Info("could not make or prune ConversationSnapshots", "error", err.Error())
		}
		p.Status.SnapshotCount = newest
	}
	if p.Write {
		before := newestAttempt(task)
		if err := r.writeStatus(ctx, task, p.Status, m); err != nil {
			return err
		}
		if number := newestAttempt(task); number != before {
			m.reserved, m.attempts.Highest = number, max(number, m.attempts.Highest)
		}
	}
	if p.StartPod != nil {
		if err := r.startPod(ctx, task, *p.StartPod, m); err != nil {
			return err
		}
	}
	r.tell(task, p.Entries)
	r.record(ctx, task, m)
	return nil
}

func newestAttempt(task *v1alpha1.Task) int64 {
	if n := len(task.Status.Attempts); n > 0 {
		return task.Status.Attempts[n-1].Number
	}
	return 0
}

func (r *Reconciler) writeStatus(ctx context.Context, task *v1alpha1.Task, status v1alpha1.TaskStatus, m *known) error {
	task.Status = status
	if err := r.Client.Status().Update(ctx, task); err != nil {
		return fmt.Errorf("write the task's status: %w", err)
	}
	m.lastWrite = r.Clock.Now()
	return nil
}

func (r *Reconciler) stopPod(ctx context.Context, task *v1alpha1.Task, ref plan.PodRef) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: ref.Name}}
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(types.UID(ref.UID))})
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("stop pod %s: %w", ref.Name, err)
	}
	return nil
}

// createClaim makes the task's volume claim. A refusal is no error.
func (r *Reconciler) createClaim(ctx context.Context, task *v1alpha1.Task) (types.UID, *plan.Blocker, error) {
	claim := resources.NewClaim(task, r.Pods.AccessMode)
	err := r.Client.Create(ctx, claim)
	if refused(err) {
		return "", &plan.Blocker{Reason: v1alpha1.ReasonVolumeUnavailable, Message: "the volume claim was refused: " + err.Error()}, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("create the volume claim: %w", err)
	}
	return claim.UID, nil, nil
}

// reportBlocker writes why nothing could be started, when that is news.
func (r *Reconciler) reportBlocker(ctx context.Context, task *v1alpha1.Task, h *plan.Blocker, m *known) error {
	m.blocker = h
	status := task.Status.DeepCopy()
	status.ObservedGeneration = task.Generation
	changed := meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionUnknown, Reason: h.Reason, Message: h.Message,
		ObservedGeneration: task.Generation,
	})
	if !changed {
		return nil
	}
	return r.writeStatus(ctx, task, *status, m)
}

// startPod makes the pod of a reserved attempt. A refusal is remembered and
// shows in the next status.
func (r *Reconciler) startPod(ctx context.Context, task *v1alpha1.Task, want plan.Pod, m *known) error {
	if err := r.ensureServiceAccount(ctx, task.Namespace); err != nil {
		return err
	}
	highest, err := r.highestCheckpoint(ctx, task)
	if err != nil {
		return err
	}
	pod, err := resources.NewPod(resources.PodRequest{
		Task: task, Attempt: want.Attempt, HighestCheckpoint: highest, PrepareOnly: want.PrepareOnly,
		Operation: want.Operation, Source: want.Source, Prompt: want.Prompt,
	}, r.Pods)
	if err != nil {
		return err
	}
	err = r.Client.Create(ctx, pod)
	switch {
	case err == nil:
		r.Metrics.attempt(task)
	case apierrors.IsAlreadyExists(err):
		return r.reportIntruder(ctx, task, pod, m)
	case refused(err):
		m.blocker = &plan.Blocker{Reason: v1alpha1.ReasonPodRefused, Message: "the pod was refused: " + err.Error()}
		logf.FromContext(ctx).Info("the API server refused the pod", "pod", pod.Name, "error", err.Error())
		return r.reportBlocker(ctx, task, m.blocker, m)
	default:
		if unanswered(err) {
			// The pod may have been made all the same. If it is not seen next time,
			// it may be that it came and went: the number must not be used again.
			m.reserved = 0
		}
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	m.podAttempt, m.podUID, m.blocker = want.Attempt, pod.UID, nil
	return nil
}

// reportIntruder says that a pod by the name of the attempt's own is in the way.
// This process reserved the number and has made no pod for it, so whoever made
// that one, it is not the attempt's. If it carries the task's labels and owner,
// the next decision removes it.
func (r *Reconciler) reportIntruder(ctx context.Context, task *v1alpha1.Task, pod *corev1.Pod, m *known) error {
	return r.reportBlocker(ctx, task, &plan.Blocker{Reason: v1alpha1.ReasonPodRefused, Message: fmt.Sprintf(
		"there is a pod %s that is not this task's: delete it, or give the Task another name", pod.Name)}, m)
}

// ensureServiceAccount makes the account of a namespace's task pods, once.
func (r *Reconciler) ensureServiceAccount(ctx context.Context, namespace string) error {
	found, err := read[corev1.ServiceAccount](ctx, r.Live, namespace, resources.ServiceAccount)
	if err != nil || found != nil {
		return err
	}
	err = r.Client.Create(ctx, resources.NewServiceAccount(namespace))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the service account %s: %w", resources.ServiceAccount, err)
	}
	return nil
}

// refused says that the API server understood the request and will not have
// it: trying the very same again helps only after somebody acted.
func refused(err error) bool {
	return (apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) ||
		apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// unanswered says that the API server may have carried the request out.
func unanswered(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// sayFarewell records what is left of a task that is being deleted, and lets it go.
func (r *Reconciler) sayFarewell(ctx context.Context, task *v1alpha1.Task, p plan.Plan, m *known) error {
	entries := append(slices.Clone(plan.Unrecorded(&task.Status, m.recorded)), *p.Farewell)
	if err := r.recordEntries(ctx, task, entries, m); err != nil {
		return errors.Join(r.reportDelay(ctx, task, m), err)
	}
	// What the store has lost, and the status still has, goes with the Task.
	if err := r.restore(ctx, task, m); err != nil {
		return err
	}
	if err := r.settleClaim(ctx, task); err != nil {
		return err
	}
	base := task.DeepCopy()
	task.Finalizers = slices.DeleteFunc(task.Finalizers, func(f string) bool { return f == v1alpha1.TaskFinalizer })
	if err := r.Client.Patch(ctx, task, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	r.tell(task, []v1alpha1.HistoryEntry{*p.Farewell})
	return nil
}

// reportDelay writes that the deletion waits for the history store, when that is news.
func (r *Reconciler) reportDelay(ctx context.Context, task *v1alpha1.Task, m *known) error {
	observed, err := r.observe(ctx, task, m, r.live())
	if err != nil {
		return err
	}
	if p := plan.Decide(observed, r.Clock.Now()); p.Write {
		return r.writeStatus(ctx, task, p.Status, m)
	}
	return nil
}

// settleClaim makes the claim go, or stay, as workspace.retention says by now.
func (r *Reconciler) settleClaim(ctx context.Context, task *v1alpha1.Task) error {
	claim, err := read[corev1.PersistentVolumeClaim](ctx, r.Live, task.Namespace, resources.ClaimName(task.Name))
	if err != nil || claim == nil || !resources.IsOf(claim, task) {
		return err
	}
	owned := metav1.IsControlledBy(claim, task)
	retain := task.Spec.Workspace.Retention == v1alpha1.WorkspaceRetain
	switch {
	case retain && owned:
		base := claim.DeepCopy()
		claim.OwnerReferences = slices.DeleteFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == task.UID })
		err = r.Client.Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	case !retain && !owned:
		err = client.IgnoreNotFound(r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}))
	}
	return err
}
