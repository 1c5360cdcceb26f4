package agent_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func out(s string) agent.Item { return agent.Item{Output: &s} }

func raw(s string) agent.Item {
	return agent.Item{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Raw: s}}
}

func TestExecParse(t *testing.T) {
	msg := func(m *daemonv1.Message) agent.Item { return agent.Item{Message: m} }
	call := func(id, name, input, raw string) agent.Item {
		return msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Raw: raw,
			ToolCall: &daemonv1.ToolCall{Id: id, Name: name, Input: input}})
	}
	tests := []struct {
		line string
		want agent.Item
	}{
		{`hello`, out("hello")},
		{``, out("")},
		{`{not json`, out("{not json")},
		{`{"type":"message","role":"assis`, out(`{"type":"message","role":"assis`)},
		{`{"level":"info"}`, out(`{"level":"info"}`)},
		{`{"type":"other"}`, out(`{"type":"other"}`)},
		{`{"type":7}`, out(`{"type":7}`)},
		{`[1,2]`, out(`[1,2]`)},
		{"\xff\x00a", out(`\xff\x00a`)},
		{`{"type":"message","role":"user","text":"hi"}`, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: "hi"})},
		{`  {"type":"message","text":""}  `, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT})},
		{`{"type":"message","text":"a\u0000b"}`, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: `a\x00b`})},
		{`{"type":"message","role":"tool","text":"hi"}`, raw(`{"type":"message","role":"tool","text":"hi"}`)},
		{`{"type":"message"}`, raw(`{"type":"message"}`)},
		{`{"type":"message","text":["a"]}`, raw(`{"type":"message","text":["a"]}`)},
		{`{"type":"message","text":"x","model":"m"}`, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: "x", Raw: `{"type":"message","text":"x","model":"m"}`})},
		{`{"type":"tool_call","id":"1","name":"sh","input":{"a": 1}}`, call("1", "sh", `{"a":1}`, "")},
		{`{"type":"tool_call","id":"1","name":"sh"}`, call("1", "sh", `{}`, "")},
		{`{"type":"tool_call","name":"sh"}`, raw(`{"type":"tool_call","name":"sh"}`)},
		{`{"type":"tool_call","id":5,"name":"sh"}`, raw(`{"type":"tool_call","id":5,"name":"sh"}`)},
		{`{"type":"tool_result","id":"1","output":"ok","isError":true}`, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "1", Output: "ok", IsError: true}})},
		{`{"type":"tool_result","id":"1","output":{"a": [1]}}`, msg(&daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "1", Output: `{"a":[1]}`}})},
		{`{"type":"tool_result","id":"1","isError":"yes"}`, raw(`{"type":"tool_result","id":"1","isError":"yes"}`)},
		{`{"type":"usage","inputTokens":3,"costMicroUSD":4}`, agent.Item{Usage: &daemonv1.Usage{InputTokens: 3, CostMicroUsd: 4}}},
		{`{"type":"usage","inputTokens":-3}`, raw(`{"type":"usage","inputTokens":-3}`)},
		{`{"type":"usage","inputTokens":10000000000}`, agent.Item{Usage: &daemonv1.Usage{InputTokens: 10_000_000_000}}},
		{`{"type":"usage","inputTokens":9000000000000000000}`, raw(`{"type":"usage","inputTokens":9000000000000000000}`)},
		{`{"type":"usage","costMicroUSD":1000000000001}`, raw(`{"type":"usage","costMicroUSD":1000000000001}`)},
		{`{"type":"usage","inputTokens":1.5}`, raw(`{"type":"usage","inputTokens":1.5}`)},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			if d := cmp.Diff(tt.want, agent.Exec{}.Parse([]byte(tt.line)), protocmp.Transform()); d != "" {
				t.Errorf("item (-want +got):\n%s", d)
			}
		})
	}
}

// The agent finds its own lines in the conversation file.
func TestEncodeIsReadBack(t *testing.T) {
	for _, l := range []string{
		`{"type":"message","role":"user","text":"a\nb <c>"}`,
		`{"type":"tool_call","id":"1","name":"sh","input":{"a":1}}`,
		`{"type":"tool_result","id":"1","output":"ok","isError":true}`,
	} {
		item := agent.Exec{}.Parse([]byte(l))
		var b bytes.Buffer
		if err := agent.Encode(&b, item.Message, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		again := agent.Exec{}.Parse(b.Bytes())
		again.Message.Raw = ""
		if d := cmp.Diff(item, again, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", l, d)
		}
	}
}

func TestEncode(t *testing.T) {
	tests := []struct {
		message *daemonv1.Message
		want    string
	}{
		{&daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Text: "plain"}, `{"type":"output","text":"plain","time":"1970-01-01T00:00:00Z"}`},
		{raw(`{"type":"usage","inputTokens":-3}`).Message, `{"type":"raw","raw":"{\"type\":\"usage\",\"inputTokens\":-3}","time":"1970-01-01T00:00:00Z"}`},
		{&daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "7", IsError: true, Interrupted: true}},
			`{"type":"tool_result","id":"7","output":"","isError":true,"interrupted":true,"time":"1970-01-01T00:00:00Z"}`},
		{&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: "7", Name: "x", Input: "torn {"}},
			`{"type":"tool_call","id":"7","name":"x","time":"1970-01-01T00:00:00Z"}`},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		if err := agent.Encode(&b, tt.message, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.want+"\n", b.String()); d != "" {
			t.Errorf("lines (-want +got):\n%s", d)
		}
	}
}

func TestFor(t *testing.T) {
	if _, err := agent.For("Exec"); err != nil {
		t.Error(err)
	}
	if _, err := agent.For("Nobody"); err == nil || !strings.Contains(err.Error(), "Nobody") {
		t.Errorf("error for an unknown type: got %v, want one that names it", err)
	}
}

func FuzzExecParse(f *testing.F) {
	for _, s := range []string{`{"type":"message","text":"x"}`, `{"type":"tool_call","id":"1","name":"n","input":[1]}`, "\xff", `{"type":"usage"}`,
		`{"type":"tool_result","id":"a","output":{"\ud800":1}}`, "{\"type\":\"tool_call\",\"id\":\"1\",\"name\":\"n\",\"input\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		item := agent.Exec{}.Parse(line)
		set := 0
		if m := item.Message; m != nil {
			set++
			for _, s := range []string{m.Text, m.Raw, m.GetToolCall().GetId(), m.GetToolCall().GetName(), m.GetToolCall().GetInput(), m.GetToolResult().GetCallId(), m.GetToolResult().GetOutput()} {
				if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
					t.Fatalf("%q gave a text that cannot be stored: %q", line, s)
				}
			}
		}
		if item.Usage != nil {
			set++
		}
		if item.Output != nil {
			set++
			if !utf8.ValidString(*item.Output) || (*item.Output == "") != (len(line) == 0) {
				t.Fatalf("%q became the output %q", line, *item.Output)
			}
		}
		if set != 1 {
			t.Fatalf("%q gave an item with %d parts, want 1", line, set)
		}
	})
}
