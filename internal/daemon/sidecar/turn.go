package sidecar

import (
	"context"

	"github.com/clew-dev/clew/internal/daemon/tools"
)

// turn is something that takeCheckpoints does for a call of a tool, between two checkpoints.
type turn struct {
	caller context.Context
	do     func(context.Context) error
	done   chan struct{} // closed when it is done, or was skipped
}

// run does it, unless the caller has given up.
func (t turn) run(ctx context.Context) error {
	defer close(t.done)
	if t.caller.Err() != nil {
		return nil
	}
	return t.do(ctx)
}

// inTurn has takeCheckpoints do something, and waits until it is done. It returns earlier, with
// an error, if the caller gives up or the attempt ends; what has begun is completed all the
// same. An error of do is the affair of takeCheckpoints.
func (d *daemon) inTurn(ctx context.Context, do func(context.Context) error) error {
	t := turn{caller: ctx, do: do, done: make(chan struct{})}
	select {
	case d.turns <- t:
	case <-d.idle:
		return errEnding()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-t.done:
		return nil
	case <-d.idle: // takeCheckpoints completes a turn before it returns
		<-t.done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errEnding() error {
	return tools.Refuse("This run of the agent is ending: its last checkpoint is taken without being asked for.")
}
