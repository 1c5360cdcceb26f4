package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// Call is the call of a supervisor's tool.
type Call struct {
	Tool v1alpha1.AgentTool
	// About names what the call is about, for people: a task, a phase, or nothing.
	About string
	// Arguments are canonical (see toolcall.Canonical), without the call's id.
	Arguments []byte
	// ID was given by the agent; empty for none.
	ID string
}

// IsSupervisors reports whether a tool is one that only a supervisor can have.
func IsSupervisors(tool v1alpha1.AgentTool) bool {
	return slices.Contains(v1alpha1.SupervisorTools(), tool)
}

// steer returns a tool of a supervisor with a typed input. parts returns what a call is about, and
// the field of the input that holds the call's id; nil if there is none.
func steer[In any](description mcp.Tool, parts func(*In) (about string, id *string)) tool {
	return define(description, func(a Answerer, ctx context.Context, in In) (Answer, error) {
		call := Call{Tool: v1alpha1.AgentTool(description.Name)}
		about, id := parts(&in)
		call.About = about
		if id != nil { // it is no part of what is wished
			call.ID, *id = *id, ""
		}
		if err := toolcall.CheckID(call.ID); err != nil {
			return Answer{}, Refuse("Nothing was done: %s.", err)
		}
		encoded, err := json.Marshal(in)
		if err == nil {
			call.Arguments, err = toolcall.Canonical(encoded)
		}
		if err != nil {
			return Answer{}, fmt.Errorf("encode the arguments of %s: %w", call.Tool, err)
		}
		if len(call.Arguments) > toolcall.MaxArguments {
			return Answer{}, Refuse("Nothing was done: the call has %d bytes, and may have %d. Put long material into a file of the repository, and name it in the prompt.", len(call.Arguments), toolcall.MaxArguments)
		}
		return a.Call(ctx, call)
	})
}

// reads returns the annotations of a tool that changes nothing.
func reads() *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()}
}

// changes returns those of a tool that changes something, and loses nothing: what a task had is in
// its checkpoints and its conversation.
func changes() *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{DestructiveHint: no(), OpenWorldHint: no()}
}

// named returns those of a tool that makes something with a name, once.
func named() *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()}
}
