package agent

import (
	"maps"
	"slices"

	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Tokens counts the tokens sent to and received from a model. Input includes Cached.
type Tokens struct {
	Model  string `json:"model,omitempty"`
	Input  int64  `json:"input,omitempty"`
	Cached int64  `json:"cached,omitempty"`
	Output int64  `json:"output,omitempty"`
}

// Usage converts the tokens to a usage with an estimated cost. own are the user's prices.
func (t Tokens) Usage(own map[string]daemonapi.Price) *daemonv1.Usage {
	u := &daemonv1.Usage{InputTokens: t.Input, CachedInputTokens: t.Cached, OutputTokens: t.Output, Model: t.Model}
	u.CostMicroUsd = newPrices(own).cost(u)
	return u
}

// AddTokens returns the sums by model, sorted by the models' names.
func AddTokens(all ...[]Tokens) []Tokens {
	sums := map[string]Tokens{}
	for _, t := range slices.Concat(all...) {
		s := sums[t.Model]
		sums[t.Model] = Tokens{t.Model, s.Input + t.Input, s.Cached + t.Cached, s.Output + t.Output}
	}
	var out []Tokens
	for _, model := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, sums[model])
	}
	return out
}

// TokensBeyond returns by how much tokens exceed others, by model.
func TokensBeyond(tokens, others []Tokens) []Tokens {
	var out []Tokens
	known := AddTokens(others)
	for _, t := range AddTokens(tokens) {
		if i := slices.IndexFunc(known, func(k Tokens) bool { return k.Model == t.Model }); i >= 0 {
			k := known[i]
			t = Tokens{t.Model, max(0, t.Input-k.Input), max(0, t.Cached-k.Cached), max(0, t.Output-k.Output)}
		}
		if t.Input > 0 || t.Cached > 0 || t.Output > 0 {
			out = append(out, t)
		}
	}
	return out
}
