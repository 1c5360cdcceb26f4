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

// Commands implements the RPC: it sends the daemon the pending checkpoint requests, the ends of sets
// of checkpoints and the answers to its tool calls, each once per stream, until the stream's lifetime is over or a newer attempt has begun. It
// sends a limited number at a time, oldest first, and further ones as these are
// completed, or if they are not completed for a while.
func (g *Gateway) Commands(ctx context.Context, _ *connect.Request[daemonv1.CommandsRequest], stream *connect.ServerStream[daemonv1.Command]) error {
	id := identityOf(ctx)
	g.metrics.streams.Inc()
	defer g.metrics.streams.Dec()

	heartbeat := time.NewTicker(g.heartbeat)
	defer heartbeat.Stop()
	// Spread out so that daemons do not all reconnect at once.
	lifetime := time.NewTimer(g.streamLifetime + rand.N(g.streamLifetime/4+1))
	defer lifetime.Stop()

	s, leave := g.streams.enter(id.TaskUID, id.Attempt)
	defer leave()
	changed, unsubscribe := g.requests.Changes(id.Namespace, id.TaskName)
	defer unsubscribe()
	live, forget := g.liveRequests(id.TaskUID)
	defer forget()
	answered, ignore := g.approvals.Changes(id.TaskUID)
	defer ignore()
	var told map[string]bool
	t := announcer{sent: map[string]bool{}, passed: map[string]bool{}}
	if err := g.beat(ctx, id, stream); err != nil {
		return err
	}
	for {
		if err := t.send(stream, g.untaken(ctx, id, &t, g.requests.Pending(id.Namespace, id.TaskName, t.passed))); err != nil {
			return err
		}
		if err := t.release(stream, g.requests.Releases(id.Namespace, id.TaskName)); err != nil {
			return err
		}
		var err error
		if told, err = sendAnswers(stream, g.approvals.Answers(id.TaskUID), told); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-answered:
		case <-g.closing:
			return connect.NewError(connect.CodeUnavailable, errors.New("this server is shutting down; connect again"))
		case <-lifetime.C:
			return nil
		case <-changed:
		case asked := <-live:
			if err := stream.Send(publishLive(asked)); err != nil {
				return err
			}
		case newest := <-s.fenced:
			return g.failure(ctx, fenced(id, newest))
		case <-s.recheck:
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

// beat sends a heartbeat and then checks whether the attempt is still the newest.
func (g *Gateway) beat(ctx context.Context, id podidentity.Identity, stream *connect.ServerStream[daemonv1.Command]) error {
	if err := stream.Send(&daemonv1.Command{}); err != nil {
		return err
	}
	return g.checkAttempt(ctx, id)
}

// checkAttempt returns the error that ends the stream if the store knows a newer attempt.
// A stream is kept if the store cannot be asked or is busy with the namespace: commands
// do not come from the store, and the next heartbeat checks again.
func (g *Gateway) checkAttempt(ctx context.Context, id podidentity.Identity) error {
	timed, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	release, err := g.shares.checkSlot(timed, id)
	if err != nil {
		return nil // see above
	}
	defer release()
	newest, err := g.store.Attempt(timed, id.TaskUID)
	switch {
	case err == nil && newest > id.Attempt:
		return g.failure(ctx, fenced(id, newest))
	case err == nil || errors.Is(err, history.ErrNotFound):
		return nil
	case ctx.Err() == nil && g.outage.due(time.Now()):
		g.log.Info("the attempts of tasks cannot be read from the history store; command streams stay open", "error", err.Error())
	}
	return nil
}

// patience is the number of heartbeats without a completed request after which a stream
// sends the requests behind those it has sent.
const patience = 3

// announcer sends requests on a stream.
type announcer struct {
	// sent holds the UIDs of the requests sent on the stream, as long as they are
	// pending.
	sent map[string]bool
	// passed holds the UIDs of sent requests that no longer hold up others. They may
	// never complete: for example, the daemon has taken them and the record is lost.
	passed map[string]bool
	taken  taken
	// released holds the sets whose end was sent on the stream, as long as they are listed.
	released map[string]bool
	// idle counts the heartbeats in which no sent request was completed.
	idle int
}

// send sends the requests that the stream has not sent yet.
func (t *announcer) send(stream *connect.ServerStream[daemonv1.Command], pending []CheckpointRequest) error {
	current := make(map[string]bool, len(pending))
	for _, r := range pending {
		current[r.UID] = true
		if t.sent[r.UID] {
			continue
		}
		command := &daemonv1.TakeCheckpoint{Name: r.Name, Uid: r.UID, Message: r.Message, Hold: r.Hold, Phase: r.Phase}
		if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_TakeCheckpoint{TakeCheckpoint: command}}); err != nil {
			return err
		}
		t.sent[r.UID] = true
	}
	for uid := range t.sent {
		if !current[uid] {
			delete(t.sent, uid)
			t.idle = 0
		}
	}
	return nil
}

// release sends the ends of sets that the stream has not sent yet.
func (t *announcer) release(stream *connect.ServerStream[daemonv1.Command], sets []Release) error {
	current := make(map[string]bool, len(sets))
	for _, r := range sets {
		if current[r.Set] = true; t.released[r.Set] {
			continue
		}
		if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_ReleaseHold{ReleaseHold: &daemonv1.ReleaseHold{Set: r.Set, Gone: r.Gone}}}); err != nil {
			return err
		}
	}
	t.released = current
	return nil
}

// beat passes the requests that were sent long ago.
func (t *announcer) beat() {
	t.taken.beat()
	t.idle++
	if t.idle < patience {
		return
	}
	t.idle = 0
	maps.Copy(t.passed, t.sent)
	clear(t.sent)
}
