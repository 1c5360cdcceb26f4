// Package podaccount makes the service account that the pods of tasks run as.
package podaccount

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/internal/resources"
)

// Ensure creates the account of a namespace's task pods if it does not exist. The reader reads
// from the API server.
func Ensure(ctx context.Context, live client.Reader, writer client.Writer, namespace string) error {
	err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: resources.ServiceAccount}, &corev1.ServiceAccount{})
	if apierrors.IsNotFound(err) {
		err = writer.Create(ctx, resources.NewServiceAccount(namespace))
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the service account %s: %w", resources.ServiceAccount, err)
	}
	return nil
}
