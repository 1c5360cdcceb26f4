package server

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
)

// objects reads Tasks and Checkpoints from the API server. It implements historyapi.Objects.
type objects struct{ reader client.Reader }

func newObjects(config *rest.Config) (objects, error) {
	scheme := runtime.NewScheme()
	if err := clewv1alpha1.AddToScheme(scheme); err != nil {
		return objects{}, err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return objects{}, fmt.Errorf("create a client for the Kubernetes API: %w", err)
	}
	return objects{reader}, nil
}

// Task implements historyapi.Objects.
func (o objects) Task(ctx context.Context, namespace, name string) (*clewv1alpha1.Task, error) {
	return readObject(ctx, o.reader, namespace, name, &clewv1alpha1.Task{})
}

// CheckpointObject implements historyapi.Objects.
func (o objects) CheckpointObject(ctx context.Context, namespace, name string) (*clewv1alpha1.Checkpoint, error) {
	return readObject(ctx, o.reader, namespace, name, &clewv1alpha1.Checkpoint{})
}

// readObject reads an object; nil if there is none.
func readObject[T client.Object](ctx context.Context, reader client.Reader, namespace, name string, into T) (T, error) {
	var none T
	err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, into)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read the %T %s/%s: %w", into, namespace, name, err)
	}
	return into, nil
}
