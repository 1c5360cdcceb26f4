package conversation_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
)

func user(text string) conversation.Message {
	return conversation.Message{Role: conversation.RoleUser, Text: text}
}

func says(text string) conversation.Message {
	return conversation.Message{Role: conversation.RoleAssistant, Text: text}
}

func calls(id string) conversation.Message {
	return conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: id, Name: "Bash", Input: `{}`}}
}

func result(id string) conversation.Message {
	return conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Output: "ok"}}
}

func interrupted(id string) conversation.Message {
	return conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Interrupted: true}}
}

func TestBoundaries(t *testing.T) {
	tests := []struct {
		name     string
		messages []conversation.Message
		// boundaries at position 1, 2, …
		boundaries []int64
		toolCalls  int64
		open       []string
	}{
		{"talk only", []conversation.Message{user("a"), says("b")}, []int64{1, 2}, 0, []string{}},
		{"one call", []conversation.Message{user("a"), calls("1"), result("1"), says("b")}, []int64{1, 1, 3, 4}, 1, []string{}},
		{"parallel calls", []conversation.Message{calls("1"), calls("2"), result("2"), result("1")}, []int64{0, 0, 0, 4}, 2, []string{}},
		{"nested calls", []conversation.Message{calls("task"), calls("1"), result("1"), says("x"), result("task")}, []int64{0, 0, 0, 0, 5}, 2, []string{}},
		{"call in flight", []conversation.Message{user("a"), calls("1")}, []int64{1, 1}, 0, []string{"1"}},
		{"interrupted", []conversation.Message{calls("1"), interrupted("1")}, []int64{0, 2}, 0, []string{}},
		{"user speaks in between", []conversation.Message{calls("1"), user("a"), result("1")}, []int64{0, 0, 3}, 1, []string{}},
		{"one never answered", []conversation.Message{calls("1"), calls("2"), result("2"), says("a")}, []int64{0, 0, 0, 0}, 1, []string{"1"}},
		{"stray result", []conversation.Message{result("9"), says("a")}, []int64{1, 2}, 0, []string{}},
		{"reused id", []conversation.Message{calls("1"), result("1"), calls("1"), result("1")}, []int64{0, 2, 2, 4}, 2, []string{}},
		{"same id twice", []conversation.Message{calls("1"), calls("1"), result("1"), result("1")}, []int64{0, 0, 0, 4}, 2, []string{}},
		{"no ids", []conversation.Message{calls(""), result("")}, []int64{0, 2}, 1, []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log conversation.Log
			var boundaries []int64
			for _, m := range tt.messages {
				log.Append(m)
				boundaries = append(boundaries, log.Boundary)
			}
			if d := cmp.Diff(tt.boundaries, boundaries); d != "" {
				t.Errorf("boundaries (-want +got):\n%s", d)
			}
			if log.Totals.ToolCalls != tt.toolCalls {
				t.Errorf("tool calls: %d, want %d", log.Totals.ToolCalls, tt.toolCalls)
			}
			if d := cmp.Diff(tt.open, log.OpenIDs()); d != "" {
				t.Errorf("open calls (-want +got):\n%s", d)
			}
		})
	}
}

func TestCallsNeverAnswered(t *testing.T) {
	var log conversation.Log
	for i := range 3 * conversation.MaxTurn {
		log.Append(calls(fmt.Sprint(i)))
		if lag := log.Position - log.Boundary; lag > conversation.MaxTurn {
			t.Fatalf("at position %d the boundary is %d messages back, want at most %d", log.Position, lag, conversation.MaxTurn)
		}
		if len(log.Open) > conversation.MaxOpenCalls {
			t.Fatalf("the log has %d open calls, want at most %d", len(log.Open), conversation.MaxOpenCalls)
		}
	}
	if got := log.Open[len(log.Open)-1].Position; got != log.Position {
		t.Errorf("the newest open call is at %d, want %d", got, log.Position)
	}
}

func TestAppendLeavesEarlierLogsAlone(t *testing.T) {
	var log conversation.Log
	log.Append(calls("1"))
	log.Append(calls("2"))
	before := log
	log.Append(result("1"))
	log.Append(calls("3"))
	if d := cmp.Diff([]string{"1", "2"}, before.OpenIDs()); d != "" {
		t.Errorf("the copy changed (-want +got):\n%s", d)
	}
}

func TestAt(t *testing.T) {
	log := conversation.At(7, conversation.Totals{ToolCalls: 3})
	log.Append(calls("1"))
	want := conversation.Log{
		Position: 8, Totals: conversation.Totals{ToolCalls: 3}, Boundary: 7, Settled: 7,
		Open: []conversation.OpenCall{{ID: "1", Position: 8}},
	}
	if d := cmp.Diff(want, log); d != "" {
		t.Errorf("log (-want +got):\n%s", d)
	}
}

func TestAddUsageIgnoresInvalidNumbers(t *testing.T) {
	var log conversation.Log
	log.AddUsage(10, 20, 30)
	log.AddUsage(-5, 1<<62, 0)
	log.AddUsage(0, 1<<62, 0)
	if d := cmp.Diff(conversation.Totals{InputTokens: 10, OutputTokens: 20 + 1<<62, CostMicroUSD: 30}, log.Totals); d != "" {
		t.Errorf("totals (-want +got):\n%s", d)
	}
}

func TestHash(t *testing.T) {
	call := calls("1")
	renamed := calls("2")
	if call.Hash("a") != renamed.Hash("a") {
		t.Error("the id of a call is part of the hash")
	}
	if result("1").Hash("a") != result("2").Hash("a") {
		t.Error("the id of the call that a result belongs to is part of the hash")
	}
	distinct := map[string]conversation.Message{
		"user":        user("x"),
		"assistant":   says("x"),
		"other text":  user("y"),
		"raw":         {Role: conversation.RoleUser, Raw: "x"},
		"call":        call,
		"empty call":  {Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{}},
		"no call":     {Role: conversation.RoleAssistant},
		"result":      result("1"),
		"interrupted": interrupted("1"),
		"shifted":     {Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{Name: "Bash{", Input: "}"}},
	}
	seen := map[conversation.Hash]string{}
	for name, m := range distinct {
		h := m.Hash("a")
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
		if h == m.Hash("b") {
			t.Errorf("%s has the same hash in two namespaces", name)
		}
	}
}

func TestClean(t *testing.T) {
	tests := map[string]string{
		"plain":       "plain",
		"a\x00b":      "a\u2400b",
		"a\xff\xfeb":  "a\uFFFDb",
		"é\n\t\u2028": "é\n\t\u2028",
		"":            "",
	}
	for in, want := range tests {
		if got := conversation.CleanText(in); got != want {
			t.Errorf("CleanText(%q) = %q, want %q", in, got, want)
		}
	}
	m := conversation.Message{ToolCall: &conversation.ToolCall{Input: "\x00"}, ToolResult: &conversation.ToolResult{Output: "\xff"}}
	clean := m.Clean()
	if got, want := clean.ToolCall.Input+clean.ToolResult.Output, "\u2400\uFFFD"; got != want {
		t.Errorf("the cleaned fields are %q, want %q", got, want)
	}
	if m.ToolCall.Input != "\x00" {
		t.Error("Clean changed the message it was called on")
	}
}
