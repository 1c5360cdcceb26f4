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
	// reportTimeout bounds how long reporting a problem may delay the work.
	reportTimeout = 5 * time.Second
	// maxProblem bounds an error reported to the server, in bytes.
	maxProblem = 900
)

// retry calls f until it succeeds, fails permanently, or has failed for RetryFor. Waiting
// for a source does not count towards RetryFor, and restarts it. A failure that lasts for
// ReportAfter is reported, so that a waiting task says what it waits for.
func (p *preparer) retry(ctx context.Context, f func() error) error {
	begun := time.Now()
	failing := begun
	reported := ""
	var wait backoff.Backoff
	for {
		err := f()
		if errors.Is(err, gatewayclient.ErrSourceAwaited) {
			failing = time.Now()
		}
		late := time.Since(failing) > p.cfg.RetryFor
		if err == nil || !retryable(err) || late || ctx.Err() != nil {
			if reported != "" && err == nil {
				p.report(ctx, nil)
			}
			return err
		}
		p.log.Info("retrying", "error", err.Error())
		// The message may change with every try; the reason is enough to tell failures
		// apart.
		if reason := judge(err).reason; time.Since(begun) >= p.cfg.ReportAfter && reason != reported {
			reported = reason
			p.report(ctx, &daemonv1.Problem{Reason: reason, Message: truncate(p.text(err.Error()), maxProblem) + "; retrying"})
		}
		if wait.Wait(ctx) != nil {
			return err
		}
	}
}

// report reports to the server what keeps the workspace from being prepared; nil for
// nothing any more. If the report fails, the work continues.
func (p *preparer) report(ctx context.Context, problem *daemonv1.Problem) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := p.cfg.Server.Report(ctx, problem); err != nil {
		p.log.V(1).Info("could not report a problem to the server", "problem", problem.GetReason(), "error", err.Error())
	}
}
