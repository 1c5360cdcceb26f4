package task

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/pages"
	"github.com/clew-dev/clew/internal/resources"
)

// podsByTask is the cache's index of pods by the UID of their task.
const podsByTask = "taskUID"

// view is the source that an observation reads from.
type view struct {
	reader client.Reader
	// cached is true if that is the cache, which has only parts of the objects.
	cached bool
	// page is how many pods are listed at a time; 0 for all.
	page int64
	// byTask selects the pods of the task with this UID.
	byTask func(uid string) client.ListOption
}

// cached returns the view of the cache, which may be behind and holds only objects with
// Clew's label.
func (r *Reconciler) cached() view {
	return view{reader: r.Client, cached: true, byTask: func(uid string) client.ListOption { return client.MatchingFields{podsByTask: uid} }}
}

// live returns the view of the API server.
func (r *Reconciler) live() view {
	return view{reader: r.Live, page: pages.Size, byTask: func(uid string) client.ListOption { return client.MatchingLabels{v1alpha1.LabelTaskUID: uid} }}
}

// pods lists the pods that the task controls: a label alone proves nothing.
func (v view) pods(ctx context.Context, task *v1alpha1.Task) (own []corev1.Pod, err error) {
	err = pages.Each(ctx, v.reader, v.page, func(list *corev1.PodList) {
		for i := range list.Items {
			if metav1.IsControlledBy(&list.Items[i], task) {
				own = append(own, list.Items[i])
			}
		}
	}, client.InNamespace(task.Namespace), v.byTask(string(task.UID)))
	return own, err
}

// template returns what is known of the task's template. The cache has no templates: there it is what was
// found out about the same generation before, and otherwise nothing.
func (v view) template(task *v1alpha1.Task, m *known) template {
	switch {
	case m.template.known && m.template.generation == task.Generation:
	case v.cached:
		return template{}
	default:
		m.template = template{known: true, generation: task.Generation}
		if err := resources.ValidateTemplate(task); err != nil {
			m.template.problem = err.Error()
		} else if digest, err := resources.PodDigest(task); err == nil {
			m.template.digest = digest
		}
	}
	return m.template
}

// pointer is the constraint of a pointer to T that is an API object.
type pointer[T any] interface {
	*T
	client.Object
}

// read returns an object; nil if it does not exist.
func read[T any, P pointer[T]](ctx context.Context, reader client.Reader, namespace, name string) (*T, error) {
	object := P(new(T))
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return (*T)(object), nil
}
