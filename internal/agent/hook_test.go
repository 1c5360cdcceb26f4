package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/agent"
)

// An agent waits for its hook at least as long as a person may take to answer; the agents disagree on
// the unit.
func TestAgentsWaitForTheirHook(t *testing.T) {
	for _, tt := range []struct {
		kind, file, event string
		perSecond         int
	}{
		{"ClaudeCode", "claude.json", "PreToolUse", 1},
		{"GeminiCLI", "hooks/hooks.json", "BeforeTool", 1000},
		{"QwenCode", "qwen.json", "PreToolUse", 1000},
	} {
		for seconds, want := range map[int]int{0: 600, 87060: 87060} {
			files := adapter(t, tt.kind).Files(agent.FilesRequest{Hook: []string{"clew", "hook"}, HookSeconds: seconds, Dir: "/f"})
			var settings struct {
				Hooks map[string][]struct{ Hooks []struct{ Timeout int } }
			}
			if err := json.Unmarshal(files[tt.file], &settings); err != nil || len(settings.Hooks[tt.event]) == 0 {
				t.Errorf("%s: %s has no hook: %s (%v)", tt.kind, tt.file, files[tt.file], err)
				continue
			}
			if got := settings.Hooks[tt.event][0].Hooks[0].Timeout; got != want*tt.perSecond {
				t.Errorf("%s: the timeout for %d seconds is %d, want %d", tt.kind, seconds, got, want*tt.perSecond)
			}
		}
	}
	args := strings.Join(adapter(t, "Codex").Command(agent.Start{FilesDir: "/f", HookSeconds: 87060}).Args, " ")
	if want := fmt.Sprintf("timeout=%d}", 87060); !strings.Contains(args, want) {
		t.Errorf("Codex is started with %s, want also %s", args, want)
	}
}

// OpenCode has no hooks: Clew's plugin refuses a call by an error, with what the hook has said.
func TestThePluginOfOpenCodeRefuses(t *testing.T) {
	plugin := string(agent.OpenCode{}.Files(agent.FilesRequest{Hook: []string{"clew", "hook"}, Dir: "/f"})["opencode.js"])
	for _, part := range []string{`stdio: ["pipe", "ignore", "pipe"]`, "if (code === 2) return reject(new Error(said.trim()))"} {
		if !strings.Contains(plugin, part) {
			t.Errorf("the plugin lacks %s:\n%s", part, plugin)
		}
	}
}
