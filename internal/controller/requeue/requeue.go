// Package requeue says what a controller does about an error: when it tries
// again and whether it is worth an error in the log. It is the one place where
// the class of an error decides that.
package requeue

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// AfterConflict is the pause after somebody else wrote first.
	AfterConflict = 50 * time.Millisecond
	// AfterOutage is the pause while the history store is down. When it is
	// back, everything is looked at at once (see package historyhub).
	AfterOutage = 15 * time.Second
	// AfterRefusal is the pause after the API server refused something.
	AfterRefusal = 15 * time.Second
)

// Result turns an error of a reconciler into what controller-runtime is told.
func Result(log logr.Logger, err error) (reconcile.Result, error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled), apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		log.V(1).Info("somebody else wrote first; looking again", "error", err.Error())
		return reconcile.Result{RequeueAfter: AfterConflict}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{RequeueAfter: AfterRefusal}, nil
	case errors.Is(err, history.ErrUnavailable):
		log.Info("the history store cannot be reached; trying again", "error", err.Error())
		return reconcile.Result{RequeueAfter: AfterOutage}, nil
	}
	return reconcile.Result{}, err
}
