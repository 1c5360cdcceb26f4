package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// hookSeconds is how long the agents wait for the hook; then they run the tool.
const hookSeconds = 600

// HookCall is the tool call that a hook was run for.
type HookCall struct {
	// CallID is the call's id as the agent's output names it; empty where the
	// agent does not tell the hook (Gemini CLI), or names it otherwise there
	// (Codex).
	CallID string
	// Name and Input are the tool's name and its input as JSON, as in the
	// agent's output.
	Name, Input string
}

// ParseHook reads what an agent writes to the hook's standard input: the hook
// that Files configures.
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
		return HookCall{}, fmt.Errorf("the agent of type %s did not tell the hook of a tool call in JSON: %w", agentType, err)
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
		return HookCall{}, fmt.Errorf("the agent of type %s did not tell the hook which tool it is to run", agentType)
	}
	c.CallID, c.Name = Text([]byte(c.CallID)), Text([]byte(c.Name))
	if len(input) > 0 && string(input) != "null" {
		c.Input = compact(input)
	}
	return c, nil
}

// shellWords writes a command for a POSIX shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// jsonFile is a file of settings.
func jsonFile(v any) []byte {
	s, err := marshal(v)
	if err != nil {
		return []byte("{}\n") // not possible with maps of plain values
	}
	return []byte(s + "\n")
}
