package agent

import (
	"regexp"
	"strings"

	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// listPrice returns the list price of a model by its plain name; ok is false for an
// unlisted model. If a provider charges more for long prompts, it is the price for short
// ones. Sources, as published by November 2026:
//
//   - Claude: "Model pricing" in platform.claude.com/docs/en/about-claude/pricing;
//     Opus 5.5 as Claude Code 2.1.329 calculates it in its own results.
//   - GPT-5 and GPT-5-Codex: developers.openai.com/api/docs/models/gpt-5-codex.
//   - Gemini 2.5: ai.google.dev/gemini-api/docs/pricing.
//   - The others: data/tables/copilot/models-and-pricing.yml in github.com/github/docs.
func listPrice(model string) (daemonapi.Price, bool) {
	cents := func(input, cached, output float64) (daemonapi.Price, bool) {
		return daemonapi.Price{Input: int64(input * 1e4), CachedInput: int64(cached * 1e4), Output: int64(output * 1e4)}, true
	}
	switch model {
	case "claude-fable-5":
		return cents(1000, 100, 5000)
	case "claude-opus-5-5":
		return cents(400, 20, 2000)
	case "claude-opus-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6", "claude-opus-4-5":
		return cents(500, 50, 2500)
	case "claude-opus-4-1", "claude-opus-4-0", "claude-opus-4":
		return cents(1500, 150, 7500)
	case "claude-sonnet-5":
		return cents(200, 20, 1000)
	case "claude-sonnet-4-6", "claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4":
		return cents(300, 30, 1500)
	case "claude-haiku-4-5":
		return cents(100, 10, 500)
	case "claude-3-5-haiku":
		return cents(80, 8, 400)
	case "gpt-5", "gpt-5-codex":
		return cents(125, 12.5, 1000)
	case "gpt-5-mini":
		return cents(25, 2.5, 200)
	case "gpt-5.3-codex":
		return cents(175, 17.5, 1400)
	case "gpt-5.4":
		return cents(250, 25, 1500)
	case "gpt-5.4-mini":
		return cents(75, 7.5, 450)
	case "gpt-5.4-nano":
		return cents(20, 2, 125)
	case "gpt-5.5", "gpt-5.6-sol":
		return cents(500, 50, 3000)
	case "gpt-5.6-terra":
		return cents(200, 20, 1200)
	case "gpt-5.6-luna":
		return cents(20, 2, 120)
	case "gemini-2.5-pro":
		return cents(125, 12.5, 1000)
	case "gemini-2.5-flash":
		return cents(30, 3, 250)
	case "gemini-3.1-pro":
		return cents(200, 20, 1200)
	case "gemini-3.5-flash":
		return cents(150, 15, 900)
	case "gemini-3.6-flash", "gemini-3.7-flash":
		return cents(75, 7.5, 375)
	}
	return daemonapi.Price{}, false
}

// prices estimate costs that an agent does not report.
type prices struct {
	own     map[string]daemonapi.Price
	version *regexp.Regexp
}

// newPrices returns the user's prices together with the list prices.
func newPrices(own map[string]daemonapi.Price) prices {
	return prices{own: own, version: regexp.MustCompile(`([-@]\d{8}|-\d{4}-\d\d-\d\d|-latest|-preview[-0-9]*|-v\d+:\d+|\[1m\])+$`)}
}

// of returns the price of a model: the user's price for the longest matching prefix of
// its name, or else the list price of its name without date, provider and region.
func (p prices) of(model string) (daemonapi.Price, bool) {
	if model == "" || len(model) > 256 {
		return daemonapi.Price{}, false
	}
	plain := model[strings.LastIndexByte(model, '/')+1:]
	if _, name, ok := strings.Cut(plain, "anthropic."); ok {
		plain = name
	}
	best, price := -1, daemonapi.Price{}
	for prefix, own := range p.own {
		if len(prefix) > best && (strings.HasPrefix(model, prefix) || strings.HasPrefix(plain, prefix)) {
			best, price = len(prefix), own
		}
	}
	if best >= 0 {
		return price, true
	}
	return listPrice(p.version.ReplaceAllString(plain, ""))
}

// cost estimates the cost of a usage in millionths of a US dollar, or returns 0 if the
// model has no price.
func (p prices) cost(u *daemonv1.Usage) int64 {
	price, ok := p.of(u.GetModel())
	if !ok {
		return 0
	}
	cached := min(u.GetCachedInputTokens(), u.GetInputTokens())
	if price.CachedInput == 0 {
		cached = 0 // without a price of their own, cached tokens cost as much as others
	}
	// Prices are per million tokens. Floats are exact enough for possible counts and prices.
	f := float64(u.GetInputTokens()-cached)*float64(price.Input) +
		float64(cached)*float64(price.CachedInput) + float64(u.GetOutputTokens())*float64(price.Output)
	return dollars(f / 1e12).micro()
}
