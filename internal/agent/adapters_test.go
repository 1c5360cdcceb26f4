package agent_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func stream(t testing.TB, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

func adapter(t testing.TB, kind string) agent.Adapter {
	t.Helper()
	a, err := agent.For(v1alpha1.AgentType(kind))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func read(p agent.Parser, lines [][]byte) []agent.Item {
	var items []agent.Item
	for _, l := range lines {
		items = append(items, p.Line(l)...)
	}
	return append(items, p.End()...)
}

// sums are the totals of a run.
type sums struct {
	Messages, Calls, Results, Unanswered, Unknown, Output int
	Input, Cached, Tokens, Cost                           int64
}

func sum(items []agent.Item) sums {
	var s sums
	open := map[string]bool{}
	for _, i := range items {
		switch m := i.Message; {
		case i.Output != nil:
			s.Output++
		case i.Usage != nil:
			s.Input += i.Usage.GetInputTokens()
			s.Cached += i.Usage.GetCachedInputTokens()
			s.Tokens += i.Usage.GetOutputTokens()
			s.Cost += i.Usage.GetCostMicroUsd()
		case m.GetToolCall() != nil:
			s.Calls++
			open[m.GetToolCall().GetId()] = true
		case m.GetToolResult() != nil:
			s.Results++
			delete(open, m.GetToolResult().GetCallId())
		case m.GetRole() == daemonv1.Role_ROLE_OUTPUT:
			s.Unknown++
		default:
			s.Messages++
		}
	}
	s.Unanswered = len(open)
	return s
}

const firstPrompt = "Work in this repository: do the next small step each time until done. MARK-ALPHA"

// The recorded output of the real agents: a run with twelve tool calls, and a run that
// resumes it.
func TestRecordedRuns(t *testing.T) {
	tests := []struct {
		kind, name string
		run, more  sums
		session    *daemonv1.AgentSession
	}{
		{"ClaudeCode", "claude",
			sums{Messages: 1, Calls: 12, Results: 12, Input: 1493, Tokens: 260, Cost: 11172},
			sums{Messages: 1, Input: 130, Tokens: 20, Cost: 920},
			&daemonv1.AgentSession{Agent: "ClaudeCode", Id: "dd8ed3c7-0056-430c-8bc9-829ab4bb7234", Version: "2.1.329", Model: "claude-opus-5-5"}},
		{"Codex", "codex",
			sums{Messages: 1, Calls: 12, Results: 12, Input: 1508, Tokens: 260, Cost: 1508*5 + 260*30},
			sums{Messages: 1, Input: 130, Tokens: 20, Cost: 130*5 + 20*30},
			&daemonv1.AgentSession{Agent: "Codex", Id: "01a1fbbf-aa4d-73e3-a1af-0825917645e0", Model: "gpt-5.5",
				Counted: &daemonv1.Usage{InputTokens: 1508, OutputTokens: 260}}},
		{"GeminiCLI", "gemini",
			sums{Messages: 1, Calls: 12, Results: 12, Input: 1469, Tokens: 260, Cost: 1091},
			sums{Messages: 1, Input: 127, Tokens: 20, Cost: 88},
			&daemonv1.AgentSession{Agent: "GeminiCLI", Id: "d4a342ce-945f-430c-8aa6-839a0c27b5c3", Model: "gemini-2.5-flash"}},
		{"OpenCode", "opencode",
			sums{Messages: 1, Calls: 12, Results: 12, Input: 1482, Tokens: 260, Cost: 1482*5 + 260*30},
			sums{Messages: 1, Input: 128, Tokens: 20, Cost: 128*5 + 20*30},
			&daemonv1.AgentSession{Agent: "OpenCode", Id: "ses_e0448ff5fffexRvL0pll8tQScU", Model: "openai/gpt-5.5"}},
		{"QwenCode", "qwen",
			sums{Messages: 1, Calls: 12, Results: 12, Input: 1482, Cached: 520, Tokens: 260, Cost: (1482-520)*5 + 520/2 + 260*30},
			sums{Messages: 1, Input: 128, Cached: 40, Tokens: 20, Cost: (128-40)*5 + 40/2 + 20*30},
			&daemonv1.AgentSession{Agent: "QwenCode", Id: "d6e3767c-ab07-4209-9599-9b1de2aaa3e4", Version: "0.24.4", Model: "gpt-5.5"}},
	}
	for _, tt := range tests {
		t.Run(tt.kind, func(t *testing.T) {
			model := map[string]string{"Codex": "gpt-5.5", "OpenCode": "openai/gpt-5.5"}[tt.kind]
			p := adapter(t, tt.kind).NewParser(agent.ParserOptions{Prompt: firstPrompt, Run: "1", Model: model})
			items := read(p, stream(t, tt.name+"-run"))
			if d := cmp.Diff(tt.run, sum(items)); d != "" {
				t.Errorf("totals of the run (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.session, p.Session(), protocmp.Transform()); d != "" {
				t.Errorf("session of the run (-want +got):\n%s", d)
			}
			resumed := adapter(t, tt.kind).NewParser(agent.ParserOptions{
				Prompt: "RECALL what you were sent. MARK-BETA", Run: "2", Model: model, Session: p.Session(),
			})
			again := read(resumed, stream(t, tt.name+"-resume"))
			if d := cmp.Diff(tt.more, sum(again)); d != "" {
				t.Errorf("totals of the resumed run (-want +got):\n%s", d)
			}
			if resumed.Session().GetId() != tt.session.GetId() {
				t.Errorf("session of the resumed run: got %s, want %s", resumed.Session().GetId(), tt.session.GetId())
			}
			last := again[0].Message.GetText()
			if !strings.HasPrefix(last, "RECALLED user=2") && !strings.HasPrefix(last, "REMEMBERED prompts=2") {
				t.Errorf("answer of the resumed run: got %q, want one that recalls two prompts", last)
			}
		})
	}
}

// frames are parts of the events that give no item.
var frames = []string{
	`"type":"system","subtype":"init"`, `"type":"thread.started"`, `"type":"turn.started"`, `"type":"init"`,
	`"type":"step_start"`, `"type":"stream_event"`, `"type":"result","subtype":"success"`, `"role":"user","content":"Work in this`, `"role":"user","content":"RECALL`,
}

// No line is dropped: each line gives an item, is a framing event, or is a part of the
// message that the next line completes.
func TestEveryLineCounts(t *testing.T) {
	for kind, name := range map[string]string{"ClaudeCode": "claude", "Codex": "codex", "GeminiCLI": "gemini", "OpenCode": "opencode", "QwenCode": "qwen"} {
		for _, run := range []string{"-run", "-resume"} {
			p := adapter(t, kind).NewParser(agent.ParserOptions{Prompt: map[string]string{"-run": firstPrompt, "-resume": "RECALL what you were sent. MARK-BETA"}[run]})
			for i, line := range stream(t, name+run) {
				items := p.Line(line)
				framing := slices.ContainsFunc(frames, func(f string) bool { return bytes.Contains(line, []byte(f)) })
				accounted := len(items) > 0 || p.Pending()
				if !accounted && !framing {
					t.Errorf("%s%s: line %d gave no item: %s", name, run, i+1, line)
				}
				for _, item := range items {
					if item.Message.GetRole() == daemonv1.Role_ROLE_OUTPUT {
						t.Errorf("%s%s: line %d was not understood", name, run, i+1)
					}
				}
			}
		}
	}
}

// Each call precedes its result, in the order in which they were printed.
func TestCallsMeetResults(t *testing.T) {
	for kind, name := range map[string]string{"ClaudeCode": "claude", "Codex": "codex", "GeminiCLI": "gemini", "OpenCode": "opencode", "QwenCode": "qwen"} {
		var open string
		n := 0
		for _, item := range read(adapter(t, kind).NewParser(agent.ParserOptions{Run: "7"}), stream(t, name+"-run")) {
			if c := item.Message.GetToolCall(); c != nil {
				open = c.GetId()
				n++
				input := strings.ReplaceAll(c.GetInput(), "line of ", "line ") // as later stubs print it
				if want := fmt.Sprintf("line %d", n); n%2 == 1 && !strings.Contains(input, want) {
					t.Errorf("%s: the input of call %d is %s, want one with %q", kind, n, c.GetInput(), want)
				}
			}
			if r := item.Message.GetToolResult(); r != nil && r.GetCallId() != open {
				t.Errorf("%s: the result of call %s follows call %s", kind, r.GetCallId(), open)
			}
		}
	}
}

// The incomplete last line of a killed agent is kept as output, without an error.
func TestTruncatedLastLine(t *testing.T) {
	for kind, name := range map[string]string{"ClaudeCode": "claude", "Codex": "codex", "GeminiCLI": "gemini", "OpenCode": "opencode", "QwenCode": "qwen"} {
		lines := stream(t, name+"-run")
		for n := range lines {
			part := append([][]byte{}, lines[:n+1]...)
			part[n] = part[n][:len(part[n])/2]
			s := sum(read(adapter(t, kind).NewParser(agent.ParserOptions{}), part))
			if s.Output != 1 || s.Unknown != 0 {
				t.Fatalf("%s cut in line %d: got %+v, want 1 line of output and 0 unknown", kind, n+1, s)
			}
		}
	}
}

// Lines that were read but not recorded are parsed again by an earlier clone, which gives
// the same items whatever the original has read since.
func TestClone(t *testing.T) {
	for kind, name := range map[string]string{"ClaudeCode": "claude", "Codex": "codex", "GeminiCLI": "gemini-delta", "OpenCode": "opencode", "QwenCode": "qwen", "Exec": "exec"} {
		var lines [][]byte
		switch name {
		case "exec":
			lines = [][]byte{[]byte(`{"type":"message","text":"a"}`), []byte("plain"), []byte(`{"type":"usage","inputTokens":1}`)}
		case "gemini-delta":
			lines = append(deltas(), stream(t, "gemini-run")...)
		default:
			lines = stream(t, name+"-run")
		}
		opts := agent.ParserOptions{Prompt: firstPrompt, Run: "1"}
		want := read(adapter(t, kind).NewParser(opts), lines)
		for from := range lines {
			p := adapter(t, kind).NewParser(opts)
			var items []agent.Item
			for _, l := range lines[:from] {
				items = append(items, p.Line(l)...)
			}
			clone := p.Clone()
			read(p, lines[from:]) // the original continues
			read(clone.Clone(), lines[:from])
			items = append(items, read(clone, lines[from:])...)
			if d := cmp.Diff(want, items, protocmp.Transform()); d != "" {
				t.Fatalf("%s: items with a clone from line %d (-want +got):\n%s", kind, from+1, d)
			}
		}
	}
}

// A daemon that restarts in the middle of a run continues from the recorded session, and
// counts nothing twice.
func TestMiddleOfARun(t *testing.T) {
	for kind, name := range map[string]string{"ClaudeCode": "claude", "Codex": "codex", "GeminiCLI": "gemini", "OpenCode": "opencode", "QwenCode": "qwen"} {
		lines := stream(t, name+"-run")
		whole := read(adapter(t, kind).NewParser(agent.ParserOptions{Run: "1"}), lines)
		for from := 1; from < len(lines); from++ {
			first := adapter(t, kind).NewParser(agent.ParserOptions{Run: "1"})
			var items []agent.Item
			for _, l := range lines[:from] {
				items = append(items, first.Line(l)...)
			}
			if first.Pending() {
				continue // its lines are not recorded, and will be parsed again
			}
			second := adapter(t, kind).NewParser(agent.ParserOptions{Run: "1", Session: first.Session()})
			items = append(items, read(second, lines[from:])...)
			got, want := sum(items), sum(whole)
			if kind == "ClaudeCode" { // the correction at the end is missing
				got.Tokens, got.Cost, want.Tokens, want.Cost = 0, 0, 0, 0
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("%s: totals with a second parser from line %d (-want +got):\n%s", kind, from+1, d)
			}
		}
	}
}

func deltas() [][]byte {
	var lines [][]byte
	for _, text := range []string{"I ", "will ", "look."} {
		lines = append(lines, fmt.Appendf(nil, `{"type":"message","role":"assistant","content":%q,"delta":true}`, text))
	}
	return lines
}

func TestGeminiDeltas(t *testing.T) {
	p := agent.GeminiCLI{}.NewParser(agent.ParserOptions{})
	for _, l := range deltas() {
		if items := p.Line(l); items != nil || !p.Pending() {
			t.Fatalf("%s gave the items %v, pending: %v; want none, pending", l, items, p.Pending())
		}
	}
	items := p.Line([]byte(`{"type":"tool_use","tool_name":"t","tool_id":"1","parameters":{}}`))
	want := []agent.Item{text(assistant, "I will look.", ""), toolCall("1", "t", "{}", "")}
	if d := cmp.Diff(want, items, protocmp.Transform()); d != "" {
		t.Fatalf("items after the deltas (-want +got):\n%s", d)
	}
	if p.Pending() {
		t.Fatal("the parser is pending after the message is complete")
	}
	for range 3 {
		p.Line(deltas()[0])
	}
	if items := p.End(); len(items) != 1 || items[0].Message.GetText() != "I I I " {
		t.Fatalf("items at the end: got %v, want the text %q", items, "I I I ")
	}
}

// A message that never ends does not exhaust the memory.
func TestGeminiDeltasAreBounded(t *testing.T) {
	p := agent.GeminiCLI{}.NewParser(agent.ParserOptions{})
	line := fmt.Appendf(nil, `{"type":"message","role":"assistant","content":%q,"delta":true}`, strings.Repeat("a", 100_000))
	n := 0
	for range 100 {
		for _, i := range p.Line(line) {
			n += len(i.Message.GetText())
		}
	}
	if rest := p.End(); n < 9_000_000 || n+len(rest[0].Message.GetText()) != 10_000_000 {
		t.Errorf("%d bytes were returned before the end; want at least 9,000,000 of 10,000,000", n)
	}
}
