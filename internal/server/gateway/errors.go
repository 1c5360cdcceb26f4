package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// errTooLong is returned for a request that was not completed in time.
var errTooLong = errors.New("the request took longer than allowed and was stopped; try again")

// failure maps an error of the store or of authentication to a code. Errors that a daemon
// can do nothing about are logged, and returned without details.
func (g *Gateway) failure(ctx context.Context, err error) error {
	var gap *history.GapError
	switch {
	case errors.As(err, &gap):
		return gapFailure(gap)
	case errors.Is(err, history.ErrGap):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, history.ErrForeign):
		return connect.NewError(connect.CodeAlreadyExists, err)
	case errors.Is(err, history.ErrFenced):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, history.ErrLimitReached), errors.Is(err, history.ErrTooSoon):
		return connect.NewError(connect.CodeResourceExhausted, err)
	case errors.Is(err, history.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, podidentity.ErrPodGone):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, podidentity.ErrUnauthenticated):
		return connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, podidentity.ErrForbidden):
		return connect.NewError(connect.CodePermissionDenied, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, errTooLong)
	case ctx.Err() != nil:
		return connect.NewError(connect.CodeCanceled, ctx.Err())
	case gitstoreapi.NoRoom(err) != nil:
		refused := gitstoreapi.NoRoom(err)
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("the gitstore has no room for the checkpoints of a former task: %s: %s", refused.Reason, refused.Message))
	case errors.Is(err, history.ErrUnavailable):
		if g.outage.due(time.Now()) {
			g.log.Info("the history store cannot be reached; daemons buffer their records", "error", err.Error())
		}
		if errors.Is(err, history.ErrOldSchema) {
			return connect.NewError(connect.CodeUnavailable, history.ErrOldSchema)
		}
		return connect.NewError(connect.CodeUnavailable, history.ErrUnavailable)
	case errors.Is(err, podidentity.ErrUnavailable):
		g.log.Info("a caller could not be identified", "error", err.Error())
		return connect.NewError(connect.CodeUnavailable, podidentity.ErrUnavailable)
	default:
		id := identityOf(ctx)
		g.log.Error(err, "a daemon's request failed", "namespace", id.Namespace, "task", id.TaskName, "attempt", id.Attempt)
		return connect.NewError(connect.CodeInternal, errors.New("the server failed; its log says why"))
	}
}

// fenced returns the error for an attempt older than the newest one.
func fenced(id podidentity.Identity, newest int64) error {
	return fmt.Errorf("%w: attempt %d of the task %s/%s is over, since attempt %d has begun",
		history.ErrFenced, id.Attempt, id.Namespace, id.TaskName, newest)
}

// gapFailure tells the daemon the sequence to resend from.
func gapFailure(gap *history.GapError) error {
	failure := connect.NewError(connect.CodeFailedPrecondition, gap)
	if detail, err := connect.NewErrorDetail(&daemonv1.AppendResponse{LastSequence: gap.Last}); err == nil {
		failure.AddDetail(detail)
	}
	return failure
}

// quietTime is how long a logged outage is not logged again: all daemons keep retrying
// meanwhile.
const quietTime = 10 * time.Second

// throttle limits repeated log lines. The zero value is ready.
type throttle struct {
	mu   sync.Mutex
	last time.Time
}

// due reports whether it is time to log again.
func (t *throttle) due(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last) < quietTime {
		return false
	}
	t.last = now
	return true
}
