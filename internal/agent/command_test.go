package agent_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
)

// How each agent is started, with and without a session. These command lines were tested
// with the real agents.
func TestCommand(t *testing.T) {
	start := agent.Start{Prompt: "-do \"it\"\nnow", Worktree: "/w", FilesDir: "/f"}
	tests := []struct {
		kind, args, resumed string
	}{
		{"ClaudeCode",
			"-p --output-format stream-json --verbose --dangerously-skip-permissions --settings /f/claude.json",
			"-p --output-format stream-json --verbose --dangerously-skip-permissions --settings /f/claude.json --model M --resume S"},
		{"Codex",
			`exec --json --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check -c check_for_update_on_startup=false -c analytics.enabled=false -c feedback.enabled=false --dangerously-bypass-hook-trust -c hooks.PreToolUse=[{matcher="*",hooks=[{type="command",command="sh '/f/codex-hook.sh'",timeout=600}]}] -`,
			`exec resume --json --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check -c check_for_update_on_startup=false -c analytics.enabled=false -c feedback.enabled=false --dangerously-bypass-hook-trust -c hooks.PreToolUse=[{matcher="*",hooks=[{type="command",command="sh '/f/codex-hook.sh'",timeout=600}]}] -m M S -`},
		{"GeminiCLI",
			"--output-format stream-json --approval-mode yolo --skip-trust",
			"--output-format stream-json --approval-mode yolo --skip-trust -m M --resume S"},
		{"OpenCode",
			"run --format json --auto --thinking --dir /w",
			"run --format json --auto --thinking --dir /w --model M --session S"},
		{"QwenCode",
			"--output-format stream-json --approval-mode yolo",
			"--output-format stream-json --approval-mode yolo --model M --resume S"},
	}
	for _, tt := range tests {
		a := adapter(t, tt.kind)
		c := a.Command(start)
		if got := strings.Join(c.Args, " "); got != tt.args {
			t.Errorf("arguments of %s:\ngot  %s\nwant %s", tt.kind, got, tt.args)
		}
		if c.Stdin != start.Prompt || slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, "now") }) {
			t.Errorf("%s does not read its prompt on standard input", tt.kind)
		}
		own := start
		own.Args = []string{"--own", "x"}
		if got := strings.Join(a.Command(own).Args, " "); got != "--own x "+tt.args {
			t.Errorf("arguments of %s with the user's arguments:\ngot  %s\nwant --own x %s", tt.kind, got, tt.args)
		}
		resumed := start
		resumed.Session, resumed.Model = "S", "M"
		if got := strings.Join(a.Command(resumed).Args, " "); got != tt.resumed {
			t.Errorf("arguments of %s when resumed:\ngot  %s\nwant %s", tt.kind, got, tt.resumed)
		}
		if !a.AsksBeforeTools() || a.Executable() == "" {
			t.Errorf("%s has no hook or no name", tt.kind)
		}
	}
}

