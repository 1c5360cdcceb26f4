package agent_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func text(role daemonv1.Role, s, rawJSON string) agent.Item {
	return agent.Item{Message: &daemonv1.Message{Role: role, Text: s, Raw: rawJSON}}
}

func toolCall(id, name, input, rawJSON string) agent.Item {
	return agent.Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Raw: rawJSON,
		ToolCall: &daemonv1.ToolCall{Id: id, Name: name, Input: input}}}
}

func toolResult(id, output string, isError bool, rawJSON string) agent.Item {
	return agent.Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, Raw: rawJSON,
		ToolResult: &daemonv1.ToolResult{CallId: id, Output: output, IsError: isError}}}
}

const (
	assistant = daemonv1.Role_ROLE_ASSISTANT
	system    = daemonv1.Role_ROLE_SYSTEM
)

// Events that the recorded runs do not contain, based on the agents' documentation and
// other output.
func TestEvents(t *testing.T) {
	unknown := func(line string) []agent.Item { return []agent.Item{raw(line)} }
	tests := []struct {
		name, kind string
		lines      []string
		want       []agent.Item
	}{
		{"parallel calls in one message", "ClaudeCode", []string{
			`{"type":"assistant","message":{"id":"m1","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"Both."},{"type":"tool_use","id":"a","name":"Bash","input":{"command":"1"}},{"type":"tool_use","id":"b","name":"Read","input":{}}]}}`,
			`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"x"},{"type":"image","source":{}}]},{"type":"tool_result","tool_use_id":"a","content":"no","is_error":true}]}}`,
		}, []agent.Item{
			text(assistant, "", `{"type":"thinking","thinking":"hm"}`),
			text(assistant, "Both.", ""),
			toolCall("a", "Bash", `{"command":"1"}`, ""), toolCall("b", "Read", `{}`, ""),
			toolResult("b", "x\n"+`{"type":"image","source":{}}`, false, ""), toolResult("a", "no", true, ""),
		}},
		{"a subagent between messages of the main agent", "ClaudeCode", []string{
			`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"task","name":"Task","input":{}}]},"parent_tool_use_id":null}`,
			`{"type":"user","message":{"content":[{"type":"text","text":"Look around."}]},"parent_tool_use_id":"task"}`,
			`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"s1","name":"Grep","input":{}}]},"parent_tool_use_id":"task"}`,
			`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"s1","content":"found"}]},"parent_tool_use_id":"task"}`,
			`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"task","content":"report"}]},"parent_tool_use_id":null}`,
		}, []agent.Item{
			toolCall("task", "Task", `{}`, ""),
			text(system, "Look around.", `{"parent":"task"}`),
			toolCall("s1", "Grep", `{}`, `{"parent":"task"}`),
			toolResult("s1", "found", false, `{"parent":"task"}`),
			toolResult("task", "report", false, ""),
		}},
		{"usage counts once per message, and the result corrects it", "ClaudeCode", []string{
			`{"type":"system","subtype":"init","session_id":"s","model":"claude-sonnet-4-5-20250929"}`,
			`{"type":"assistant","message":{"id":"m1","model":"claude-sonnet-4-5-20250929","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":10,"cache_read_input_tokens":1000,"output_tokens":1}}}`,
			`{"type":"assistant","message":{"id":"m1","model":"claude-sonnet-4-5-20250929","content":[{"type":"text","text":"b"}],"usage":{"input_tokens":10,"cache_read_input_tokens":1000,"output_tokens":5}}}`,
			`{"type":"result","subtype":"success","result":"b","total_cost_usd":0.0001,"usage":{"input_tokens":10,"cache_read_input_tokens":1000,"output_tokens":50}}`,
			`{"type":"result","subtype":"success","result":"b","total_cost_usd":0.0003,"usage":{"input_tokens":4,"output_tokens":2}}`,
		}, []agent.Item{
			text(assistant, "a", ""),
			{Usage: &daemonv1.Usage{InputTokens: 1010, CachedInputTokens: 1000, OutputTokens: 1, CostMicroUsd: 345, Model: "claude-sonnet-4-5-20250929"}},
			text(assistant, "b", ""),
			{Usage: &daemonv1.Usage{OutputTokens: 4, CostMicroUsd: 60, Model: "claude-sonnet-4-5-20250929"}},
			{Usage: &daemonv1.Usage{OutputTokens: 45, CostMicroUsd: 100 - 345 - 60, Model: "claude-sonnet-4-5-20250929"}},
			{Usage: &daemonv1.Usage{InputTokens: 4, OutputTokens: 2, CostMicroUsd: 200, Model: "claude-sonnet-4-5-20250929"}},
		}},
		{"an error that is a message and a result", "ClaudeCode", []string{
			`{"type":"assistant","message":{"id":"x","model":"<synthetic>","content":[{"type":"text","text":"API Error: 500"}]}}`,
			`{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500"}`,
			`{"type":"result","subtype":"error_max_turns","is_error":true,"errors":["too many turns"]}`,
			`{"type":"result","subtype":"error_during_execution","is_error":true}`,
		}, []agent.Item{
			text(system, "API Error: 500", ""), text(system, "too many turns", ""),
			text(system, "Claude Code ended with error_during_execution.", ""),
		}},
		{"text that only the result contains", "ClaudeCode", []string{
			`{"type":"system","subtype":"init","session_id":"s"}`, `{"type":"result","subtype":"success","result":"Compacted."}`,
		}, []agent.Item{text(assistant, "Compacted.", "")}},
		{"the prompt and parts of messages are not repeated", "ClaudeCode", []string{
			`{"type":"user","message":{"role":"user","content":"the prompt"}}`,
			`{"type":"user","message":{"role":"user","content":"[Request interrupted]"}}`,
			`{"type":"stream_event","event":{"type":"content_block_delta"}}`,
			`{"type":"system","subtype":"thinking_tokens","estimated_tokens":3}`,
		}, []agent.Item{text(system, "[Request interrupted]", "")}},
		{"unknown", "ClaudeCode", []string{`{"type":"system","subtype":"compact_boundary"}`}, unknown(`{"type":"system","subtype":"compact_boundary"}`)},
		{"invalid", "ClaudeCode", []string{`{"type":"assistant","message":"x"}`}, unknown(`{"type":"assistant","message":"x"}`)},
		{"an unknown block", "ClaudeCode", []string{`{"type":"assistant","message":{"content":[{"type":"text","text":"a"},{"type":"hologram"}]}}`},
			[]agent.Item{text(assistant, "a", ""), raw(`{"type":"hologram"}`)}},
		{"not JSON", "ClaudeCode", []string{`Warning: hello`}, []agent.Item{out("Warning: hello")}},

		{"items of several kinds", "Codex", []string{
			`{"type":"thread.started","thread_id":"T"}`,
			`{"type":"item.completed","item":{"id":"item_0","type":"reasoning","text":"hm"}}`,
			`{"type":"item.started","item":{"id":"item_1","type":"mcp_tool_call","server":"docs","tool":"search","arguments":{"q":"x"},"status":"in_progress"}}`,
			`{"type":"item.started","item":{"id":"item_2","type":"command_execution","command":"false","status":"in_progress"}}`,
			`{"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"false","aggregated_output":"oh\n","exit_code":1,"status":"failed"}}`,
			`{"type":"item.completed","item":{"id":"item_1","type":"mcp_tool_call","server":"docs","tool":"search","result":{"content":[{"type":"text","text":"hit"}]},"status":"completed"}}`,
			`{"type":"item.completed","item":{"id":"item_3","type":"file_change","changes":[{"path":"a","kind":"add"}],"status":"completed"}}`,
			`{"type":"item.completed","item":{"id":"item_4","type":"web_search","query":"clew"}}`,
			`{"type":"item.updated","item":{"id":"item_5","type":"todo_list","items":[]}}`,
			`{"type":"item.completed","item":{"id":"item_6","type":"error","message":"no metadata"}}`,
			"{\"type\":\"item.completed\",\"item\":{\"id\":\"item_7\",\"type\":\"error\",\"message\":\"`--dangerously-bypass-hook-trust` is enabled.\"}}",
			`{"type":"error","message":"stream broke"}`,
			`{"type":"turn.failed","error":{"message":"stream broke"}}`,
		}, []agent.Item{
			text(assistant, "", `{"type":"thinking","thinking":"hm"}`),
			toolCall("T/5/item_1", "mcp__docs__search", `{"q":"x"}`, ""),
			toolCall("T/5/item_2", "command_execution", `{"command":"false"}`, ""),
			toolResult("T/5/item_2", "oh\n[exit code 1]", true, ""),
			toolResult("T/5/item_1", "hit", false, ""),
			toolCall("T/5/item_3", "file_change", `{"changes":[{"path":"a","kind":"add"}]}`, ""), toolResult("T/5/item_3", "completed", false, ""),
			toolCall("T/5/item_4", "web_search", `{"query":"clew"}`, ""), toolResult("T/5/item_4", "", false, ""),
			raw(`{"type":"item.updated","item":{"id":"item_5","type":"todo_list","items":[]}}`),
			text(system, "no metadata", ""),
			out("`--dangerously-bypass-hook-trust` is enabled."),
			text(system, "stream broke", ""),
		}},

		{"errors and unexpected text", "GeminiCLI", []string{
			`{"type":"message","role":"user","content":"the prompt"}`,
			`{"type":"message","role":"user","content":"another"}`,
			`{"type":"tool_use","tool_name":"t","tool_id":"1","parameters":{"a":1}}`,
			`{"type":"tool_result","tool_id":"1","status":"error","error":{"type":"x","message":"no such file"}}`,
			`{"type":"error","severity":"warning","message":"loop"}`,
			`{"type":"result","status":"error","error":{"message":"quota"},"stats":{"total_tokens":30,"input_tokens":10,"output_tokens":5,"cached":4}}`,
			`{"type":"other"}`,
		}, []agent.Item{
			text(system, "another", ""), toolCall("1", "t", `{"a":1}`, ""), toolResult("1", "no such file", true, ""),
			text(system, "loop", ""), text(system, "quota", ""),
			{Usage: &daemonv1.Usage{InputTokens: 10, CachedInputTokens: 4, OutputTokens: 20}, WholeRun: true}, raw(`{"type":"other"}`),
		}},

		{"thoughts, failures and costs", "OpenCode", []string{
			`{"type":"reasoning","sessionID":"ses_1","part":{"text":"hm"}}`,
			`{"type":"tool_use","sessionID":"ses_1","part":{"tool":"edit","callID":"1","state":{"status":"error","input":{"a":1},"error":"denied"}}}`,
			`{"type":"step_finish","sessionID":"ses_1","part":{"tokens":{"input":10,"output":5,"reasoning":3,"cache":{"read":4,"write":2}},"cost":0.01}}`,
			`{"type":"error","sessionID":"ses_1","error":{"name":"APIError","data":{"message":"gone"}}}`,
			`{"type":"tool_use","sessionID":"ses_1","part":{"tool":"edit","callID":"2","state":{"status":"running"}}}`,
		}, []agent.Item{
			text(assistant, "", `{"type":"thinking","thinking":"hm"}`),
			toolCall("1", "edit", `{"a":1}`, ""), toolResult("1", "denied", true, ""),
			{Usage: &daemonv1.Usage{InputTokens: 16, CachedInputTokens: 4, OutputTokens: 8, CostMicroUsd: 10000}},
			text(system, "gone", ""),
			raw(`{"type":"tool_use","sessionID":"ses_1","part":{"tool":"edit","callID":"2","state":{"status":"running"}}}`),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.kind+" "+tt.name, func(t *testing.T) {
			p := adapter(t, tt.kind).NewParser(agent.ParserOptions{Prompt: "the prompt", Run: "5"})
			var items []agent.Item
			for _, l := range tt.lines {
				items = append(items, p.Line([]byte(l))...)
			}
			items = append(items, p.End()...)
			if d := cmp.Diff(tt.want, items, protocmp.Transform()); d != "" {
				t.Errorf("items (-want +got):\n%s", d)
			}
		})
	}
}

// A model has the user's price, or else the list price, or else none.
func TestPrices(t *testing.T) {
	tests := []struct {
		model string
		want  int64 // cost of a million input tokens, a fifth of them cached, and a million output tokens
	}{
		{"claude-opus-4-5-20251101", 4_000_000 + 100_000 + 25_000_000},
		{"claude-opus-5-5[1m]", 3_200_000 + 40_000 + 20_000_000},
		{"us.anthropic.claude-sonnet-4-5-20250929-v1:0", 2_400_000 + 60_000 + 15_000_000},
		{"openai/gpt-5-mini", 200_000 + 5_000 + 2_000_000},
		{"gpt-5-nano", 0},
		{"claude-opus-4-9", 0},
		{"stub-model", 0},
		{"house-model-7b", 1_000_000 + 2_000_000},
		{"house-model-7b-fast", 5_000_000 + 6_000_000},
	}
	for _, tt := range tests {
		p := agent.OpenCode{}.NewParser(agent.ParserOptions{Model: tt.model, Prices: map[string]daemonapi.Price{
			"house-": {Input: 1_000_000, Output: 2_000_000}, "house-model-7b-fast": {Input: 5_000_000, Output: 6_000_000},
		}})
		items := p.Line([]byte(`{"type":"step_finish","part":{"tokens":{"input":800000,"output":1000000,"cache":{"read":200000}},"cost":0}}`))
		if got := items[0].Usage.GetCostMicroUsd(); got != tt.want {
			t.Errorf("cost with %s: got %d, want %d", tt.model, got, tt.want)
		}
	}
}
