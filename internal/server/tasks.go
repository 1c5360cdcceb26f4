package server

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

// liveTasks looks whether a Task is there. Make one with newLiveTasks.
type liveTasks struct {
	client metadata.Interface
	looks  *looks
}

func newLiveTasks(client metadata.Interface) liveTasks {
	return liveTasks{client, &looks{client: client}}
}

// isGone tells whether the API server says that the Task of that name is not
// there. It also answers 404 for a kind or a version that it does not serve, as
// while the definition of Tasks is being replaced: that says nothing of a Task,
// whose code and history must not be deleted for it.
func isGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	// The client makes a Status, of what it asked for, of an answer that is none.
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

// HasUID implements historyapi.Tasks. Nothing in the API server finds an object by its
// UID, so that all of them are looked at.
func (l liveTasks) HasUID(ctx context.Context, uid string) (bool, error) {
	return l.looks.has(ctx, uid)
}

// codeStore deletes code in the gitstore.
type codeStore struct{ client gitstoreapi.Client }

// DeleteTask implements historyapi.Code.
func (c codeStore) DeleteTask(ctx context.Context, namespace, uid, name string) (historyapi.CodeDeletion, error) {
	if c.client.BaseURL == "" {
		return historyapi.CodeDeletion{}, gitstoreapi.New(gitstoreapi.Unavailable, "this server was not told where the gitstore is (--gitstore-url)")
	}
	deletion, err := c.client.DeleteTask(ctx, namespace, uid, name)
	return historyapi.CodeDeletion{Refs: deletion.Refs, Repositories: deletion.Repositories, Bytes: deletion.Bytes}, err
}