// Codex's settings are moved after "exec", where every version reads them; other options
// stay where the user put them.
func TestCodexReadsTheUsersSettings(t *testing.T) {
	for _, session := range []string{"", "S"} {
		args := agent.Codex{}.Command(agent.Start{Session: session, Args: []string{
			"-c", "model_provider=ours", "--search", "-cmodel_reasoning_effort=low", "--config=a=1", "--enable", "b", "-p", "profile", "-c"}}).Args
		got := strings.Join(args[:slices.Index(args, "--json")], " ")
		want := "--search -p profile -c exec "
		if session != "" {
			want += "resume "
		}
		want += "-c model_provider=ours -cmodel_reasoning_effort=low --config=a=1 --enable b"
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// OpenCode's settings are passed in the first variable that the user has not set.
func TestOpenCodeConfig(t *testing.T) {
	tests := []struct {
		env  []string
		want string
	}{
		{nil, `OPENCODE_CONFIG_CONTENT={"autoupdate":false,"plugin":["file:///f/opencode.js"],"share":"disabled"}`},
		{[]string{"OPENCODE_CONFIG_CONTENT={}"}, "OPENCODE_CONFIG=/f/opencode.json"},
		{[]string{"OPENCODE_CONFIG_CONTENT={}", "OPENCODE_CONFIG=/x"}, ""},
	}
	for _, tt := range tests {
		var got string
		for _, e := range (agent.OpenCode{}).Command(agent.Start{FilesDir: "/f", Env: tt.env}).Env {
			if strings.HasPrefix(e, "OPENCODE_CONFIG") {
				got += e
			}
		}
		if got != tt.want {
			t.Errorf("variable with the environment %v: got %q, want %q", tt.env, got, tt.want)
		}
	}
}

// The hook in Files is quoted so that a shell runs it with any arguments.
func TestFiles(t *testing.T) {
	hook := []string{"/run/clew/bin/it's", "hook", "$HOME `x`"}
	shell := `'/run/clew/bin/it'\''s' 'hook' '$HOME ` + "`x`'"
	for _, kind := range []string{"ClaudeCode", "Codex", "GeminiCLI", "OpenCode", "QwenCode"} {
		with, without := adapter(t, kind).Files(agent.FilesRequest{Hook: hook, Dir: "/f"}), adapter(t, kind).Files(agent.FilesRequest{Dir: "/f"})
		found := false
		for name, data := range with {
			if filepath.Ext(name) == ".json" && !json.Valid(data) {
				t.Errorf("%s: %s is not JSON", kind, name)
			}
			var words []string
			if kind == "OpenCode" {
				_, list, _ := strings.Cut(string(data), "const hook = ")
				list, _, _ = strings.Cut(list, "\n")
				_ = json.Unmarshal([]byte(list), &words)
			}
			var quoted struct {
				Hooks map[string][]struct {
					Hooks []struct{ Command string }
				}
			}
			_ = json.Unmarshal(data, &quoted)
			for _, event := range quoted.Hooks {
				found = found || event[0].Hooks[0].Command == shell
			}
			if strings.Contains(string(data), "exec "+shell+"\n") || slices.Equal(words, hook) {
				found = true
			}
			if _, ok := without[name]; !ok {
				t.Errorf("%s: %s is missing without a hook", kind, name)
			}
		}
		if !found {
			t.Errorf("%s: no file names the hook", kind)
		}
		for name, data := range without {
			if strings.Contains(string(data), "command") {
				t.Errorf("%s: %s names a hook although there is none: %s", kind, name, data)
			}
		}
	}
	// A shell runs Codex's script.
	dir := t.TempDir()
	script := filepath.Join(dir, "hook.sh")
	if err := os.WriteFile(script, agent.Codex{}.Files(agent.FilesRequest{Hook: []string{"echo", "it's $HOME"}})["codex-hook.sh"], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", script).CombinedOutput(); err != nil || string(out) != "it's $HOME\n" {
		t.Errorf("the script printed %q: %v", out, err)
	}
}

// Input that the real agents wrote to their hooks.
func TestParseHook(t *testing.T) {
	tests := []struct {
		kind, stdin string
		want        agent.HookCall
	}{
		{"ClaudeCode", `{"session_id":"s","hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command": "rm -rf src"},"tool_use_id":"toolu_1"}`,
			agent.HookCall{CallID: "toolu_1", Name: "Bash", Input: `{"command":"rm -rf src"}`}},
		{"Codex", `{"session_id":"s","turn_id":"t","hook_event_name":"PreToolUse","model":"gpt-5.5","tool_name":"Bash","tool_input":{"command":"make"},"tool_use_id":"call_1"}`,
			agent.HookCall{Name: "command_execution", Input: `{"command":"make"}`}},
		{"Codex", `{"tool_name":"apply_patch","tool_input":{"command":"*** Begin Patch\n"},"tool_use_id":"call_1"}`,
			agent.HookCall{Name: "file_change", Input: `{"command":"*** Begin Patch\n"}`}},
		{"GeminiCLI", `{"session_id":"s","hook_event_name":"BeforeTool","tool_name":"write_file","tool_input":{"file_path":"a"}}`,
			agent.HookCall{Name: "write_file", Input: `{"file_path":"a"}`}},
		{"OpenCode", `{"tool":"bash","callID":"call_1","args":{"command":"ls"}}`,
			agent.HookCall{CallID: "call_1", Name: "bash", Input: `{"command":"ls"}`}},
		{"QwenCode", `{"session_id":"s","hook_event_name":"PreToolUse","tool_name":"run_shell_command","tool_input":{"command":"ls"},"tool_use_id":"toolu_17_x","tool_call_id":"call_1_1"}`,
			agent.HookCall{CallID: "call_1_1", Name: "run_shell_command", Input: `{"command":"ls"}`}},
		{"ClaudeCode", `{"tool_name":"Bash"}`, agent.HookCall{Name: "Bash", Input: `{}`}},
	}
	for _, tt := range tests {
		if got, err := agent.ParseHook(v1alpha1.AgentType(tt.kind), []byte(tt.stdin)); err != nil || got != tt.want {
			t.Errorf("ParseHook(%s, %s) = %+v, %v; want %+v", tt.kind, tt.stdin, got, err, tt.want)
		}
	}
	for kind, stdin := range map[string]string{"ClaudeCode": `{`, "Codex": `{}`, "Exec": `{"tool_name":"a"}`, "OpenCode": `{"tool_name":"a"}`} {
		if got, err := agent.ParseHook(v1alpha1.AgentType(kind), []byte(stdin)); err == nil {
			t.Errorf("ParseHook(%s, %s) = %+v; want an error", kind, stdin, got)
		}
	}
}
