package podidentity

import (
	"errors"
	"fmt"
)

// The kinds of failure; test with errors.Is. Their messages are sentences.
var (
	// ErrUnauthenticated: the token is missing, malformed, expired, of another
	// audience, or bound to a pod that is gone. A fresh token may help.
	ErrUnauthenticated = errors.New("the token was not accepted")
	// ErrPodGone: the token is bound to a pod whose object does not exist any
	// more, or whose attempt is over. Nothing helps: what still runs of that pod
	// should end. It is an ErrUnauthenticated too. A pod that exists never gets
	// it, however old its token is, nor does anybody while the API server cannot
	// be asked.
	ErrPodGone = fmt.Errorf("%w: its pod is gone", ErrUnauthenticated)
	// ErrForbidden: the token is good, but its holder may not do this.
	ErrForbidden = errors.New("the caller is not allowed to do this")
	// ErrNotTask: the token is good, but belongs to no task's pod. It is an
	// ErrForbidden too.
	ErrNotTask = fmt.Errorf("%w: the token does not belong to the pod of a task", ErrForbidden)
	// ErrUnavailable: the API server could not be asked. Trying again later is
	// right.
	ErrUnavailable = errors.New("the Kubernetes API could not be asked")
)

// failure is an error of one of the kinds above that reads as its own
// sentence.
type failure struct {
	kind    error
	message string
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.kind }

func fail(kind error, format string, args ...any) error {
	return &failure{kind: kind, message: fmt.Sprintf(format, args...)}
}
