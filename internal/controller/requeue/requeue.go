// Package requeue decides what a controller does about an error: when it retries
// and whether it logs an error. It is the only place where the class of an error
// decides that.
package requeue

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// AfterConflict is the pause after a write conflict.
	AfterConflict = 50 * time.Millisecond
	// AfterOutage is the pause while the history store is down. When it is back,
	// everything is reconciled at once (see package historyhub).
	AfterOutage = 15 * time.Second
	// AfterRefusal is the pause after the API server refused something.
	AfterRefusal = 15 * time.Second
)

// Result turns the error of a reconciler into the result for controller-runtime.
func Result(log logr.Logger, err error) (reconcile.Result, error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled), apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		log.V(1).Info("write conflict; reconciling again", "error", err.Error())
		return reconcile.Result{RequeueAfter: AfterConflict}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{RequeueAfter: AfterRefusal}, nil
	case errors.Is(err, history.ErrUnavailable):
		log.Info("the history store cannot be reached; retrying", "error", err.Error())
		return reconcile.Result{RequeueAfter: AfterOutage}, nil
	}
	return reconcile.Result{}, err
}

// Refused reports whether the API server understood the request and rejected it: the same
// request succeeds only after somebody has changed something.
func Refused(err error) bool {
	return (apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) ||
		apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// Unanswered reports whether the API server may have carried out the request in spite of
// the error.
func Unanswered(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}
