package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// line is one line of the conversation's file. Pointers tell "" from absent.
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

// Encode writes a message as lines of the conversation's file: the lines an
// Exec agent prints, each with the time it was recorded at ("time", RFC 3339).
// Besides them there are
//
//	{"type":"tool_result","id":"call-1","interrupted":true,"isError":true,"output":"…"}
//	{"type":"output","text":"plain lines"}
//	{"type":"raw","raw":"the line that was not understood"}
//
// An interrupted result stands for a tool that never answered because the
// agent ended first: the call may have been carried out in part, or not at all.
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

// Interrupted is the answer that Clew gives in the place of a tool whose call
// the agent left open when it ended.
func Interrupted(callID string) *daemonv1.Message {
	return &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{
		CallId: callID, IsError: true, Interrupted: true,
		Output: "interrupted: the agent ended before this call was answered; it may have been carried out in part",
	}}
}
