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
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/podidentity"
)

// Reach is what the pod of a task may reach in the gitstore beside the task's own refs.
type Reach struct {
	// Repository is the name of the only repository that the task works with: that of its
	// origin. The commits on which the tasks of a repository are based are shared among them, so
	// whoever reached another one could read what its origin shows to other credentials only.
	Repository string
	// Sources are the UIDs of the tasks that the task was started from, whose refs it may read.
	Sources []string
	// Continues is set if the task continues a history that has checkpoints. Once the gitstore has one of
	// them, it contains all that the task needs, and the sources are not to be read: those of the former
	// task need not be what the spec names, and nobody has judged whether whoever applied the Task may
	// read them.
	Continues bool
}

// Tasks looks up what the pods of tasks may reach.
type Tasks interface {
	Reach(ctx context.Context, pod podidentity.Identity) (Reach, error)
}

// maxKnownReaches bounds how many pods' reaches are cached.
const maxKnownReaches = 10_000

// LiveTasks reads the reach of a pod from its Task and caches it. While a pod runs it does not
// change: a source is resolved once, before the first pod is created, and the origin may be
// corrected only while none runs. Make one with NewLiveTasks.
type LiveTasks struct {
	client dynamic.Interface

	mu    sync.Mutex
	known map[string]Reach // by the UID of the pod
}

// NewLiveTasks returns a LiveTasks. The client's account must be allowed to get tasks.
func NewLiveTasks(client dynamic.Interface) *LiveTasks { return &LiveTasks{client: client} }

// Reach implements Tasks.
func (t *LiveTasks) Reach(ctx context.Context, pod podidentity.Identity) (Reach, error) {
	t.mu.Lock()
	reach, ok := t.known[pod.PodUID]
	t.mu.Unlock()
	if ok {
		return reach, reach.check(pod)
	}
	task, err := t.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(pod.Namespace).Get(ctx, pod.TaskName, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return reach, fmt.Errorf("%w: read the Task %s/%s: %w", podidentity.ErrUnavailable, pod.Namespace, pod.TaskName, err)
	}
	if gone || string(task.GetUID()) != pod.TaskUID {
		t.remember(pod.PodUID, Reach{}) // a deleted Task reaches nothing, and its UID never comes back
		return Reach{}, Reach{}.check(pod)
	}
	source, _, err := unstructured.NestedString(task.Object, "status", "source", "taskUID")
	if err != nil {
		return reach, fmt.Errorf("%w: the source of the Task %s/%s: %w", podidentity.ErrUnavailable, pod.Namespace, pod.TaskName, err)
	}
	origin, _, err := unstructured.NestedString(task.Object, "spec", "repository", "url")
	if err != nil {
		return reach, fmt.Errorf("%w: the repository of the Task %s/%s: %w", podidentity.ErrUnavailable, pod.Namespace, pod.TaskName, err)
	}
	reach.Repository = daemonapi.RepositoryKey(origin)
	if source != "" {
		reach.Sources, reach.Continues = []string{source}, startedBefore(task)
	}
	if _, forked, _ := unstructured.NestedMap(task.Object, "spec", "startFrom"); source != "" || !forked {
		t.remember(pod.PodUID, reach)
	}
	return reach, nil
}

// check fails if this is the reach of a Task that was deleted.
func (r Reach) check(pod podidentity.Identity) error {
	if r.Repository != "" {
		return nil
	}
	return fmt.Errorf("%w: the Task %s with UID %s", errTaskGone, pod.TaskName, pod.TaskUID)
}

// startedBefore reports whether a task continues a history that has checkpoints, in the gitstore or not.
func startedBefore(task *unstructured.Unstructured) bool {
	former, _, _ := unstructured.NestedString(task.Object, "status", "adoption", "taskUID")
	_, checkpoint, _ := unstructured.NestedMap(task.Object, "status", "latestCheckpoint")
	return former != "" && checkpoint
}

// remember caches a pod's reach; a full cache is emptied first.
func (t *LiveTasks) remember(podUID string, reach Reach) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxKnownReaches {
		t.known = map[string]Reach{}
	}
	t.known[podUID] = reach
}
