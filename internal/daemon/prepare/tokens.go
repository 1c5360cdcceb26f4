package prepare

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// countTokens adds to the totals those tokens of the previous run that its output had not
// reported when pod and daemon were killed, as counted in the files of its session. It must
// precede any restore of the home. The same write marks them as counted.
func (p *preparer) countTokens(context.Context) error {
	state, mark := p.journal.State(), p.spool.Mark()
	switch {
	case !p.adapter.TokensInSession(), state.Layout == nil, state.Session == nil, state.Session.ID != mark.Session:
		return nil
	case state.Start == nil, state.Start.Attempt != state.Session.Attempt, state.Start.Tokens == nil:
		return nil
	}
	run := agentstate.Decode(mark.State)
	id := run.Session.GetId()
	if id == "" || run.Outcome.Counted {
		return nil
	}
	found, err := agent.FindSession(p.adapter, p.cfg.Paths.Home, id)
	if err != nil {
		p.log.Info("could not read the tokens used from the agent's session", "session", id, "error", err.Error())
		return nil
	}
	more := agent.TokensBeyond(found.Tokens, agent.AddTokens(state.Start.Tokens, run.Counted))
	if len(more) == 0 {
		return nil
	}
	var records []*daemonv1.Record
	for _, t := range more {
		records = append(records, &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt,
			Body: &daemonv1.Record_Usage{Usage: t.Usage(p.cfg.Pod.Prices)}})
	}
	run.Counted = agent.AddTokens(run.Counted, more)
	mark.State = run.Encode()
	return p.spool.Append(&mark, records...)
}
