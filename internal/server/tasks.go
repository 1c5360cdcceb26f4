package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

// liveTasks reads Task objects from the API server. Create one with newLiveTasks.
type liveTasks struct {
	client metadata.Interface
	scans  *uidScans
}

func newLiveTasks(client metadata.Interface) liveTasks {
	return liveTasks{client, &uidScans{client: client}}
}

// isGone reports whether the API server says that the Task of that name does not exist.
// The API server also answers 404 for a kind or version that it does not serve, as while
// the definition of Tasks is being replaced: that says nothing about a Task, whose code
// and history must not be deleted because of it.
func isGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	// If an answer is not a Status, the client makes one from its own request.
	if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Group == clewv1alpha1.GroupVersion.Group && details.Kind == "tasks" && details.Name == name
}

// TaskUID implements historyapi.Tasks.
func (l liveTasks) TaskUID(ctx context.Context, namespace, name string) (string, error) {
	task, err := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case isGone(err, name):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the Task %s/%s: %w", namespace, name, err)
	}
	return string(task.UID), nil
}

// HasUID implements historyapi.Tasks. The API server cannot find an object by its UID, so
// all Tasks are listed.
func (l liveTasks) HasUID(ctx context.Context, uid string) (bool, error) {
	return l.scans.has(ctx, uid)
}

// liveUIDs returns the UIDs of all Tasks of the cluster.
func (l liveTasks) liveUIDs(ctx context.Context) (uids []string, err error) {
	err = eachTask(ctx, l.client, func(uid string) { uids = append(uids, uid) })
	return uids, err
}

// adopters finds Tasks that continue a history, and Tasks and Forks that may yet adopt one.
// Create one with newAdopters.
type adopters struct {
	client dynamic.Interface
	forks  *awaitingForks
}

func newAdopters(client dynamic.Interface) adopters {
	return adopters{client, &awaitingForks{client: client, lists: map[string]forkList{}}}
}

// has reports whether the Task of a name exists and has not decided yet what it adopts, or a Fork does
// that is yet to make one which adopts.
func (a adopters) has(ctx context.Context, namespace, name string) (bool, error) {
	task, err := a.task(ctx, namespace, name)
	if err != nil || task {
		return task, err
	}
	return a.forks.has(ctx, namespace, name)
}

// continues reports whether the Task of a name has one of the UIDs of a history, or says that it has
// adopted the history of one. It returns as well the newest task of which it says that; "" for none.
func (a adopters) continues(ctx context.Context, namespace, name string, uids []string) (found bool, adopted string, err error) {
	task, err := a.get(ctx, namespace, name)
	if err != nil || task == nil {
		return false, "", err
	}
	formers := task.Status.Adoption.FormerUIDs()
	if len(formers) > 0 {
		adopted = formers[0]
	}
	of := func(uid string) bool { return slices.Contains(uids, uid) }
	return of(string(task.UID)) || slices.ContainsFunc(formers, of), adopted, nil
}

// task reports whether the Task of a name has not decided yet what it adopts.
func (a adopters) task(ctx context.Context, namespace, name string) (bool, error) {
	task, err := a.get(ctx, namespace, name)
	return task != nil && plan.UndecidedAdoption(task), err
}

// get reads the Task of a name; nil if there is none.
func (a adopters) get(ctx context.Context, namespace, name string) (*clewv1alpha1.Task, error) {
	object, err := a.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if isGone(err, name) {
		return nil, nil
	}
	task := &clewv1alpha1.Task{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, task)
	}
	if err != nil {
		return nil, fmt.Errorf("read the Task %s/%s: %w", namespace, name, err)
	}
	return task, nil
}

// codeStore compares, verifies and deletes code in the gitstore.
type codeStore struct{ client gitstoreapi.Client }

// errNoGitstore is the refusal of everything for which a gitstore is needed.
func errNoGitstore() error {
	return gitstoreapi.New(gitstoreapi.Unavailable, "this server has no gitstore URL (--gitstore-url)")
}

// Diff implements historyapi.Code.
func (c codeStore) Diff(ctx context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error) {
	if c.client.BaseURL == "" {
		return gitstoreapi.Diff{}, errNoGitstore()
	}
	return c.client.Diff(ctx, namespace, uid, q)
}

// Verify implements verification.Code.
func (c codeStore) Verify(ctx context.Context, namespace, uid string, checkpoint int64, since time.Time) (gitstoreapi.Verification, error) {
	if c.client.BaseURL == "" {
		return gitstoreapi.Verification{}, errNoGitstore()
	}
	return c.client.Verify(ctx, namespaced.Name(namespace), uid, checkpoint, since)
}

// Checkpoints implements verification.Inventory.
func (c codeStore) Checkpoints(ctx context.Context, namespace, uid string) ([]int64, error) {
	if c.client.BaseURL == "" {
		return nil, errNoGitstore()
	}
	return c.client.Checkpoints(ctx, namespaced.Name(namespace), uid)
}

// AdoptTask implements gateway.Code.
func (c codeStore) AdoptTask(ctx context.Context, a gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, error) {
	if c.client.BaseURL == "" {
		return gitstoreapi.Adoption{}, errNoGitstore()
	}
	a.Namespace = namespaced.Name(a.Namespace)
	return c.client.AdoptTask(ctx, a)
}

// LackingAdoptions implements gateway.Code.
func (c codeStore) LackingAdoptions(ctx context.Context, known []gitstoreapi.TaskAdoption) ([]gitstoreapi.TaskAdoption, error) {
	if c.client.BaseURL == "" {
		return nil, errNoGitstore()
	}
	named := slices.Clone(known)
	for i := range named {
		named[i].Namespace = namespaced.Name(named[i].Namespace)
	}
	return c.client.LackingAdoptions(ctx, named)
}

// TellNamespaces implements namespaced.Code.
func (c codeStore) TellNamespaces(ctx context.Context, namespaces []history.Namespace) ([]string, error) {
	told := make([]gitstoreapi.Namespace, 0, len(namespaces))
	for _, namespace := range namespaces {
		told = append(told, gitstoreapi.Namespace(namespace))
	}
	return c.client.TellNamespaces(ctx, told)
}

// DeleteTask implements historyapi.Code.
func (c codeStore) DeleteTask(ctx context.Context, namespace, uid, name string, formers []string) (historyapi.CodeDeletion, error) {
	if c.client.BaseURL == "" {
		return historyapi.CodeDeletion{}, errNoGitstore()
	}
	deletion, err := c.client.DeleteTask(ctx, namespace, uid, name, formers)
	return historyapi.CodeDeletion{Refs: deletion.Refs, Repositories: deletion.Repositories, Bytes: deletion.Bytes}, err
}
