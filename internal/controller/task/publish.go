package task

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/podaccount"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// partition separates the pods of attempts from those that publish.
func partition(all []corev1.Pod) (attempts, publishers []corev1.Pod) {
	for _, pod := range all {
		if pod.Labels[v1alpha1.LabelPublication] != "" {
			publishers = append(publishers, pod)
		} else {
			attempts = append(attempts, pod)
		}
	}
	return attempts, publishers
}

// publication asks the history store what the task has pushed to the ref that spec.publish names.
func (r *Reconciler) publication(ctx context.Context, task *v1alpha1.Task) plan.Publication {
	if task.Spec.Publish == nil {
		return plan.Publication{}
	}
	key := history.Key{Namespace: task.Namespace, UID: string(task.UID)}
	found, err := r.Store.Publication(ctx, key, resources.PublishRef(task.Spec.Publish.Branch))
	switch {
	case err == nil:
		return plan.Publication{Known: true, Found: &found}
	case errors.Is(err, history.ErrNotFound):
		return plan.Publication{Known: true}
	}
	logf.FromContext(ctx).V(1).Info("could not find out what the task has published", "error", err.Error())
	return plan.Publication{}
}

// checked asks the history store whether a checkpoint that is about to be published is damaged. Its
// messages are not published.
func (r *Reconciler) checked(ctx context.Context, task *v1alpha1.Task, known plan.Publication, checkpoint int64) plan.Publication {
	found, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, checkpoint)
	switch {
	case errors.Is(err, history.ErrNotFound): // the gitstore may have what the store has lost
	case err != nil:
		logf.FromContext(ctx).V(1).Info("could not find out whether the checkpoint is damaged", "checkpoint", checkpoint, "error", err.Error())
		return plan.Publication{}
	case found.Integrity.Damage != "" && !found.Integrity.MessagesOnly:
		known.Damaged = &found
	}
	return known
}

// startPublisher creates the pod that the status names. A refusal is remembered, and reported
// by the next decision.
func (r *Reconciler) startPublisher(ctx context.Context, task *v1alpha1.Task, want plan.Publisher, m *known) error {
	if err := podaccount.Ensure(ctx, r.Live, r.Client, task.Namespace); err != nil {
		return err
	}
	pod, err := resources.NewPublisher(resources.PublisherRequest{Task: task, Number: want.Number, Checkpoint: want.Checkpoint, Replaces: want.Replaces, Onto: want.Onto, Earlier: want.Earlier, Tries: want.Tries, Announced: want.Announced, Unreported: want.Unreported}, r.Pods)
	if err != nil {
		return err
	}
	err = r.Client.Create(ctx, pod)
	if requeue.Refused(err) {
		m.publisherRefused = "the pod that publishes was refused: " + err.Error()
	}
	if err == nil || apierrors.IsAlreadyExists(err) || requeue.Unanswered(err) {
		m.publisher = 0 // if it is not seen next time, it may have existed for a moment
	}
	if err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return nil
}
