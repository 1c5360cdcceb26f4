package gitstore

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/podidentity"
)

// Sources looks up the tasks that a task was started from, whose checkpoints it may read.
type Sources interface {
	// Sources returns the UIDs of the tasks that the given one was started from.
	Sources(ctx context.Context, namespace, name, uid string) ([]string, error)
}

// maxKnownSources bounds how many tasks' sources are cached.
const maxKnownSources = 10_000

// taskSources reads the sources from the Task objects and caches them. A source is
// resolved once, before the first pod is created, and never changes.
type taskSources struct {
	client dynamic.Interface

	mu    sync.Mutex
	known map[string][]string // by UID
}

// Sources implements Sources.
func (t *taskSources) Sources(ctx context.Context, namespace, name, uid string) ([]string, error) {
	t.mu.Lock()
	sources, ok := t.known[uid]
	t.mu.Unlock()
	if ok {
		return sources, nil
	}
	task, err := t.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return nil, fmt.Errorf("%w: read the Task %s/%s: %w", podidentity.ErrUnavailable, namespace, name, err)
	}
	if gone || string(task.GetUID()) != uid {
		// A deleted Task reads only its own refs, and its UID never comes back.
		t.remember(uid, nil)
		return nil, nil
	}
	source, _, err := unstructured.NestedString(task.Object, "status", "source", "taskUID")
	if err != nil {
		return nil, fmt.Errorf("%w: the source of the Task %s/%s: %w", podidentity.ErrUnavailable, namespace, name, err)
	}
	_, forked, _ := unstructured.NestedMap(task.Object, "spec", "startFrom")
	if source != "" {
		sources = []string{source}
	}
	if source != "" || !forked {
		t.remember(uid, sources)
	}
	return sources, nil
}

// remember caches a task's sources; a full cache is emptied first.
func (t *taskSources) remember(uid string, sources []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxKnownSources {
		t.known = map[string][]string{}
	}
	t.known[uid] = sources
}
