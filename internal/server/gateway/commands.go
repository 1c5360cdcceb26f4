package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Commands implements the RPC: it tells the daemon which checkpoints are asked
// for, each once per stream, until the stream has lived long enough.
func (g *Gateway) Commands(ctx context.Context, _ *connect.Request[daemonv1.CommandsRequest], stream *connect.ServerStream[daemonv1.Command]) error {
	id := identityOf(ctx)
	g.metrics.streams.Inc()
	defer g.metrics.streams.Dec()

	heartbeat := time.NewTicker(g.heartbeat)
	defer heartbeat.Stop()
	// Not all daemons should come back at once.
	lifetime := time.NewTimer(g.streamLifetime + rand.N(g.streamLifetime/4+1))
	defer lifetime.Stop()

	told := map[string]bool{}
	if err := stream.Send(&daemonv1.Command{}); err != nil {
		return err
	}
	for {
		pending, changed := g.requests.Pending(id.Namespace, id.TaskName)
		if err := tell(stream, pending, told); err != nil {
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
		case <-heartbeat.C:
			if err := stream.Send(&daemonv1.Command{}); err != nil {
				return err
			}
		}
	}
}

// tell sends the requests that the stream has not seen; told holds the UIDs of
// those it has.
func tell(stream *connect.ServerStream[daemonv1.Command], pending []CheckpointRequest, told map[string]bool) error {
	current := make(map[string]bool, len(pending))
	for _, r := range pending {
		current[r.UID] = true
		if told[r.UID] {
			continue
		}
		command := &daemonv1.TakeCheckpoint{Name: r.Name, Uid: r.UID, Message: r.Message}
		if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_TakeCheckpoint{TakeCheckpoint: command}}); err != nil {
			return err
		}
		told[r.UID] = true
	}
	for uid := range told {
		if !current[uid] {
			delete(told, uid)
		}
	}
	return nil
}
