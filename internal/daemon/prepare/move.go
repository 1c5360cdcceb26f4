package prepare

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// move moves the conversation, once per id, and returns its new position. The move is a
// record among the others, so that a history store that was restored from an older copy
// receives it again in its place. An error that is ErrNotFound says that there is no such place to move to.
func (p *preparer) move(ctx context.Context, m *daemonv1.Move) (position int64, err error) {
	if !m.GetKeepPosition() && len(p.journal.State().Wishes) > 0 {
		// What was called in the conversation that is taken back is called anew after it.
		if err := p.journal.Update(func(s *journal.State) error { s.Wishes = nil; return nil }); err != nil {
			return 0, err
		}
	}
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
		return 0, wrapPlace(placeServer, errors.New("the server did not report the result of the conversation's move"))
	case result.GetRefused() != "":
		return 0, wrapPlace(placeServer, fmt.Errorf("move the conversation: %w: %s", gatewayclient.ErrNotFound, result.GetRefused()))
	}
	return result.GetPosition().GetPosition(), nil
}

// moveByCall moves the conversation on a server that is older than this daemon.
func (p *preparer) moveByCall(ctx context.Context, m *daemonv1.Move) (position int64, err error) {
	err = p.retry(ctx, func() error {
		at, err := p.cfg.Server.MoveConversation(ctx, &daemonv1.MoveConversationRequest{
			OperationId: m.GetOperationId(), Checkpoint: m.GetCheckpoint(), Reason: m.GetReason(),
			KeepPosition: m.GetKeepPosition(), Position: m.GetPosition(),
		})
		position, p.known.moved = at.GetPosition(), true
		return wrapPlace(placeServer, err)
	})
	return position, err
}

// resultOf returns the server's last result of a move; nil if it knows none.
func (p *preparer) resultOf(id string) *daemonv1.MoveResult {
	for _, r := range p.begun.GetMoves() {
		if r.GetOperationId() == id {
			return r
		}
	}
	return nil
}
