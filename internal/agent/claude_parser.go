package agent

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// claudeParser parses one run. The output contains usage twice: with each message, where
// the output tokens are counted before the message is complete, and in the result at the
// end, with the cost. The first is added at once, so that the usage of a killed run is
// counted too. The result then adds the difference, if the parser has seen the beginning
// of the run and so knows what was added.
type claudeParser struct {
	kind    v1alpha1.AgentType
	program string // for messages
	prompt  string
	prices  prices
	model   string
	session *daemonv1.AgentSession
	outcome

	begun    bool
	spoken   [sha256.Size]byte // hash of the assistant's last text
	counted  []claudeCounted   // usage of the last messages, newest last
	added    totals            // what was added since the last result
	lastCost int64             // the total cost in the last result
}

func (p *claudeParser) Pending() bool { return false }

func (p *claudeParser) End() []Item { return nil }

func (p *claudeParser) Session() *daemonv1.AgentSession { return cloneSession(p.session) }

func (p *claudeParser) Clone() Parser {
	c := *p
	c.session = cloneSession(p.session)
	c.counted = slices.Clone(p.counted)
	return &c
}

func (p *claudeParser) Line(line []byte) []Item {
	var e claudeEvent
	if items, ok := event(line, &e); !ok {
		return items
	}
	switch {
	case e.Type == "system" && e.Subtype == "init":
		p.init(e)
		return nil
	case e.Type == "system" && e.Subtype == "api_retry":
		return p.retry(e)
	case e.progress():
		return nil
	case e.Type == "assistant" && e.Message != nil:
		return p.assistant(e, line)
	case e.Type == "user" && e.Message != nil:
		return p.user(e, line)
	case e.Type == "result":
		return p.result(e)
	}
	return []Item{unknown(line)}
}

// retry reports an API error after which Claude Code tries again.
func (p *claudeParser) retry(e claudeEvent) []Item {
	f := failure(e.Status, e.Error.kind)
	f.Message = strings.TrimSpace(fmt.Sprintf("the model's API answers with status %d %s", e.Status, e.Error.kind))
	p.recordError(f)
	return []Item{output(fmt.Appendf(nil, "%s; %s tries again (%d of %d) after %d ms", f.Message, p.program, e.RetryTry, e.RetryOf, e.RetryDelay))}
}

// init records the session and the model of the run.
func (p *claudeParser) init(e claudeEvent) {
	p.begun = true
	if e.Model != "" {
		p.model = Text([]byte(e.Model))
	}
	if e.SessionID != "" {
		p.session = &daemonv1.AgentSession{
			Agent: string(p.kind), Id: Text([]byte(e.SessionID)), Version: Text([]byte(cmp.Or(e.Version, e.Qwen))), Model: p.model,
		}
	}
}

// assistant returns the items of a message of the assistant, and its usage.
func (p *claudeParser) assistant(e claudeEvent, line []byte) []Item {
	blocks, ok := claudeBlocks(e.Message.Content)
	if !ok {
		return []Item{unknown(line)}
	}
	role, raw := daemonv1.Role_ROLE_ASSISTANT, parent(e.Parent)
	p.recordProgress()
	if e.Message.Model == "<synthetic>" {
		role = daemonv1.Role_ROLE_SYSTEM // an error or a notice of the CLI
	}
	var items []Item
	for _, b := range blocks {
		switch {
		case b.Type == "text" && b.Text != "":
			message, failed := p.apiError(b.Text)
			if failed {
				role = daemonv1.Role_ROLE_SYSTEM
			}
			items = append(items, textItem(role, b.Text, raw))
			if failed {
				p.recordError(claudeFailure(e, message))
			} else if e.Error.kind != "" {
				p.recordError(claudeFailure(e, b.Text))
			}
			if raw == "" {
				p.spoken = sha256.Sum256([]byte(b.Text))
			}
		case b.Type == "text":
		case b.Type == "thinking":
			if b.Thinking != "" {
				items = append(items, thought(b.Thinking))
			}
		case (b.Type == "tool_use" || b.Type == "server_tool_use" || b.Type == "mcp_tool_use") && b.ID != "" && b.Name != "":
			items = append(items, call(b.ID, b.Name, b.Input, raw))
		case strings.HasSuffix(b.Type, "_tool_result") && b.ToolUseID != "":
			items = append(items, result(b.ToolUseID, joinTexts(b.Content), b.IsError, raw))
		default:
			items = append(items, unknown(b.raw))
		}
	}
	return append(items, p.usage(e.Message)...)
}

// user returns the items of a message of the user: results of tools, and text.
func (p *claudeParser) user(e claudeEvent, line []byte) []Item {
	blocks, ok := claudeBlocks(e.Message.Content)
	if !ok {
		return []Item{unknown(line)}
	}
	raw := parent(e.Parent)
	var items []Item
	for _, b := range blocks {
		switch {
		case b.Type == "tool_result" && b.ToolUseID != "":
			items = append(items, result(b.ToolUseID, joinTexts(b.Content), b.IsError, raw))
		case b.Type == "text" && raw == "" && samePrompt(b.Text, p.prompt):
		case b.Type == "text" && b.Text != "":
			items = append(items, textItem(daemonv1.Role_ROLE_SYSTEM, b.Text, raw))
		case b.Type == "text":
		default:
			items = append(items, unknown(b.raw))
		}
	}
	return items
}
