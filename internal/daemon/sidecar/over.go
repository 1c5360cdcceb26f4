package sidecar

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// errOutdated is returned when this attempt cannot use the volume any longer; the next
// attempt restores it.
var errOutdated = errors.New("the daemon's journal on the task's volume can no longer be read")

// attemptOver reports whether an error means that the attempt must end its agent and write
// nothing more: a newer attempt has begun, this pod's object is gone, or the volume can no
// longer be used.
func attemptOver(err error) bool {
	return errors.Is(err, gatewayclient.ErrFenced) || errors.Is(err, spool.ErrTaken) || errors.Is(err, ship.ErrForeign) || errors.Is(err, errOutdated)
}

// shutDownReplaced ends the agent and waits for the pod's end without writing anything. It
// unlocks the volume, which the newer attempt may be waiting for, only when the agent has
// ended, however long that takes: an agent that cannot be ended must not write to the next
// attempt's worktree.
func (d *daemon) shutDownReplaced(ctx context.Context, why error) error {
	d.log.Info("this attempt is over; ending its agent and writing nothing more", "reason", why.Error())
	if problem := d.problemOver(why); problem != nil {
		// Reported before the agent's end is noticed, which would count as a failure of
		// the agent. A failed report is ignored: the next attempt finds the same problem.
		_ = d.cfg.Server.Report(timeout(ctx, reportWait), problem)
	}
	d.socket.Fence()
	d.socket.UntilGone(ctx)
	err := d.volume.Close()
	<-ctx.Done()
	return err
}

// problemOver returns the problem to report for an attempt that is over, nil if the server
// already knows the newer attempt. It notes the number of the newer attempt in the journal,
// if that is known.
func (d *daemon) problemOver(why error) *daemonv1.Problem {
	fenced := (*gatewayclient.FencedError)(nil)
	switch {
	case errors.Is(why, ship.ErrForeign), errors.Is(why, errOutdated):
		return d.problems.problem(v1alpha1.ReasonVolumeOutdated, "the agent is terminated, and the next attempt restores the workspace: "+why.Error())
	case errors.As(why, &fenced):
		// Only the volume outlives this pod, and this attempt still holds its lock.
		err := d.volume.Journal.Update(func(s *journal.State) error { s.Seen = max(s.Seen, fenced.Newest); return nil })
		if err != nil {
			d.log.Error(err, "the number of the newest attempt could not be noted for the next one", "newest", fenced.Newest)
		}
		return d.problems.problem(v1alpha1.ReasonFenced, "the agent is terminated, and the next attempt gets a higher number: "+why.Error())
	}
	return nil
}

// lockedOut ends the agent of a daemon that was restarted after a newer attempt had locked
// the volume.
func lockedOut(ctx context.Context, cfg Config, listener net.Listener) error {
	cfg.Log.Info("a newer attempt of the task has locked the volume; ending this attempt's agent and writing nothing")
	s := socket.New(nil, nil, cfg.Pod, cfg.Log)
	s.Fence()
	if err := s.Serve(ctx, listener, ignoreAgent{}); ctx.Err() == nil {
		return err
	}
	return nil
}

// ignoreAgent is a socket.Handler that does nothing: the agent is about to be ended.
type ignoreAgent struct{}

func (ignoreAgent) Recorded()                               {}
func (ignoreAgent) Failed(error)                            {}
func (ignoreAgent) ToolCalled(context.Context, record.Call) {}

// BeforeTool refuses every call: nobody can be asked any more.
func (ignoreAgent) BeforeTool(context.Context, wire.BeforeTool) string { return attemptOverText }

// ServeTools is never called: a fenced socket refuses connections to the tools.
func (ignoreAgent) ServeTools(_ context.Context, c io.ReadWriteCloser) { _ = c.Close() }

// Delivered is never called either.
func (ignoreAgent) Delivered(context.Context, []string) error { return nil }
