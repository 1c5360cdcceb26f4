package record

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// CountTokens records the tokens of the run that are not counted yet, and marks them as
// counted in the same write.
func (r *Recorder) CountTokens(ctx context.Context, used []agent.Tokens) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == "" || r.parser == nil || r.parser.Outcome().Counted {
		return nil
	}
	more := agent.TokensBeyond(used, r.state.Counted)
	if len(more) == 0 {
		return nil
	}
	var records []*daemonv1.Record
	for _, t := range more {
		records = append(records, &daemonv1.Record{Time: timestamppb.Now(), Attempt: r.attempt,
			Body: &daemonv1.Record_Usage{Usage: r.price(t)}})
	}
	next := r.state
	next.Counted = agent.AddTokens(next.Counted, more)
	mark := &spool.Mark{Session: r.session, Line: r.marked, State: next.Encode()}
	if err := r.persist(ctx, func() error { return r.store(mark, records) }); err != nil {
		return err
	}
	r.state = next
	return nil
}

// usage records the tokens reported by the output, without those already counted.
func (r *Recorder) usage(item agent.Item) {
	u := item.Usage
	if item.WholeRun && len(r.state.Counted) > 0 {
		reported := agent.Tokens{Model: u.GetModel(), Input: u.GetInputTokens(), Cached: u.GetCachedInputTokens(), Output: u.GetOutputTokens()}
		more := agent.TokensBeyond([]agent.Tokens{reported}, r.state.Counted)
		if len(more) == 0 {
			return
		}
		u = r.price(more[0])
	}
	r.structured(&daemonv1.Record{Body: &daemonv1.Record_Usage{Usage: u}})
}
