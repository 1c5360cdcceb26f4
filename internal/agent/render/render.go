// Package render renders a conversation as text for a model: for an agent that cannot
// resume its own session, or whose session lacks the last steps.
//
// The text is never longer than the limits allow, is valid UTF-8 if the conversation is,
// and contains the newest entries: if something must be left out, the oldest entries are.
// Each line of a message is indented by two spaces, so that no message can imitate the
// text around it. The functions are pure: equal entries and limits give equal texts.
package render

import (
	"fmt"
	"strings"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// inputBytes is how much of a tool's input is rendered.
const inputBytes = 2000

// Conversation renders the conversation so far. It returns "" if nothing can be rendered
// within the limits.
func Conversation(entries []*daemonv1.ConversationEntry, limits daemonapi.ContextLimits) string {
	return render(entries, limits,
		"Clew: you have worked on this task before, in a session that no longer exists. "+
			"This is the conversation so far, oldest first. The tool calls in it have already been run; do not run them again.\n",
		"Clew: this is the end of the conversation so far.\n")
}

// Missing renders the steps that a session lacks. It returns "" if there are none.
func Missing(entries []*daemonv1.ConversationEntry, limits daemonapi.ContextLimits) string {
	return render(entries, limits,
		"Clew: these steps have already been carried out since your session was last saved; do not repeat them:\n",
		"Clew: these are all the steps that were missing from your session.\n")
}

// render renders entries between a head and a tail, within the limits.
func render(entries []*daemonv1.ConversationEntry, limits daemonapi.ContextLimits, head, tail string) string {
	budget := int(limits.Bytes) - len(head) - len(tail)
	if budget <= 0 {
		return ""
	}
	c := collect(entries)
	summaryBudget := 0
	if limits.Summary {
		summaryBudget = min(3000, budget/4)
	}
	blocks, rest := c.blocks(limits, budget-summaryBudget)
	summary := ""
	if limits.Summary {
		summary = rest.summary(summaryBudget)
	}
	if len(blocks) == 0 && summary == "" {
		return ""
	}
	return head + summary + strings.Join(blocks, "") + tail
}

// step is a message, or a call with its result. It is rendered or left out as a whole.
type step struct {
	message *daemonv1.Message
	result  *daemonv1.ToolResult
}

// conversation holds the steps to render.
type conversation struct {
	steps []step
	first string // the user's first message
}

// collect joins calls with their results. It skips plain output, lines that were not
// understood, and thoughts.
func collect(entries []*daemonv1.ConversationEntry) conversation {
	var c conversation
	calls := map[string]int{}
	for _, e := range entries {
		m := e.GetMessage()
		switch {
		case m.GetToolResult() != nil:
			id := m.GetToolResult().GetCallId()
			if at, ok := calls[id]; ok {
				c.steps[at].result = m.GetToolResult()
				delete(calls, id)
			} else {
				c.steps = append(c.steps, step{message: m, result: m.GetToolResult()})
			}
		case m.GetToolCall() != nil:
			calls[m.GetToolCall().GetId()] = len(c.steps)
			c.steps = append(c.steps, step{message: m})
		case m.GetRole() == daemonv1.Role_ROLE_OUTPUT || m.GetText() == "":
		default:
			if c.first == "" && m.GetRole() == daemonv1.Role_ROLE_USER {
				c.first = m.GetText()
			}
			c.steps = append(c.steps, step{message: m})
		}
	}
	return c
}

// blocks renders the newest steps within the limits, oldest first, and returns what was
// left out.
func (c conversation) blocks(limits daemonapi.ContextLimits, budget int) ([]string, left) {
	rest := left{first: c.first}
	var blocks []string
	messages, calls, full := int(limits.Messages), int(limits.ToolCalls), false
	for i := len(c.steps) - 1; i >= 0; i-- {
		s := c.steps[i]
		of := &messages
		if s.isCall() {
			of = &calls
		}
		if full || *of <= 0 {
			rest.add(s)
			continue
		}
		block := s.text(limits)
		if len(block) > budget && len(blocks) == 0 {
			// The newest step is rendered even if only in part.
			block = clip.Bytes(block, budget-1) + "\n"
		}
		if len(block) > budget || block == "\n" {
			full = true
			rest.add(s)
			continue
		}
		*of--
		budget -= len(block)
		blocks = append(blocks, block)
		rest.firstShown = rest.firstShown || (s.message.GetRole() == daemonv1.Role_ROLE_USER && s.message.GetText() == c.first)
	}
	for i, j := 0, len(blocks)-1; i < j; i, j = i+1, j-1 {
		blocks[i], blocks[j] = blocks[j], blocks[i]
	}
	return blocks, rest
}

// isCall reports whether the step is a tool call or a result.
func (s step) isCall() bool {
	return s.message.GetToolCall() != nil || s.result != nil
}

// text renders the step.
func (s step) text(limits daemonapi.ContextLimits) string {
	var b strings.Builder
	switch call := s.message.GetToolCall(); {
	case call != nil:
		if text := s.message.GetText(); text != "" {
			fmt.Fprintf(&b, "Assistant:\n%s", indent(whole(text, s.message.GetTextPieces())))
		}
		fmt.Fprintf(&b, "Tool call %s:\n%s", name(call.GetName()), indent(part(call.GetInput(), call.GetInputPieces(), inputBytes)))
	case s.result == nil:
		fmt.Fprintf(&b, "%s:\n%s", who(s.message.GetRole()), indent(whole(s.message.GetText(), s.message.GetTextPieces())))
		return b.String()
	}
	switch r := s.result; {
	case r == nil:
		b.WriteString("Result: none; the tool may have run in part, or not at all.\n")
	case r.GetInterrupted():
		b.WriteString("Result: none, the call was interrupted; the tool may have run in part, or not at all.\n")
	default:
		kind := "Result"
		if r.GetIsError() {
			kind = "Result, an error"
		}
		fmt.Fprintf(&b, "%s:\n%s", kind, indent(part(r.GetOutput(), r.GetOutputPieces(), int(limits.ToolResultBytes))))
	}
	return b.String()
}

// who returns the heading of a role.
func who(role daemonv1.Role) string {
	switch role {
	case daemonv1.Role_ROLE_USER:
		return "User"
	case daemonv1.Role_ROLE_ASSISTANT:
		return "Assistant"
	default:
		return "Note"
	}
}

// name makes a tool's name fit for a heading: without control characters, and short.
func name(s string) string {
	return clip.Bytes(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s), 200)
}

// whole renders a text and says so if it is only the beginning of a longer one.
func whole(text string, p *daemonv1.Pieces) string {
	if p.GetBytes() <= int64(len(text)) {
		return text
	}
	return fmt.Sprintf("%s\n[the first %d of %d bytes]", text, len(text), p.GetBytes())
}

// part renders at most limit bytes of a text, and says so if that is not all.
func part(text string, p *daemonv1.Pieces, limit int) string {
	total := max(int64(len(text)), p.GetBytes())
	shown := clip.Bytes(text, limit)
	if int64(len(shown)) == total {
		return shown
	}
	if shown == "" {
		return fmt.Sprintf("[%d bytes, not shown]", total)
	}
	return fmt.Sprintf("%s\n[the first %d of %d bytes]", shown, len(shown), total)
}

// indent puts two spaces before each line, and ends the last line.
func indent(text string) string {
	text = strings.TrimSuffix(strings.ReplaceAll(text, "\r", "\n"), "\n")
	if text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}
