package podidentity

import (
	"errors"
	"fmt"
)

// The kinds of failure, to be tested with errors.Is. Their messages are sentences.
var (
	// ErrUnauthenticated means that the token is missing, malformed, expired, of another
	// audience, or bound to a pod that is gone. A fresh token may help.
	ErrUnauthenticated = errors.New("the token was not accepted")
	// ErrPodGone means that the token is bound to a pod whose object no longer exists, or
	// whose attempt is over. Retrying cannot help: whatever still runs of that pod should
	// exit. It is an ErrUnauthenticated too. It is never returned for a pod that exists,
	// however old its token is, nor while the API server cannot be reached.
	ErrPodGone = fmt.Errorf("%w: its pod is gone", ErrUnauthenticated)
	// ErrForbidden means that the token is valid, but its holder may not do this.
	ErrForbidden = errors.New("the caller is not allowed to do this")
	// ErrNotTask means that the token is valid, but does not belong to a task's pod. It is
	// an ErrForbidden too.
	ErrNotTask = fmt.Errorf("%w: the token does not belong to the pod of a task", ErrForbidden)
	// ErrUnavailable means that the API server could not be asked. The caller should try
	// again later.
	ErrUnavailable = errors.New("the Kubernetes API cannot be reached")
)

// failure is an error of one of the kinds above with a message of its own.
type failure struct {
	kind    error
	message string
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

// Unwrap returns the kind.
func (f *failure) Unwrap() error { return f.kind }

// fail returns an error of a kind with a formatted message.
func fail(kind error, format string, args ...any) error {
	return &failure{kind: kind, message: fmt.Sprintf(format, args...)}
}
