package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// hookSeconds returns how long the agents wait for the hook before they run the tool anyway; 0 stands
// for what is enough for a checkpoint.
func hookSeconds(n int) int { return cmp.Or(n, 600) }

// HookCall is the tool call that a hook was run for.
type HookCall struct {
	// CallID is the call's id as in the agent's output; empty if the agent does not
	// pass it to the hook (Gemini CLI), or passes a different id (Codex).
	CallID string
	// Name is the tool's name, and Input its input as JSON, both as in the agent's
	// output.
	Name, Input string
}

// ParseHook parses what an agent writes to the standard input of the hook that Files
// configures.
func ParseHook(agentType v1alpha1.AgentType, stdin []byte) (HookCall, error) {
	var in struct {
		Event     string          `json:"hook_event_name"`
		ID        string          `json:"tool_use_id"`
		Name      string          `json:"tool_name"`
		Input     json.RawMessage `json:"tool_input"`
		QwenID    string          `json:"tool_call_id"`
		OpenID    string          `json:"callID"`
		OpenName  string          `json:"tool"`
		OpenInput json.RawMessage `json:"args"`
	}
	if err := json.Unmarshal(stdin, &in); err != nil {
		return HookCall{}, fmt.Errorf("the input of the hook of agent type %s is not JSON: %w", agentType, err)
	}
	c := HookCall{CallID: in.ID, Name: in.Name, Input: "{}"}
	input := in.Input
	switch agentType {
	case "ClaudeCode", "GeminiCLI":
	case "Codex":
		c.CallID, c.Name = "", codexToolName(in.Name)
	case "QwenCode":
		c.CallID = in.QwenID
	case "OpenCode":
		c.CallID, c.Name, input = in.OpenID, in.OpenName, in.OpenInput
	default:
		return HookCall{}, fmt.Errorf("agents of type %q have no hook", agentType)
	}
	if c.Name == "" {
		return HookCall{}, fmt.Errorf("the input of the hook of agent type %s names no tool", agentType)
	}
	c.CallID, c.Name = Text([]byte(c.CallID)), Text([]byte(c.Name))
	if len(input) > 0 && string(input) != "null" {
		c.Input = compact(input)
	}
	return c, nil
}

// shellWords quotes a command for a POSIX shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// jsonFile returns the content of a JSON file.
func jsonFile(v any) []byte {
	s, err := marshal(v)
	if err != nil {
		return []byte("{}\n") // cannot happen with maps of plain values
	}
	return []byte(s + "\n")
}
