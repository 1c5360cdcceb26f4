package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Exec is the adapter of agents that print Clew's own lines. It is started as
// the user's template says, and reads the conversation by itself.
type Exec struct{}

// Executable is none: the template names the command.
func (Exec) Executable() string { return "" }

// Files are none.
func (Exec) Files(FilesRequest) map[string][]byte { return nil }

// Command adds nothing.
func (Exec) Command(Start) Command { return Command{} }

// WordsTell is false: what a script prints of a test, or of a server that it
// asked, is no word of the model's API.
func (Exec) WordsTell() bool { return false }

// HookComesFirst is never asked.
func (Exec) HookComesFirst() bool { return false }

// NewParser reads each line by itself.
func (e Exec) NewParser(ParserOptions) Parser { return execParser{} }

// StatePaths are none: all of the home is kept.
func (Exec) StatePaths() []string { return nil }

// Session is never there.
func (Exec) Session(fs.FS, string) (Session, error) { return Session{}, fs.ErrNotExist }

// TokensInSession does not hold: it has no session.
func (Exec) TokensInSession() bool { return false }

// BeforeTools is never asked.
func (Exec) BeforeTools() bool { return false }

type execParser struct{}

func (execParser) Line(line []byte) []Item         { return []Item{Exec{}.Parse(line)} }
func (execParser) Pending() bool                   { return false }
func (execParser) End() []Item                     { return nil }
func (execParser) Session() *daemonv1.AgentSession { return nil }
func (execParser) Outcome() Outcome                { return Outcome{} }
func (p execParser) Clone() Parser                 { return p }

// Parse reads one line as the package comment says.
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

func output(line []byte) Item {
	text := Text(line)
	return Item{Output: &text}
}

// reader takes fields out of an object; the first that is wrong sets err.
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

func (r *reader) text(name string) string {
	var s string
	r.take(name, &s)
	return Text([]byte(s))
}

func (r *reader) required(name string) string {
	s := r.text(name)
	if s == "" && r.err == nil {
		r.err = errors.New(name + " is missing")
	}
	return s
}

func (r *reader) count(name string) int64 {
	var n int64
	r.take(name, &n)
	if n < 0 && r.err == nil {
		r.err = errors.New(name + " is negative")
	}
	return n
}

func (r *reader) message() *daemonv1.Message {
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT}
	switch r.text("role") {
	case "", "assistant":
	case "user":
		m.Role = daemonv1.Role_ROLE_USER
	case "system":
		m.Role = daemonv1.Role_ROLE_SYSTEM
	default:
		r.err = errors.New("role is none of assistant, user and system")
	}
	if _, ok := r.fields["text"]; !ok {
		r.err = errors.New("text is missing")
	}
	m.Text = r.text("text")
	return m
}

func (r *reader) toolCall() *daemonv1.Message {
	call := &daemonv1.ToolCall{Id: r.required("id"), Name: r.required("name"), Input: "{}"}
	var input json.RawMessage
	if r.take("input", &input) {
		call.Input = compact(input)
	}
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: call}
}

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

func (r *reader) usage() *daemonv1.Usage {
	return &daemonv1.Usage{
		InputTokens:  r.count("inputTokens"),
		OutputTokens: r.count("outputTokens"),
		CostMicroUsd: r.count("costMicroUSD"),
	}
}

// compact is valid JSON without needless space, as valid UTF-8: what is none in a
// string becomes U+FFFD, so that it stays JSON.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return Text(raw)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
