package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/clew-dev/clew/internal/budget"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Exec is the adapter of agents that print Clew's own format. They are started exactly as
// the user's template says, and read the conversation themselves.
type Exec struct{}

// Executable returns nothing: the template names the command.
func (Exec) Executable() string { return "" }

// Files returns none.
func (Exec) Files(FilesRequest) map[string][]byte { return nil }

// Command adds nothing to the template.
func (Exec) Command(Start) Command { return Command{} }

// KnownErrors is false: a script's output about a test or a server says nothing about the
// model's API.
func (Exec) KnownErrors() bool { return false }

// HookComesFirst is false: Exec agents have no hook.
func (Exec) HookComesFirst() bool { return false }

// NewParser returns a stateless parser: each line is parsed independently.
func (e Exec) NewParser(ParserOptions) Parser { return execParser{} }

// StatePaths returns none: the whole home is kept.
func (Exec) StatePaths() []string { return nil }

// Session always returns fs.ErrNotExist.
func (Exec) Session(fs.FS, string) (Session, error) { return Session{}, fs.ErrNotExist }

// TokensInSession is false: there is no session.
func (Exec) TokensInSession() bool { return false }

// AsksBeforeTools is false: there is no hook.
func (Exec) AsksBeforeTools() bool { return false }

// execParser parses one run. It has no state.
type execParser struct{}

func (execParser) Line(line []byte) []Item         { return []Item{Exec{}.Parse(line)} }
func (execParser) Pending() bool                   { return false }
func (execParser) End() []Item                     { return nil }
func (execParser) Session() *daemonv1.AgentSession { return nil }
func (execParser) Outcome() Outcome                { return Outcome{} }
func (p execParser) Clone() Parser                 { return p }

// Parse parses one line in the format of the package comment.
func (Exec) Parse(line []byte) Item {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return output(line)
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(trimmed, &fields) != nil {
		return output(line)
	}
	var kind string
	if json.Unmarshal(fields["type"], &kind) != nil {
		return output(line)
	}
	delete(fields, "type")
	r := &reader{fields: fields}
	var item Item
	switch kind {
	case "message":
		item.Message = r.message()
	case "tool_call":
		item.Message = r.toolCall()
	case "tool_result":
		item.Message = r.toolResult()
	case "usage":
		item.Usage = r.usage()
	default:
		return output(line)
	}
	if r.err != nil {
		return Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Raw: Text(line)}}
	}
	if len(r.fields) > 0 && item.Message != nil {
		item.Message.Raw = Text(line)
	}
	return item
}

// output returns a line of plain output.
func output(line []byte) Item {
	text := Text(line)
	return Item{Output: &text}
}

// reader takes fields out of an object; the first invalid field sets err.
type reader struct {
	fields map[string]json.RawMessage
	err    error
}

// take decodes the field name into out, if it is there and not null.
func (r *reader) take(name string, out any) bool {
	raw, ok := r.fields[name]
	if !ok {
		return false
	}
	delete(r.fields, name)
	if string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, out); err != nil && r.err == nil {
		r.err = err
	}
	return true
}

// text takes an optional string.
func (r *reader) text(name string) string {
	var s string
	r.take(name, &s)
	return Text([]byte(s))
}

// required takes a string that must not be empty.
func (r *reader) required(name string) string {
	s := r.text(name)
	if s == "" && r.err == nil {
		r.err = errors.New(name + " is missing")
	}
	return s
}

// count takes an optional number that must be neither negative nor above the most.
func (r *reader) count(name string, most int64) int64 {
	var n int64
	r.take(name, &n)
	switch {
	case r.err != nil:
	case n < 0:
		r.err = errors.New(name + " is negative")
	case n > most:
		r.err = fmt.Errorf("%s is more than %d, which is more than one use of a model can be", name, most)
	}
	return n
}

// message reads a line of the type message.
func (r *reader) message() *daemonv1.Message {
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT}
	switch r.text("role") {
	case "", "assistant":
	case "user":
		m.Role = daemonv1.Role_ROLE_USER
	case "system":
		m.Role = daemonv1.Role_ROLE_SYSTEM
	default:
		r.err = errors.New("role must be assistant, user or system")
	}
	if _, ok := r.fields["text"]; !ok {
		r.err = errors.New("text is missing")
	}
	m.Text = r.text("text")
	return m
}

// toolCall reads a line of the type tool_call.
func (r *reader) toolCall() *daemonv1.Message {
	call := &daemonv1.ToolCall{Id: r.required("id"), Name: r.required("name"), Input: "{}"}
	var input json.RawMessage
	if r.take("input", &input) {
		call.Input = compact(input)
	}
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: call}
}

// toolResult reads a line of the type tool_result.
func (r *reader) toolResult() *daemonv1.Message {
	result := &daemonv1.ToolResult{CallId: r.required("id")}
	var raw json.RawMessage
	if r.take("output", &raw) {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			result.Output = Text([]byte(text))
		} else {
			result.Output = compact(raw)
		}
	}
	r.take("isError", &result.IsError)
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: result}
}

// usage reads a line of the type usage. One that no use of a model can be of is not understood: what it
// says would be spent for good.
func (r *reader) usage() *daemonv1.Usage {
	return &daemonv1.Usage{
		InputTokens:  r.count("inputTokens", budget.MostTokens),
		OutputTokens: r.count("outputTokens", budget.MostTokens),
		CostMicroUsd: r.count("costMicroUSD", budget.MostCost),
	}
}

// compact removes insignificant space from JSON. Invalid UTF-8 becomes U+FFFD, so that
// the result is still JSON.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return Text(raw)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
