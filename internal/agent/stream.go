package agent

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// The CLIs print one JSON object per line, with a "type". Their parsers have in common:
//
//   - A line that is not a JSON object is plain output (Item.Output).
//   - An object that is not understood is a message of the role OUTPUT with the
//     line in Raw: an unknown type, or a known one whose fields are wrong.
//   - Events that only frame others (a turn or a step starts) give no item.
//   - A model's thought is a message of the assistant without text; Raw contains
//     the JSON of the thought, {"type":"thinking","thinking":"…"}. So it is
//     recorded, but not mistaken for something that was said.
//   - Messages of the CLI itself (an error, a notice) have the role SYSTEM, and so
//     has text that it prints as the user's but that is not the prompt. The role
//     USER is for what people asked.
//   - For an event of a subagent, Raw contains {"parent":"id of the call that
//     started it"}.

// event decodes a line into out. If the line is not an event, it returns false and the
// items of the line.
func event(line []byte, out any) ([]Item, bool) {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(trimmed) {
		return []Item{output(line)}, false
	}
	if json.Unmarshal(trimmed, out) != nil {
		return []Item{unknown(line)}, false
	}
	return nil, true
}

// unknown returns a line that is not understood.
func unknown(line []byte) Item {
	return Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Raw: Text(line)}}
}

// textItem returns a text message.
func textItem(role daemonv1.Role, text, raw string) Item {
	return Item{Message: &daemonv1.Message{Role: role, Text: Text([]byte(text)), Raw: raw}}
}

// notice returns a message of the CLI itself.
func notice(text string) Item {
	return textItem(daemonv1.Role_ROLE_SYSTEM, text, "")
}

// thought returns a model's thought, without its signature.
func thought(text string) Item {
	raw, err := marshal(struct {
		Type     string `json:"type"`
		Thinking string `json:"thinking"`
	}{"thinking", text})
	if err != nil {
		raw = text
	}
	return Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Raw: raw}}
}

// call returns a tool call. input is any JSON value; empty input becomes an empty object.
func call(id, name string, input json.RawMessage, raw string) Item {
	c := &daemonv1.ToolCall{Id: Text([]byte(id)), Name: Text([]byte(name)), Input: "{}"}
	if len(input) > 0 && string(input) != "null" {
		c.Input = compact(input)
	}
	return Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: c, Raw: raw}}
}

// result returns the result of a tool call.
func result(id, output string, isError bool, raw string) Item {
	return Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, Raw: raw, ToolResult: &daemonv1.ToolResult{
		CallId: Text([]byte(id)), Output: Text([]byte(output)), IsError: isError,
	}}}
}

// marshal encodes JSON without escapes for HTML.
func marshal(v any) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// count is a number of tokens as agents print it. An invalid number counts as zero, so
// that a message is not lost because of its usage.
type count int64

// maxCount limits a count; no run uses as many tokens.
const maxCount = 1 << 40

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (c *count) UnmarshalJSON(b []byte) error {
	var f float64
	ok := json.Unmarshal(b, &f) == nil && f > 0
	*c = 0
	if ok {
		*c = count(min(f, maxCount))
	}
	return nil
}

// dollars is an amount of US dollars as agents print it.
type dollars float64

// micro returns the amount in millionths of a US dollar.
func (d dollars) micro() int64 {
	f := float64(d)
	if math.IsNaN(f) || f <= 0 {
		return 0
	}
	return int64(math.Round(min(f, 1e6) * 1e6))
}

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (d *dollars) UnmarshalJSON(b []byte) error {
	var f float64
	if json.Unmarshal(b, &f) != nil {
		f = 0
	}
	*d = dollars(f)
	return nil
}

// joinTexts joins the parts of a content that is a string or a list of parts. A part
// that is not text is kept as its JSON.
func joinTexts(content json.RawMessage) string {
	var s string
	if len(content) == 0 || string(content) == "null" {
		return ""
	}
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil {
		return compact(content)
	}
	var out []string
	for _, p := range parts {
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(p, &part) == nil && part.Text != nil && (part.Type == "text" || part.Type == "") {
			out = append(out, *part.Text)
		} else {
			out = append(out, compact(p))
		}
	}
	return strings.Join(out, "\n")
}

// addUsage returns a usage as items, none if it is zero.
func addUsage(u *daemonv1.Usage) []Item {
	if u.GetInputTokens() == 0 && u.GetOutputTokens() == 0 && u.GetCostMicroUsd() == 0 {
		return nil
	}
	return []Item{{Usage: u}}
}

// parent returns the Raw of a subagent's message, which names the call that started it.
func parent(id string) string {
	if id == "" {
		return ""
	}
	raw, err := marshal(struct {
		Parent string `json:"parent"`
	}{Text([]byte(id))})
	if err != nil {
		return ""
	}
	return raw
}

// samePrompt reports whether a text of the agent repeats its prompt.
func samePrompt(text, prompt string) bool {
	return prompt != "" && (text == prompt || strings.TrimSpace(text) == strings.TrimSpace(prompt))
}

// cloneSession copies a session; nil stays nil.
func cloneSession(s *daemonv1.AgentSession) *daemonv1.AgentSession {
	if s == nil {
		return nil
	}
	return proto.Clone(s).(*daemonv1.AgentSession)
}
