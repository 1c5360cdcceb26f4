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

// Sources knows from which tasks one was started, whose checkpoints it may read.
type Sources interface {
	Sources(ctx context.Context, namespace, name, uid string) ([]string, error)
}

// maxKnownSources bounds what is remembered.
const maxKnownSources = 10_000

// taskSources reads the sources from the Tasks. A source is resolved once, before
// the first pod is made, and never changes.
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
		// A task that goes reads what is its own, and does not come back.
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

func (t *taskSources) remember(uid string, sources []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxKnownSources {
		t.known = map[string][]string{}
	}
	t.known[uid] = sources
}
