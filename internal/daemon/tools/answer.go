package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-logr/logr"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/clip"
)

const (
	// MaxText bounds the text of an answer, in bytes: models pay for each of them.
	MaxText = 48 << 10
	// MaxData bounds the data of an answer, in bytes, as JSON.
	MaxData = 96 << 10
	// DataKey is the name of an answer's data among the metadata of the result.
	DataKey = "clew.dev/answer"
	// CallKey is the name there of the id of a call that has taken effect.
	CallKey = "clew.dev/call"

	// callTimeout is how long a call may take. Agents give up after a minute or later.
	callTimeout = 50 * time.Second
	// callsAtOnce bounds the calls that are answered at a time, steeringAtOnce those of a
	// supervisor, most of which wait for others, and callsPerSecond and callBurst their rate.
	callsAtOnce    = 4
	steeringAtOnce = 12
	callsPerSecond = 2
	callBurst      = 40
)

// Answer is the answer to a call.
type Answer struct {
	// Text is for the model: what was done or found, and what follows from it.
	Text string
	// Data is the same for programs; it is encoded as JSON. Nil for none.
	Data any
	// Call is the id of a call that has taken effect; empty if nothing is to know whether the answer
	// arrives.
	Call string
}

// Refusal is why a call was not carried out, for the model: what is in the way, and what to do.
type Refusal struct{ Text string }

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Refuse returns a refusal.
func Refuse(format string, args ...any) error { return &Refusal{fmt.Sprintf(format, args...)} }

// gate lets calls through, within their bounds, and makes results of what they return.
type gate struct {
	atOnce chan struct{}
	rate   *rate.Limiter
	mask   func(string) string
	log    logr.Logger
	called func(name string)
}

func newGate(cfg Config) *gate {
	atOnce := callsAtOnce
	if cfg.steers() {
		atOnce = steeringAtOnce
	}
	return &gate{atOnce: make(chan struct{}, atOnce), rate: rate.NewLimiter(callsPerSecond, callBurst),
		mask: cfg.Mask, log: cfg.Log, called: cfg.Called}
}

// pass answers a call.
func (g *gate) pass(ctx context.Context, name string, answer func(context.Context) (Answer, error)) *mcp.CallToolResult {
	if wait := untilToken(g.rate); wait > 0 {
		return g.failed(name, Refuse("Too many calls of Clew's tools: wait %d s, then try again.", wait))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	select {
	case g.atOnce <- struct{}{}:
		defer func() { <-g.atOnce }()
	case <-ctx.Done():
		return g.failed(name, Refuse("Clew is busy with other calls of its tools: try again in a minute."))
	}
	g.called(name)
	a, err := answer(ctx)
	if err != nil {
		if ctx.Err() != nil && !errors.As(err, new(*Refusal)) {
			err = Refuse("The call took too long, and its answer is not waited for any more. Go on with your work; try again later if you still need it.")
		}
		return g.failed(name, err)
	}
	result := g.result(a.Text)
	result.Meta = mcp.Meta{}
	if data, ok := g.data(a.Data); ok {
		result.Meta[DataKey] = data
	}
	if a.Call != "" {
		result.Meta[CallKey] = a.Call
	}
	return result
}

// untilToken takes a token, or returns after how many seconds there is one.
func untilToken(l *rate.Limiter) int {
	if l.Allow() {
		return 0
	}
	return max(1, int(math.Ceil((1-l.Tokens())/float64(l.Limit()))))
}

func (g *gate) result(text string) *mcp.CallToolResult {
	if text = g.mask(text); len(text) > MaxText {
		text = clip.Bytes(text, MaxText) + "\n[The answer is longer, and was cut here.]"
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// failed returns the result of a call that was not carried out.
func (g *gate) failed(name string, err error) *mcp.CallToolResult {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		g.log.Error(err, "a tool that the agent called has failed", "tool", name)
		err = Refuse("Clew could not answer: %s. Go on with your work; try again later if you still need it.", clip.Bytes(err.Error(), 1<<10))
	}
	result := g.result(err.Error())
	result.IsError = true
	return result
}

// data encodes the data of an answer; false if there is none, or too much.
func (g *gate) data(v any) (json.RawMessage, bool) {
	if v == nil {
		return nil, false
	}
	encoded, err := json.Marshal(v)
	if err != nil || len(encoded) > MaxData {
		return nil, false
	}
	masked := json.RawMessage(g.mask(string(encoded)))
	return masked, json.Valid(masked)
}
