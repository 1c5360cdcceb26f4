package prepare

import (
	"context"
	"errors"
	"time"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// tellTimeout bounds the time that telling of a problem takes from solving it.
	tellTimeout = 5 * time.Second
	// maxProblem is how many bytes of an error the server is told.
	maxProblem = 900
)

// retry calls f until it succeeds, fails for good, or has failed for RetryFor. A source
// is waited for by another clock, and what fails after that begins anew. What has failed
// for a moment is told, so that a task that waits says for what.
func (p *preparer) retry(ctx context.Context, f func() error) error {
	begun := time.Now()
	failing := begun
	told := ""
	var wait backoff.Backoff
	for {
		err := f()
		if errors.Is(err, gatewayclient.ErrSourceAwaited) {
			failing = time.Now()
		}
		late := time.Since(failing) > p.cfg.RetryFor
		if err == nil || !again(err) || late || ctx.Err() != nil {
			if told != "" && err == nil {
				p.tell(ctx, nil)
			}
			return err
		}
		p.log.Info("trying again", "error", err.Error())
		// The words of an error may change from try to try; its reason says enough.
		if reason := judge(err).reason; time.Since(begun) >= p.cfg.TellAfter && reason != told {
			told = reason
			p.tell(ctx, &daemonv1.Problem{Reason: reason, Message: cut(p.text(err.Error()), maxProblem) + "; it is tried again"})
		}
		if wait.Wait(ctx) != nil {
			return err
		}
	}
}

// tell tells the server what keeps the workspace from being prepared; nil for
// nothing any more. Where the server cannot be told, work goes on without.
func (p *preparer) tell(ctx context.Context, problem *daemonv1.Problem) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := p.cfg.Server.Report(ctx, problem); err != nil {
		p.log.V(1).Info("the server could not be told of a problem", "problem", problem.GetReason(), "error", err.Error())
	}
}
