package sidecar

import (
	"context"

	"github.com/clew-dev/clew/internal/agent"
)

// countTokens adds the tokens to the totals that the agent's output has not told
// of yet and its session's files do, for agents that tell of them at the end
// alone: they may be killed before.
func (d *daemon) countTokens(ctx context.Context) error {
	session, start := d.recorder.State().Session, d.volume.Journal.State().Start
	if !d.adapter.TokensInSession() || session == nil || start == nil || start.Attempt != d.cfg.Pod.Attempt || start.Tokens == nil {
		return nil
	}
	found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
	if err != nil {
		d.log.V(1).Info("the agent's session tells of no tokens", "error", err.Error())
		return nil
	}
	return d.recorder.CountTokens(ctx, agent.TokensBeyond(found.Tokens, start.Tokens))
}
