package server

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/podidentity"
)

// liveTasks looks whether the Task that a pod names is there. A pod's labels
// are the word of whoever made the pod; this keeps it from naming the UID of a
// task of another namespace.
type liveTasks struct{ client metadata.Interface }

// CheckTask implements podidentity.TaskChecker.
func (l liveTasks) CheckTask(ctx context.Context, id podidentity.Identity) error {
	tasks := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(id.Namespace)
	task, err := tasks.Get(ctx, id.TaskName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(task.UID) != id.TaskUID:
		return fmt.Errorf("%w: the pod %s/%s names a Task %q with UID %s, which does not exist",
			podidentity.ErrForbidden, id.Namespace, id.PodName, id.TaskName, id.TaskUID)
	case err != nil:
		return fmt.Errorf("%w: read the Task %s/%s: %w", podidentity.ErrUnavailable, id.Namespace, id.TaskName, err)
	}
	return nil
}
