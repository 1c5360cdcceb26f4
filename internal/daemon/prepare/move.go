package prepare

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// move moves the conversation, once per id, and returns where it then stands. The
// move is a record among the others, so that a history store that went back in
// time is sent it again in its place. An error of the server's kind ErrNotFound
// says that there is nothing to move to.
func (p *preparer) move(ctx context.Context, m *daemonv1.Move) (position int64, err error) {
	if !p.begun.GetSequencedMoves() {
		return p.moveByCall(ctx, m)
	}
	result := p.resultOf(m.GetOperationId())
	if result == nil || result.GetRefused() != "" {
		err := p.spool.Append(nil, &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt, Body: &daemonv1.Record_Move{Move: m}})
		if err != nil {
			return 0, err
		}
		if err := p.drain(ctx); err != nil {
			return 0, err
		}
		result = p.resultOf(m.GetOperationId())
	}
	switch {
	case result == nil:
		return 0, of(placeServer, errors.New("the server does not say what became of the conversation's move"))
	case result.GetRefused() != "":
		return 0, of(placeServer, fmt.Errorf("move the conversation: %w: %s", gatewayclient.ErrNotFound, result.GetRefused()))
	}
	return result.GetPosition().GetPosition(), nil
}

// moveByCall moves the conversation at a server that is older than this daemon.
func (p *preparer) moveByCall(ctx context.Context, m *daemonv1.Move) (position int64, err error) {
	err = p.retry(ctx, func() error {
		at, err := p.cfg.Server.MoveConversation(ctx, &daemonv1.MoveConversationRequest{
			OperationId: m.GetOperationId(), Checkpoint: m.GetCheckpoint(), Reason: m.GetReason(),
			KeepPosition: m.GetKeepPosition(), Position: m.GetPosition(),
		})
		position = at.GetPosition()
		return of(placeServer, err)
	})
	return position, err
}

// resultOf is what the server last said of a move; nil if it knows of none.
func (p *preparer) resultOf(id string) *daemonv1.MoveResult {
	for _, r := range p.begun.GetMoves() {
		if r.GetOperationId() == id {
			return r
		}
	}
	return nil
}
