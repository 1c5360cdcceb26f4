// Package agent knows how each kind of coding agent speaks: it turns the lines
// an agent prints into the messages, tool calls and token counts that Clew
// records. It does no I/O and keeps no state, and what it reads is untrusted:
// a line that is not understood is kept as it is, never dropped.
//
// # The Exec agent's lines
//
// An agent of type Exec is any command. Of the lines on its standard output,
// JSON objects whose "type" is one of these are understood:
//
//	{"type":"message","role":"assistant","text":"I will look at the tests first."}
//	{"type":"tool_call","id":"call-1","name":"shell","input":{"command":"go test ./..."}}
//	{"type":"tool_result","id":"call-1","output":"ok","isError":false}
//	{"type":"usage","inputTokens":1200,"outputTokens":80,"costMicroUSD":5400}
//
// role is assistant (the default), user or system. input is any JSON value and
// may be left out. output is text; another JSON value is kept as its JSON.
// isError may be left out. The numbers of usage are whole, not negative, and
// are added to the task's totals; each may be left out. Fields beyond these are
// kept with the message.
//
// Every other line is plain output. It is recorded too, several lines together,
// but is no message of the conversation. A line of one of the four types whose
// fields are wrong (a tool call without an id, say) is recorded as it is,
// marked as not understood.
//
// The agent finds the conversation so far, in the same lines, in the file that
// the environment variable CLEW_CONVERSATION names (see Encode).
package agent

import (
	"fmt"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Adapter reads what one kind of agent prints.
type Adapter interface {
	// Parse reads one line, without its line end.
	Parse(line []byte) Item
}

// Item is what one line says: exactly one field is set.
type Item struct {
	// Message is a message, a tool call, a tool's answer, or a line that was not
	// understood (Raw).
	Message *daemonv1.Message
	// Usage adds to the totals.
	Usage *daemonv1.Usage
	// Output is a line of plain output, valid UTF-8 without NUL.
	Output *string
}

// For returns the adapter of an agent type, a value of v1alpha1.AgentType.
func For(agentType string) (Adapter, error) {
	switch agentType {
	case "Exec", "":
		return Exec{}, nil
	default:
		return nil, fmt.Errorf("this daemon knows no agent of type %q: use an image of Clew's that is as new as the manager", agentType)
	}
}
