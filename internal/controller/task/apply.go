package task

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/podaccount"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// apply carries out a plan. Steps that cannot be undone follow the status write that
// announces them: a pod is created only after its attempt is stored, and deleted only after it is
// stored why. A manager that follows one that was killed then knows who has deleted it.
func (r *Reconciler) apply(ctx context.Context, task *v1alpha1.Task, p plan.Plan, m *known) error {
	if p.Farewell != nil {
		return r.finishDeletion(ctx, task, p, m)
	}
	if p.Verify != nil {
		if err := r.requestVerification(ctx, task, *p.Verify); err != nil {
			return err
		}
	}
	if p.Adopt != "" {
		return r.adopt(ctx, task, p.Adopt)
	}
	if p.CreateClaim {
		uid, err := r.createClaim(ctx, task, m)
		if err != nil {
			return err
		}
		if p.StartPod != nil && m.blocker != nil {
			return nil // no attempt is announced without a volume
		}
		if p.StartPod != nil {
			p.Status.ClaimUID = string(uid)
		}
	}
	unmade := r.makeObjects(ctx, task, &p)
	if p.Write {
		before, publisher := newestAttempt(task), newestPublisher(task)
		if err := r.writeStatus(ctx, task, p.Status, m); err != nil {
			return err
		}
		m.publisherRefused = "" // the status says so now
		if number := newestAttempt(task); number != before {
			m.reserved, m.attempts.Highest = number, max(number, m.attempts.Highest)
		}
		if number := newestPublisher(task); number != publisher {
			m.publisher = number
		}
	}
	for _, ref := range p.StopPods {
		if err := r.stopPod(ctx, task, ref); err != nil {
			return err
		}
	}
	if err := r.changeClaim(ctx, task, p, m); err != nil {
		return err
	}
	r.recallSpending(ctx, task, p.LostSpending)
	r.recallOfContract(ctx, task, p.LostOfContract)
	if p.StartPod != nil {
		r.keepBudgets(ctx, task, m) // before its daemon asks
		if err := r.startPod(ctx, task, *p.StartPod, m); err != nil {
			return err
		}
	}
	if p.StartPublisher != nil {
		if err := r.startPublisher(ctx, task, *p.StartPublisher, m); err != nil {
			return err
		}
	}
	r.emitEvents(task, p.Entries)
	r.record(ctx, task, m)
	if p.DeleteTask {
		return errors.Join(unmade, r.deleteTask(ctx, task))
	}
	return unmade
}

// makeObjects creates the Checkpoints and ConversationSnapshots of a plan, and completes the status
// with what has become of them. What cannot be made, such as while a webhook does not answer, is made
// again later, and must keep nothing from being stopped and written meanwhile.
func (r *Reconciler) makeObjects(ctx context.Context, task *v1alpha1.Task, p *plan.Plan) (unmade error) {
	if p.RequestStart != nil {
		if err := r.Client.Create(ctx, p.RequestStart); err != nil && !apierrors.IsAlreadyExists(err) {
			unmade = fmt.Errorf("create Checkpoint %s: %w", p.RequestStart.Name, err)
		}
	}
	if p.Checkpoints != nil {
		newest, through, err := r.makeCheckpoints(ctx, task, *p.Checkpoints)
		unmade = errors.Join(unmade, err)
		if p.Status.LatestCheckpoint != nil {
			p.Status.LatestCheckpoint.Name = newest
		}
		if through < p.Checkpoints.UpTo {
			p.Status.CheckpointObjectsThrough = &through
		}
	}
	if p.Snapshots != nil {
		// Objects that cannot be created now are created with the next write.
		newest, err := r.makeSnapshots(ctx, task, *p.Snapshots)
		if err != nil {
			logf.FromContext(ctx).Info("could not create or prune ConversationSnapshots", "error", err.Error())
		}
		p.Status.SnapshotCount = newest
	}
	return unmade
}

// newestAttempt returns the number of the newest attempt; 0 for none.
func newestAttempt(task *v1alpha1.Task) int64 {
	if n := len(task.Status.Attempts); n > 0 {
		return task.Status.Attempts[n-1].Number
	}
	return 0
}

// newestPublisher returns the number of the newest pod that publishes; 0 for none.
func newestPublisher(task *v1alpha1.Task) int64 {
	if p := task.Status.Publish; p != nil {
		return p.Number
	}
	return 0
}

// writeStatus writes the task's status.
func (r *Reconciler) writeStatus(ctx context.Context, task *v1alpha1.Task, status v1alpha1.TaskStatus, m *known) error {
	task.Status = status
	if err := r.Client.Status().Update(ctx, task); err != nil {
		return fmt.Errorf("write the task's status: %w", err)
	}
	m.lastWrite = r.Clock.Now()
	return nil
}

// stopPod deletes a pod, unless another one has its name by now.
func (r *Reconciler) stopPod(ctx context.Context, task *v1alpha1.Task, ref plan.PodRef) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: ref.Name}}
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(types.UID(ref.UID))})
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("stop pod %s: %w", ref.Name, err)
	}
	return nil
}

