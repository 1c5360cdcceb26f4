package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// line is one line of the conversation file. Pointers distinguish "" from absent.
type line struct {
	Type        string          `json:"type"`
	Role        string          `json:"role,omitempty"`
	Text        *string         `json:"text,omitempty"`
	ID          string          `json:"id,omitempty"`
	Name        string          `json:"name,omitempty"`
	Input       json.RawMessage `json:"input,omitempty"`
	Output      *string         `json:"output,omitempty"`
	IsError     bool            `json:"isError,omitempty"`
	Interrupted bool            `json:"interrupted,omitempty"`
	Raw         string          `json:"raw,omitempty"`
	Time        string          `json:"time,omitempty"`
}

// Encode writes a message as lines of the conversation file, in the format that an Exec
// agent prints, each with the time when it was recorded ("time", RFC 3339). There are
// additional kinds of lines:
//
//	{"type":"tool_result","id":"call-1","interrupted":true,"isError":true,"output":"…"}
//	{"type":"output","text":"plain lines"}
//	{"type":"raw","raw":"the line that was not understood"}
//
// An interrupted result replaces the result of a tool that did not finish before the
// agent ended: the call may have been carried out in part, or not at all.
func Encode(w io.Writer, m *daemonv1.Message, at time.Time) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, l := range lines(m) {
		l.Time = at.UTC().Format(time.RFC3339Nano)
		if err := enc.Encode(l); err != nil {
			return fmt.Errorf("write the conversation: %w", err)
		}
	}
	return nil
}

// lines returns the lines of a message.
func lines(m *daemonv1.Message) []line {
	var out []line
	role := map[daemonv1.Role]string{
		daemonv1.Role_ROLE_USER:      "user",
		daemonv1.Role_ROLE_ASSISTANT: "assistant",
		daemonv1.Role_ROLE_SYSTEM:    "system",
		daemonv1.Role_ROLE_TOOL:      "tool",
	}[m.GetRole()]
	call, result := m.GetToolCall(), m.GetToolResult()
	understood := call != nil || result != nil || m.GetRaw() == "" || m.GetText() != ""
	if m.GetText() != "" || (call == nil && result == nil && m.GetRaw() == "") {
		text := m.GetText()
		if role == "" {
			out = append(out, line{Type: "output", Text: &text})
		} else {
			out = append(out, line{Type: "message", Role: role, Text: &text})
		}
	}
	if call != nil {
		input := json.RawMessage(call.GetInput())
		if !json.Valid(input) {
			input = nil
		}
		out = append(out, line{Type: "tool_call", ID: call.GetId(), Name: call.GetName(), Input: input})
	}
	if result != nil {
		text := result.GetOutput()
		out = append(out, line{Type: "tool_result", ID: result.GetCallId(), Output: &text,
			IsError: result.GetIsError(), Interrupted: result.GetInterrupted()})
	}
	if !understood {
		out = append(out, line{Type: "raw", Raw: m.GetRaw()})
	}
	return out
}

// Interrupted returns the result that Clew records for a tool call that had no result
// when the agent ended.
func Interrupted(callID string) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{
		CallId: callID, IsError: true, Interrupted: true,
		Output: "interrupted: the agent ended before this call was answered; it may have been carried out in part",
	}}
}
