package tools_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/tools"
)

// What a call wishes is the same however it is written, and the call's id is no part of it.
func TestASupervisorsCallIsPassedOn(t *testing.T) {
	for name, tt := range map[string]struct {
		tool      v1alpha1.AgentTool
		arguments string
		want      tools.Call
	}{
		"a task to make": {"task_create", `{"prompt":"Write a parser.", "name":"parser","depends_on":["lexer"]}`,
			tools.Call{About: "parser", Arguments: []byte(`{"depends_on":["lexer"],"name":"parser","prompt":"Write a parser."}`)}},
		"an id": {"task_resume", `{"task":"parser","call_id":"once"}`,
			tools.Call{About: "parser", Arguments: []byte(`{"task":"parser"}`), ID: "once"}},
		"a number": {"task_rewind", `{"checkpoint":3,"task":"parser"}`,
			tools.Call{About: "parser", Arguments: []byte(`{"checkpoint":3,"task":"parser"}`)}},
		"variants": {"task_fork", `{"task":"parser","name":"ways","variants":[{"name":"a"},{"prompt":"p","name":"b"}]}`,
			tools.Call{About: "parser", Arguments: []byte(`{"name":"ways","task":"parser","variants":[{"name":"a"},{"name":"b","prompt":"p"}]}`)}},
		"a phase":           {"phase_set", `{"phase":"Execute"}`, tools.Call{About: "Execute", Arguments: []byte(`{"phase":"Execute"}`)}},
		"nothing":           {"task_list", `{}`, tools.Call{Arguments: []byte(`{}`)}},
		"several tasks":     {"task_wait", `{"tasks":["a","b"],"any":true}`, tools.Call{About: "a, b", Arguments: []byte(`{"any":true,"tasks":["a","b"]}`)}},
		"the own work":      {"publish", `{}`, tools.Call{Arguments: []byte(`{}`)}},
		"a task to stop":    {"task_stop", `{"task":"a"}`, tools.Call{About: "a", Arguments: []byte(`{"task":"a"}`)}},
		"a conversation":    {"task_history", `{"task":"a","query":"port"}`, tools.Call{About: "a", Arguments: []byte(`{"query":"port","task":"a"}`)}},
		"what has changed":  {"task_diff", `{"task":"a","from":0}`, tools.Call{About: "a", Arguments: []byte(`{"from":0,"task":"a"}`)}},
		"text of some kind": {"task_resume", `{"task":"a","prompt":"a < b & c\n"}`, tools.Call{About: "a", Arguments: []byte(`{"prompt":"a \u003c b \u0026 c\n","task":"a"}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			a := text("done")
			result := callTool(t, connect(t, newServer(a, v1alpha1.SupervisorTools()...)), string(tt.tool), json.RawMessage(tt.arguments))
			if result.IsError {
				t.Fatalf("it was answered with %q", textOf(result))
			}
			tt.want.Tool = tt.tool
			if diff := cmp.Diff([]tools.Call{tt.want}, a.called); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestASupervisorsWrongInputIsExplained(t *testing.T) {
	a := text("done")
	session := connect(t, newServer(a, v1alpha1.SupervisorTools()...))
	for name, tt := range map[string]struct {
		tool      string
		arguments any
		want      string
	}{
		"a bad id":          {"task_stop", map[string]string{"task": "a", "call_id": "-"}, "Nothing was done: call_id must be"},
		"no prompt":         {"task_create", map[string]string{"name": "a"}, "prompt"},
		"a branch":          {"publish", map[string]string{"branch": "main"}, "branch"},
		"a Secret":          {"task_create", map[string]string{"name": "a", "prompt": "p", "credentialsSecretRef": "s"}, "credentialsSecretRef"},
		"far too much text": {"task_create", map[string]string{"name": "a", "prompt": strings.Repeat("x", 161<<10)}, "Put long material into a file"},
	} {
		result := callTool(t, session, tt.tool, tt.arguments)
		if got := textOf(result); !result.IsError || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s answered %q (error: %v), want %q", name, tt.tool, got, result.IsError, tt.want)
		}
	}
	if len(a.called) != 0 {
		t.Errorf("calls with wrong input were passed on: %v", a.called)
	}
}

// A supervisor's messages may hold a prompt of the longest kind; those of others may not.
func TestOnlyASupervisorSendsLongMessages(t *testing.T) {
	long := map[string]string{"name": "a", "prompt": strings.Repeat("x", 130<<10)}
	result := callTool(t, connect(t, newServer(text("done"), v1alpha1.ToolTaskCreate)), "task_create", long)
	if got := textOf(result); got != "done" {
		t.Errorf("a long prompt was answered with %q", got)
	}
	worker := connect(t, newServer(text("done"), v1alpha1.DefaultTools()...))
	if _, err := worker.CallTool(t.Context(), &mcp.CallToolParams{Name: "checkpoint", Arguments: map[string]string{"message": strings.Repeat("x", 130<<10)}}); err == nil {
		t.Error("a long message was read from an agent that sends no prompts")
	}
}

func TestASupervisorIsToldWhatItsToolsAreFor(t *testing.T) {
	for tool, want := range map[v1alpha1.AgentTool]string{"diff": "Checkpoints of this task's files", "task_create": "Tasks of your own, each with an agent"} {
		if got := connect(t, newServer(text(""), tool)).InitializeResult().Instructions; !strings.HasPrefix(got, want) {
			t.Errorf("with %s, the instructions are %q", tool, got)
		}
	}
}

// An agent knows the phases of its contract from nowhere else.
func TestASupervisorIsToldWhichPhasesThereAre(t *testing.T) {
	for want, phases := range map[string][]string{
		"to another of its phases, which are, in this order, Draft, Check, Ship. ": {"Draft", "Check", "Ship"},
		"to another of its phases. ": nil, // a manager of an older version has not told them
	} {
		s := tools.New(tools.Config{Given: []v1alpha1.AgentTool{v1alpha1.ToolPhaseSet}, Phases: phases, Answerer: text(""), Log: logr.Discard(),
			Called: func(string) {}, Mask: func(s string) string { return s }})
		list, err := connect(t, s).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := list.Tools[0].Description; !strings.Contains(got, want) {
			t.Errorf("with the phases %v, the tool is described as %q", phases, got)
		}
	}
}

// The program that prints an answer says so afterwards, of the call that the answer names.
func TestAnAnswerNamesItsCall(t *testing.T) {
	a := &answerer{answer: func(context.Context) (tools.Answer, error) { return tools.Answer{Text: "done", Call: "7"}, nil }}
	result := callTool(t, connect(t, newServer(a, v1alpha1.ToolTaskStop)), "task_stop", map[string]string{"task": "a"})
	if got := result.Meta[tools.CallKey]; got != "7" {
		t.Errorf("the answer names the call %v", got)
	}
	if result := callTool(t, connect(t, newServer(text("done"), v1alpha1.ToolDiff)), "diff", nil); result.Meta[tools.CallKey] != nil {
		t.Errorf("an answer to a call without effect names the call %v", result.Meta[tools.CallKey])
	}
}
