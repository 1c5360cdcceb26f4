package sidecar

import (
	"context"

	"github.com/clew-dev/clew/internal/agent"
)

// countTokens records the tokens that the session's files report and the output has not
// reported yet. It is for agents that print their tokens only at the end, before which
// they may be killed.
func (d *daemon) countTokens(ctx context.Context) error {
	session, start := d.recorder.State().Session, d.volume.Journal.State().Start
	if !d.adapter.TokensInSession() || session == nil || start == nil || start.Attempt != d.cfg.Pod.Attempt || start.Tokens == nil {
		return nil
	}
	found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
	if err != nil {
		d.log.V(1).Info("the tokens in the agent's session could not be read", "error", err.Error())
		return nil
	}
	return d.recorder.CountTokens(ctx, agent.TokensBeyond(found.Tokens, start.Tokens))
}
