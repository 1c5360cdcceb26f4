package historyapi

import (
	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// conversation returns what the rewind would do to the conversation; nil if it leaves it alone.
func (p *preview) conversation() (*historyv1alpha1.RewoundConversation, error) {
	if p.decided.Operation.Scope == v1alpha1.RewindCode {
		return nil, nil
	}
	now := p.observed.History.State
	to, after, err := p.destination()
	if err != nil {
		return nil, err
	}
	shared, err := p.shared(p.Context(), place{p.taskOf(), now.Position}, place{p.taskOf(), to})
	if err != nil {
		return nil, err
	}
	c := &historyv1alpha1.RewoundConversation{
		FromPosition: now.Position.Position, ToPosition: to.Position,
		Dropped: now.Position.Position - shared, Restored: to.Position - shared,
		ToolCalls:    now.Totals.ToolCalls - after.ToolCalls,
		InputTokens:  now.Totals.InputTokens - after.InputTokens,
		OutputTokens: now.Totals.OutputTokens - after.OutputTokens,
		CostMicroUSD: now.Totals.CostMicroUSD - after.CostMicroUSD,
	}
	if c.Dropped == 0 {
		return c, nil
	}
	if c.First, err = p.message(shared + 1); err == nil {
		c.Last, err = p.message(c.FromPosition)
	}
	return c, err
}

// destination returns the turn boundary to which the rewind moves the conversation, and its sums
// there.
func (p *preview) destination() (history.Position, history.Totals, error) {
	if found := p.observed.RewindPosition.Found; found != nil && p.decided.Operation.Scope == v1alpha1.RewindConversation {
		return found.Position, found.Totals, nil
	}
	c, err := p.checkpoint()
	if err != nil {
		return history.Position{}, history.Totals{}, err
	}
	if to := p.decided.Accepted.ToPosition; to != c.Position.Position {
		at := c.Position
		at.Position = to
		return at, c.Totals, nil
	}
	return p.Archive.CheckpointBoundary(p.Context(), p.taskOf().Key(), c.Number)
}

// message returns the message at a position; nil if it is not there any more.
func (p *preview) message(position int64) (*historyv1alpha1.ConversationEntry, error) {
	found, err := p.entries(history.ConversationQuery{After: position - 1})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	entry := entryOf(found[0])
	return &entry, nil
}
