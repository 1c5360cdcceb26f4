package gateway

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

// checkTimeout bounds how long a stream waits for the store.
const checkTimeout = 5 * time.Second

// Commands implements the RPC: it tells the daemon which checkpoints are asked
// for, each once per stream, until the stream has lived long enough or a newer
// attempt has begun. It is told of some at a time, the oldest first, and of those behind
// them as these are done, or when nothing becomes of them.
func (g *Gateway) Commands(ctx context.Context, _ *connect.Request[daemonv1.CommandsRequest], stream *connect.ServerStream[daemonv1.Command]) error {
	id := identityOf(ctx)
	g.metrics.streams.Inc()
	defer g.metrics.streams.Dec()

	heartbeat := time.NewTicker(g.heartbeat)
	defer heartbeat.Stop()
	// Not all daemons should come back at once.
	lifetime := time.NewTimer(g.streamLifetime + rand.N(g.streamLifetime/4+1))
	defer lifetime.Stop()

	s, leave := g.streams.enter(id.TaskUID, id.Attempt)
	defer leave()
	changed, unsubscribe := g.requests.Changes(id.Namespace, id.TaskName)
	defer unsubscribe()
	t := teller{told: map[string]bool{}, passed: map[string]bool{}}
	if err := g.beat(ctx, id, stream); err != nil {
		return err
	}
	for {
		if err := t.tell(stream, g.requests.Pending(id.Namespace, id.TaskName, t.passed)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.closing:
			return connect.NewError(connect.CodeUnavailable, errors.New("this server is shutting down; connect again"))
		case <-lifetime.C:
			return nil
		case <-changed:
		case newest := <-s.fenced:
			return g.failure(ctx, fenced(id, newest))
		case <-s.look:
			if err := g.checkAttempt(ctx, id); err != nil {
				return err
			}
		case <-heartbeat.C:
			t.beat()
			if err := g.beat(ctx, id, stream); err != nil {
				return err
			}
		}
	}
}

// beat shows the daemon that the stream lives, and then looks whether it should.
func (g *Gateway) beat(ctx context.Context, id podidentity.Identity, stream *connect.ServerStream[daemonv1.Command]) error {
	if err := stream.Send(&daemonv1.Command{}); err != nil {
		return err
	}
	return g.checkAttempt(ctx, id)
}

// checkAttempt returns the failure to end the stream with if the store knows of
// a newer attempt. A store that cannot tell ends no stream, nor does one that is
// busy with the namespace: commands do not come from it, and the next heartbeat
// asks again.
func (g *Gateway) checkAttempt(ctx context.Context, id podidentity.Identity) error {
	looking, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	release, err := g.shares.look(looking, id)
	if err != nil {
		return nil // see above
	}
	defer release()
	newest, err := g.store.Attempt(looking, id.TaskUID)
	switch {
	case err == nil && newest > id.Attempt:
		return g.failure(ctx, fenced(id, newest))
	case err == nil || errors.Is(err, history.ErrNotFound):
		return nil
	case ctx.Err() == nil && g.outage.due(time.Now()):
		g.log.Info("the history store does not tell the attempts of tasks; streams of commands stay open meanwhile", "error", err.Error())
	}
	return nil
}

// patience is after how many heartbeats in which none of the requests was done that a
// stream was told of, it is told of those behind them.
const patience = 3

// teller tells a stream of requests.
type teller struct {
	// told holds the UIDs of those that the stream has seen, as long as they are asked for.
	told map[string]bool
	// passed holds those of them that others do not wait for any more. Something may be
	// amiss with them for good: the daemon has taken them, say, and the record is lost.
	passed map[string]bool
	// idle counts the heartbeats in which none of told was done.
	idle int
}

// tell sends the requests that the stream has not seen.
func (t *teller) tell(stream *connect.ServerStream[daemonv1.Command], pending []CheckpointRequest) error {
	current := make(map[string]bool, len(pending))
	for _, r := range pending {
		current[r.UID] = true
		if t.told[r.UID] {
			continue
		}
		command := &daemonv1.TakeCheckpoint{Name: r.Name, Uid: r.UID, Message: r.Message}
		if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_TakeCheckpoint{TakeCheckpoint: command}}); err != nil {
			return err
		}
		t.told[r.UID] = true
	}
	for uid := range t.told {
		if !current[uid] {
			delete(t.told, uid)
			t.idle = 0
		}
	}
	return nil
}

// beat has the stream pass those that it was told of long ago.
func (t *teller) beat() {
	t.idle++
	if t.idle < patience {
		return
	}
	t.idle = 0
	maps.Copy(t.passed, t.told)
	clear(t.told)
}
