package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/verification"
)

const (
	// verifyWait is how long a request waits for a verification.
	verifyWait = 2 * time.Second
	// recently is how old the outcome of a verification may be: many daemons may meet the same
	// damage at once.
	recently = time.Minute
)

// VerifyCheckpoint implements the RPC, for the caller's own checkpoints and those of the task that
// it was started from. What is damaged is not said.
func (g *Gateway) VerifyCheckpoint(ctx context.Context, req *connect.Request[daemonv1.VerifyCheckpointRequest]) (*connect.Response[daemonv1.VerifyCheckpointResponse], error) {
	id := identityOf(ctx)
	key := history.Key{Namespace: id.Namespace, UID: id.TaskUID}
	if uid := req.Msg.GetTaskUid(); uid != "" && uid != id.TaskUID {
		if err := g.startedFrom(ctx, id, uid); err != nil {
			return nil, g.failure(ctx, err)
		}
		key.UID = uid
	}
	found, err := g.store.Checkpoint(ctx, key, req.Msg.GetCheckpoint())
	if err == nil && (!found.Durable || g.verifier == nil) {
		err = fmt.Errorf("%w: checkpoint %d is not in the gitstore", history.ErrNotFound, req.Msg.GetCheckpoint())
	}
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	since := time.Now().Add(-recently)
	if found.Integrity.Verified.Before(since) {
		switch err := g.verify(ctx, key, found.Number, since); {
		case errors.Is(err, verification.ErrInProgress):
			return connect.NewResponse(&daemonv1.VerifyCheckpointResponse{}), nil
		case err != nil:
			return nil, err
		}
		if found, err = g.store.Checkpoint(ctx, key, found.Number); err != nil {
			return nil, g.failure(ctx, err)
		}
	}
	return connect.NewResponse(&daemonv1.VerifyCheckpointResponse{
		Verified: true, Damaged: found.Integrity.Damage != "", IntactBefore: found.Integrity.IntactBefore,
	}), nil
}

// startedFrom returns an error unless the caller's task was started from another one.
func (g *Gateway) startedFrom(ctx context.Context, id podidentity.Identity, uid string) error {
	if g.tasks == nil {
		return nil
	}
	source, err := g.tasks.Source(ctx, id)
	if err == nil && source != uid {
		err = fmt.Errorf("%w: the task %s/%s was not started from a task with UID %s", history.ErrNotFound, id.Namespace, id.TaskName, uid)
	}
	return err
}

// verify has a checkpoint verified, and waits a while for the outcome.
func (g *Gateway) verify(ctx context.Context, key history.Key, number int64, since time.Time) error {
	state, err := g.store.TaskState(ctx, key.UID)
	if err != nil {
		return g.failure(ctx, err)
	}
	waiting, cancel := context.WithTimeout(ctx, verifyWait)
	defer cancel()
	err = g.verifier.Verify(waiting, state.Task, number, since)
	if err == nil || errors.Is(err, verification.ErrInProgress) {
		return err
	}
	g.log.Info("a checkpoint cannot be verified", "namespace", key.Namespace, "task", state.Task.Name, "checkpoint", number, "error", err.Error())
	return connect.NewError(connect.CodeUnavailable, errors.New("the checkpoint cannot be verified at the moment; try again"))
}