// createClaim creates the task's volume claim, and returns its UID. A refusal is remembered,
// and reported by the next decision.
func (r *Reconciler) createClaim(ctx context.Context, task *v1alpha1.Task, m *known) (types.UID, error) {
	claim := resources.NewClaim(task, r.Pods.AccessMode)
	err := r.Client.Create(ctx, claim)
	if requeue.Refused(err) {
		m.blocker = &plan.Blocker{Reason: v1alpha1.ReasonVolumeUnavailable, Message: "the volume claim was refused: " + err.Error()}
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("create the volume claim: %w", err)
	}
	m.blocker = nil
	return claim.UID, nil
}

// startPod creates the pod of a reserved attempt. A refusal is remembered, and reported by the
// next decision.
func (r *Reconciler) startPod(ctx context.Context, task *v1alpha1.Task, want plan.Pod, m *known) error {
	if err := podaccount.Ensure(ctx, r.Live, r.Client, task.Namespace); err != nil {
		return err
	}
	checkpoints, err := r.checkpoints(ctx, task)
	if err != nil {
		return err
	}
	request := resources.PodRequest{
		Task: task, Attempt: want.Attempt, HighestCheckpoint: highestCheckpoint(task, checkpoints), PrepareOnly: want.PrepareOnly,
		Operation: want.Operation, Source: want.Source, Prompt: want.Prompt, Answers: want.Answers, AvoidedNode: want.AvoidedNode,
		VolumeReleased: want.VolumeReleased, Budgets: want.Budgets,
	}
	if !want.PrepareOnly { // the agent's repository gets branches when the agent starts
		request.Branches, request.Checkout = plan.AgentBranches(checkpoints)
	}
	pod, err := resources.NewPod(request, r.Pods)
	if err != nil {
		return err
	}
	err = r.Client.Create(ctx, pod)
	switch {
	case err == nil:
		r.Metrics.attempt(task)
	case apierrors.IsAlreadyExists(err):
		// This process reserved the number and has created no pod for it, so whoever created
		// that pod, it is not the attempt's. If it carries the task's labels and owner, the next
		// decision deletes it.
		m.blocker = &plan.Blocker{Reason: v1alpha1.ReasonPodRefused, Message: fmt.Sprintf(
			"the pod %s exists and is not this task's: delete it, or give the Task another name", pod.Name)}
		return nil
	case requeue.Refused(err):
		m.blocker = &plan.Blocker{Reason: v1alpha1.ReasonPodRefused, Message: "the pod was refused: " + err.Error()}
		logf.FromContext(ctx).Info("the API server refused the pod", "pod", pod.Name, "error", err.Error())
		return nil
	default:
		if requeue.Unanswered(err) {
			// The pod may have been created all the same. If it is not seen next time, it
			// may have existed for a moment: the number must not be used again.
			m.reserved = 0
		}
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	m.podAttempt, m.podUID, m.blocker = want.Attempt, pod.UID, nil
	return nil
}

// finishDeletion records the remaining entries of a task that is being deleted, and removes
// its finalizer.
func (r *Reconciler) finishDeletion(ctx context.Context, task *v1alpha1.Task, p plan.Plan, m *known) error {
	entries := append(slices.Clone(plan.Unrecorded(&task.Status, m.recorded)), *p.Farewell)
	if err := r.recordEntries(ctx, task, entries, m); err != nil {
		return errors.Join(r.reportRecordDelay(ctx, task, m), err)
	}
	// Entries that the store has lost and the status still has would be lost with the Task.
	if err := r.restore(ctx, task, m); err != nil {
		return err
	}
	if err := r.passOnBudgets(ctx, task); err != nil {
		return err
	}
	if err := r.releaseClaim(ctx, task); err != nil {
		return err
	}
	if err := r.deleteChildren(ctx, task, p.DeleteChildren); err != nil {
		return err
	}
	base := task.DeepCopy()
	task.Finalizers = slices.DeleteFunc(task.Finalizers, func(f string) bool { return f == v1alpha1.TaskFinalizer })
	if err := r.Client.Patch(ctx, task, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	r.emitEvents(task, []v1alpha1.HistoryEntry{*p.Farewell})
	return nil
}

// reportRecordDelay writes that the deletion waits for the history store, if the status
// does not say so yet.
func (r *Reconciler) reportRecordDelay(ctx context.Context, task *v1alpha1.Task, m *known) error {
	observed, err := r.observe(ctx, task, m, r.live())
	if err != nil {
		return err
	}
	if p := plan.Decide(observed, r.Clock.Now()); p.Write {
		return r.writeStatus(ctx, task, p.Status, m)
	}
	return nil
}

// releaseClaim deletes or keeps the claim according to the current workspace.retention, and deletes those
// that were left behind.
func (r *Reconciler) releaseClaim(ctx context.Context, task *v1alpha1.Task) error {
	var former []plan.ObjectRef
	for _, f := range task.Status.FormerClaims {
		former = append(former, plan.ObjectRef{Name: f.Name, UID: f.UID})
	}
	if err := r.dropClaims(ctx, task.Namespace, former); err != nil {
		return err
	}
	claim, err := read[corev1.PersistentVolumeClaim](ctx, r.Live, task.Namespace, resources.ClaimOf(task))
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
