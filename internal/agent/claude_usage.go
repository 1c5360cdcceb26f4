package agent

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// claudeCounted is what was added for a message. Its events repeat its usage.
type claudeCounted struct {
	id    string
	total totals
}

// totals are sums that can be compared and copied.
type totals struct{ input, cached, output, cost int64 }

// usage returns what a message's usage adds to what was counted for it before.
func (p *claudeParser) usage(m *claudeMessage) []Item {
	if m.Usage == nil || m.ID == "" {
		return nil
	}
	now := totals{
		input:  int64(m.Usage.Input + m.Usage.CacheCreate + m.Usage.CacheRead),
		cached: int64(m.Usage.CacheRead),
		output: int64(m.Usage.Output),
	}
	if p.kind == v1alpha1.AgentQwenCode {
		now.input = int64(m.Usage.Input) // it includes the cached tokens
	}
	i := slices.IndexFunc(p.counted, func(c claudeCounted) bool { return c.id == m.ID })
	var before totals
	if i >= 0 {
		before = p.counted[i].total
		p.counted = slices.Delete(p.counted, i, i+1)
	}
	now.input, now.cached, now.output = max(now.input, before.input), max(now.cached, before.cached), max(now.output, before.output)
	// Messages of subagents appear between events of the main agent's message, so
	// the last few messages are remembered.
	if len(p.counted) >= 64 {
		p.counted = slices.Delete(p.counted, 0, 1)
	}
	p.counted = append(p.counted, claudeCounted{m.ID, now})
	model := m.Model
	if model == "" {
		model = p.model
	}
	u := &daemonv1.Usage{
		InputTokens:       now.input - before.input,
		CachedInputTokens: now.cached - before.cached,
		OutputTokens:      now.output - before.output,
		Model:             Text([]byte(model)),
	}
	u.CostMicroUsd = p.prices.cost(u)
	p.added.input += u.InputTokens
	p.added.cached += u.CachedInputTokens
	p.added.output += u.OutputTokens
	p.added.cost += u.CostMicroUsd
	return addUsage(u)
}

// result ends a turn. It may contain text that no message contained, and corrects the
// usage.
func (p *claudeParser) result(e claudeEvent) []Item {
	p.conclude(e)
	var items []Item
	if said := cmp.Or(e.Result, e.Error.message); said == "" || sha256.Sum256([]byte(said)) != p.spoken {
		failed := e.IsError || (e.Subtype != "" && e.Subtype != "success")
		if text := strings.Join(append(e.Errors, said), "\n"); failed && strings.TrimSpace(text) != "" {
			items = append(items, notice(strings.TrimSpace(text)))
		} else if failed {
			items = append(items, notice(p.program+" ended with "+e.Subtype+"."))
		} else if said != "" && p.begun {
			items = append(items, textItem(daemonv1.Role_ROLE_ASSISTANT, said, ""))
		}
	}
	if !p.begun {
		return items
	}
	total, ok := p.total(e)
	if ok {
		u := &daemonv1.Usage{
			InputTokens:       max(0, total.input-p.added.input),
			CachedInputTokens: max(0, total.cached-p.added.cached),
			OutputTokens:      max(0, total.output-p.added.output),
			CostMicroUsd:      total.cost - p.added.cost,
			Model:             p.model,
		}
		items = append(items, addUsage(u)...)
	}
	p.added = totals{}
	return items
}

// claudeFailure classifies an error by its text and by the event's other fields.
func claudeFailure(e claudeEvent, text string) *Failure {
	f := failure(e.APIStatus, text)
	if kinds := strings.TrimSpace(e.Error.kind + " " + e.APIError); kinds != "" {
		f.Cause = causeOf(e.APIStatus, kinds+" "+text)
	}
	return f
}

// conclude records how a turn ended.
func (p *claudeParser) conclude(e claudeEvent) {
	if !e.IsError && (e.Subtype == "" || e.Subtype == "success") {
		p.recordEnd(nil)
		return
	}
	text := strings.TrimSpace(strings.Join(append(e.Errors, cmp.Or(e.Result, e.Error.message)), "\n"))
	if text == "" {
		text = p.program + " ended with " + e.Subtype
	}
	f := claudeFailure(e, text)
	if before := p.reported.Failure; f.Cause == CauseUnknown && before != nil {
		f.Cause = before.Cause
	}
	if e.Subtype == "error_max_turns" || e.Subtype == "error_max_budget_usd" {
		f.Cause = CauseGaveUp
	}
	p.recordEnd(f)
}

// total returns the usage of the turn according to its result; ok is false if the result
// does not contain it. Newer versions report the usage since the last result by model.
// total_cost_usd accumulates from one result to the next and, in these versions, over all
// runs of a session.
func (p *claudeParser) total(e claudeEvent) (t totals, ok bool) {
	for _, m := range e.SinceLast {
		t.input += int64(m.Input + m.CacheCreate + m.CacheRead)
		t.cached += int64(m.CacheRead)
		t.output += int64(m.Output)
		t.cost += m.Cost.micro()
	}
	if len(e.SinceLast) > 0 {
		return t, true
	}
	if e.TotalCost == nil {
		return t, false
	}
	if e.Usage != nil {
		t.input = int64(e.Usage.Input + e.Usage.CacheCreate + e.Usage.CacheRead)
		t.cached, t.output = int64(e.Usage.CacheRead), int64(e.Usage.Output)
	}
	t.cost = max(0, e.TotalCost.micro()-p.lastCost)
	p.lastCost = max(p.lastCost, e.TotalCost.micro())
	return t, true
}
