package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/agent"
)

// How each agent is told of the server of Clew's tools. These settings were tested with the real
// agents.
func TestAgentsKnowTheServerOfTheTools(t *testing.T) {
	server := []string{"/run/clew/bin/clew-daemon", "tools"}
	for _, tt := range []struct{ kind, file, want string }{
		{"ClaudeCode", "claude-mcp.json", `{"mcpServers":{"clew":{"alwaysLoad":true,"args":["tools"],"command":"/run/clew/bin/clew-daemon"}}}`},
		{"GeminiCLI", "gemini-extension.json", `{"mcpServers":{"clew":{"args":["tools"],"command":"/run/clew/bin/clew-daemon","timeout":90000}},"name":"clew","version":"1.0.0"}`},
		{"QwenCode", "qwen.json", `{"general":{"enableAutoUpdate":false},"mcpServers":{"clew":{"alwaysLoadTools":true,"args":["tools"],"command":"/run/clew/bin/clew-daemon","timeout":90000,"trust":true}},"privacy":{"usageStatisticsEnabled":false},"telemetry":{"enabled":false}}`},
		{"OpenCode", "opencode.json", `{"autoupdate":false,"mcp":{"clew":{"command":["/run/clew/bin/clew-daemon","tools"],"enabled":true,"timeout":90000,"type":"local"}},"plugin":["file:///f/opencode.js"],"share":"disabled"}`},
	} {
		with := adapter(t, tt.kind).Files(agent.FilesRequest{Tools: server, Dir: "/f"})
		if diff := cmp.Diff(tt.want+"\n", string(with[tt.file])); diff != "" {
			t.Errorf("%s of %s (-want +got):\n%s", tt.file, tt.kind, diff)
		}
		for name, data := range adapter(t, tt.kind).Files(agent.FilesRequest{Dir: "/f"}) {
			if strings.HasSuffix(name, ".json") && (strings.Contains(string(data), "clew-daemon") || !json.Valid(data)) {
				t.Errorf("without tools, %s of %s is %s", name, tt.kind, data)
			}
		}
	}
	for _, tt := range []struct{ kind, want string }{
		{"ClaudeCode", "--mcp-config /f/claude-mcp.json --settings"},
		{"Codex", `-c mcp_servers.clew.command="/run/clew/bin/clew-daemon" -c mcp_servers.clew.args=["tools"] -c mcp_servers.clew.tool_timeout_sec=90`},
	} {
		args := func(tools []string) string {
			return strings.Join(adapter(t, tt.kind).Command(agent.Start{FilesDir: "/f", Tools: tools}).Args, " ")
		}
		if got := args(server); !strings.Contains(got, tt.want) {
			t.Errorf("%s is started with\n%s\nwant also %s", tt.kind, got, tt.want)
		}
		if got := args(nil); strings.Contains(got, "mcp") {
			t.Errorf("without tools, %s is started with\n%s", tt.kind, got)
		}
	}
	env := strings.Join(adapter(t, "OpenCode").Command(agent.Start{FilesDir: "/f", Tools: server}).Env, "\n")
	if !strings.Contains(env, `"mcp":{"clew":{"command":["/run/clew/bin/clew-daemon","tools"]`) {
		t.Errorf("OpenCode's environment is\n%s", env)
	}
}
