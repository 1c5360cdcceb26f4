package sidecar

import (
	"context"
	"errors"
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

// errOutdated: this attempt cannot go on with the volume; the next one restores it.
var errOutdated = errors.New("the daemon's journal of the volume could not be read any more")

// over says that the attempt must end its agent and write nothing more: a newer
// one has begun, this pod's object is gone, or the volume is not to be gone on with.
func over(err error) bool {
	return errors.Is(err, gatewayclient.ErrFenced) || errors.Is(err, spool.ErrTaken) || errors.Is(err, ship.ErrForeign) || errors.Is(err, errOutdated)
}

// standDown ends the agent and waits for the pod's end without touching anything.
// It lets go of the volume, which the newer attempt may be waiting for, when the
// agent has ended and not before, however long that takes: an agent that cannot
// be ended must not write into the next one's worktree.
func (d *daemon) standDown(ctx context.Context, why error) error {
	d.log.Info("this attempt is over: it ends its agent and writes nothing more", "reason", why.Error())
	if told := d.whyOver(why); told != nil {
		// It is told before the agent is seen to end, which would count as a failure
		// of the agent. The next attempt finds the same, whether or not somebody hears.
		_ = d.cfg.Server.Report(timeout(ctx, reportWait), told)
	}
	d.socket.Fence()
	d.socket.UntilGone(ctx)
	err := d.volume.Close()
	<-ctx.Done()
	return err
}

// whyOver is what the server is told of an attempt that is over; nil where it knows
// of the newer one.
func (d *daemon) whyOver(why error) *daemonv1.Problem {
	fenced := (*gatewayclient.FencedError)(nil)
	switch {
	case errors.Is(why, ship.ErrForeign), errors.Is(why, errOutdated):
		return d.problems.problem(v1alpha1.ReasonVolumeOutdated, "the agent is ended, and the next attempt restores the workspace: "+why.Error())
	case errors.As(why, &fenced):
		// Only what is on the volume outlives this pod, and it is this attempt's still.
		err := d.volume.Journal.Update(func(s *journal.State) error { s.Seen = max(s.Seen, fenced.Newest); return nil })
		if err != nil {
			d.log.Error(err, "the next attempt is not told which number is taken", "newest", fenced.Newest)
		}
		return d.problems.problem(v1alpha1.ReasonFenced, "the agent is ended, and the next attempt gets a higher number: "+why.Error())
	}
	return nil
}

// lockedOut ends the agent of a daemon that came back after the newer attempt
// had taken the volume.
func lockedOut(ctx context.Context, cfg Config, listener net.Listener) error {
	cfg.Log.Info("a newer attempt of the task has the volume: this one ends its agent and writes nothing")
	s := socket.New(nil, nil, cfg.Pod, cfg.Log)
	s.Fence()
	if err := s.Serve(ctx, listener, nobody{}); ctx.Err() == nil {
		return err
	}
	return nil
}

// nobody lets an agent do what it does until it is ended.
type nobody struct{}

func (nobody) Recorded()                                   {}
func (nobody) Failed(error)                                {}
func (nobody) BeforeTool(context.Context, wire.BeforeTool) {}
func (nobody) ToolCalled(context.Context, record.Call)     {}
