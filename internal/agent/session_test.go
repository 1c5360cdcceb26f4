package agent_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/agent"
)

func home(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, data := range files {
		m[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return m
}

const (
	claudeFile   = ".claude/projects/-workspace/01-ab.jsonl"
	codexFile    = ".codex/sessions/2026/11/21/rollout-2026-11-21T12-36-54-01-ab.jsonl"
	geminiFile   = ".gemini/tmp/workspace/chats/session-2026-11-21T12-37-c00d9cd7.jsonl"
	geminiID     = "c00d9cd7-9aa2"
	openCodeFile = ".local/share/opencode/opencode.db"
	qwenFile     = ".qwen/projects/-workspace/chats/01-ab.jsonl"
)

func TestSession(t *testing.T) {
	ids := func(s ...string) map[string]bool {
		m := map[string]bool{}
		for _, id := range s {
			m[id] = true
		}
		return m
	}
	claude := `{"type":"queue-operation"}
{"type":"user","message":{"content":"go"}}
{"type":"assistant","message":{"content":[{"type":"tool_use","id":"a","name":"Bash","input":{}},{"type":"tool_use","id":"b","name":"Bash","input":{}}]}}
{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}}
no JSON
{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"c","content":"` + strings.Repeat("long ", 300_000) + `"}]}}
{"type":"user","message":{"content":[{"type":"tool_res`
	tests := []struct {
		name, kind, id string
		files          map[string]string
		want           agent.Session
	}{
		{"results, including a very long one, without the incomplete line", "ClaudeCode", "01-ab", map[string]string{claudeFile: claude},
			agent.Session{Results: ids("a", "c"), ResultCount: 2}},
		{"results of subagents", "ClaudeCode", "01-ab", map[string]string{claudeFile: claude,
			".claude/projects/-workspace/01-ab/subagents/agent-1.jsonl": `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"s"}]}}`},
			agent.Session{Results: ids("a", "c", "s"), ResultCount: 3}},
		{"counted by items", "Codex", "01-ab", map[string]string{codexFile: `{"type":"session_meta","payload":{"id":"01-ab"}}
{"type":"response_item","payload":{"type":"function_call_output","call_id":"1"}}
{"type":"event_msg","payload":{"type":"item_completed","item":{"type":"CommandExecution","id":"1"}}}
{"type":"response_item","payload":{"type":"function_call_output","call_id":"poll"}}
{"type":"event_msg","payload":{"type":"item_completed","item":{"type":"AgentMessage","id":"m"}}}
`}, agent.Session{ResultCount: 1}},
		{"counted by outputs in versions without items", "Codex", "01-ab", map[string]string{codexFile: `{"type":"session_meta","payload":{"id":"01-ab"}}
{"type":"response_item","payload":{"type":"function_call_output","call_id":"1"}}
{"type":"response_item","payload":{"type":"custom_tool_call_output","call_id":"2"}}`}, agent.Session{ResultCount: 2}},
		{"results that are stored twice", "GeminiCLI", geminiID, map[string]string{geminiFile: `{"sessionId":"c00d9cd7-9aa2","kind":"main"}
{"$set":{"lastUpdated":"x"}}
{"type":"user","content":[{"text":"go"}]}
{"type":"gemini","content":"","toolCalls":[{"id":"a","result":[{}]},{"id":"open"}]}
{"type":"user","content":[{"functionResponse":{"id":"a"}}]}
{"type":"gemini","content":"","toolCalls":[{"id":"b","result":[{}]}]}`}, agent.Session{Results: ids("a", "b"), ResultCount: 2}},
		{"a patch that replaces the messages", "GeminiCLI", geminiID, map[string]string{geminiFile: `{"sessionId":"c00d9cd7-9aa2"}
{"type":"gemini","toolCalls":[{"id":"a","result":[{}]}]}
{"$set":{"messages":[{"type":"gemini","toolCalls":[{"id":"b","result":[{}]}]}]}}`}, agent.Session{Results: ids("b"), ResultCount: 1}},
		{"tokens by model, each answer once, from the files of resumes and subagents too", "GeminiCLI", geminiID, map[string]string{
			geminiFile: `{"sessionId":"c00d9cd7-9aa2"}
{"id":"1","type":"gemini","tokens":{"input":100,"output":20,"cached":40,"thoughts":5,"total":125},"model":"pro"}
{"id":"1","type":"gemini","tokens":{"input":100,"output":20,"cached":40,"thoughts":5,"total":125},"model":"pro","toolCalls":[{"id":"a","result":[{}]}]}
{"$set":{"messages":[{"id":"1","type":"gemini","tokens":{"input":100,"output":20,"cached":40,"total":125},"model":"pro","toolCalls":[{"id":"a","result":[{}]}]}]}}
{"id":"2","type":"gemini","tokens":{"input":10,"output":2,"cached":0,"total":12},"model":"flash"}
{"id":"3","type":"gemini","tokens":{"inp`,
			".gemini/tmp/workspace/chats/session-2026-11-21T12-38-c00d9cd7.jsonl": `{"sessionId":"c00d9cd7-9aa2"}
{"$set":{"messages":[{"type":"user","content":[{"text":"go"}]}]}}`,
			".gemini/tmp/workspace/chats/session-2026-11-21T12-39-c00d9cd7.jsonl": `{"sessionId":"c00d9cd7-ffff"}
{"id":"9","type":"gemini","tokens":{"input":1000},"model":"flash"}`,
			".gemini/tmp/workspace/chats/c00d9cd7-9aa2/sub.jsonl": `{"id":"s","type":"gemini","tokens":{"input":1,"output":1,"total":2},"model":"flash"}`,
		}, agent.Session{Results: ids("a"), ResultCount: 1, Tokens: []agent.Tokens{{Model: "flash", Input: 11, Output: 3}, {Model: "pro", Input: 100, Cached: 40, Output: 25}}}},
		{"results, without the incomplete line", "QwenCode", "01-ab", map[string]string{qwenFile: `{"type":"system","subtype":"ui_telemetry"}
{"type":"user","message":{"role":"user","parts":[{"text":"go"}]}}
{"type":"assistant","message":{"role":"model","parts":[{"functionCall":{"id":"a","name":"edit","args":{}}},{"functionCall":{"id":"b","name":"edit","args":{}}}]}}
{"type":"tool_result","message":{"role":"user","parts":[{"functionResponse":{"id":"a","name":"edit","response":{"output":"x"}}}]}}
{"type":"tool_result","message":{"role":"user","parts":[{"functionRes`}, agent.Session{Results: ids("a"), ResultCount: 1}},
		{"in the database", "OpenCode", "ses_1", map[string]string{openCodeFile: "SQLite" + strings.Repeat("x", 300_000) + "ses_1"}, agent.Session{ResultCount: -1}},
		{"in the write-ahead log, across two reads", "OpenCode", "ses_1", map[string]string{openCodeFile: "", openCodeFile + "-wal": strings.Repeat("x", 256<<10-2) + "ses_1"}, agent.Session{ResultCount: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.kind+" "+tt.name, func(t *testing.T) {
			got, err := adapter(t, tt.kind).Session(home(tt.files), tt.id)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("session (-want +got):\n%s", d)
			}
		})
	}
}

func TestNoSession(t *testing.T) {
	tests := []struct {
		name, kind, id string
		files          map[string]string
	}{
		{"no files", "ClaudeCode", "01-ab", nil},
		{"no files", "Codex", "01-ab", nil},
		{"no files", "GeminiCLI", geminiID, nil},
		{"no files", "OpenCode", "ses_1", nil},
		{"no files", "QwenCode", "01-ab", nil},
		{"no message", "QwenCode", "01-ab", map[string]string{qwenFile: `{"type":"system"}`}},
		{"an id that is a path", "QwenCode", "../x", map[string]string{qwenFile: `{"type":"user"}`}},
		{"an id that is a path", "ClaudeCode", "../x", map[string]string{".claude/projects/x.jsonl": `{"type":"user"}`}},
		{"an id that is a pattern", "ClaudeCode", "*", map[string]string{claudeFile: `{"type":"user"}`}},
		{"an id that is too short", "GeminiCLI", "c0", map[string]string{geminiFile: `{"sessionId":"c0"}`}},
		{"no message", "ClaudeCode", "01-ab", map[string]string{claudeFile: `{"type":"queue-operation"}`}},
		{"the rollout of another", "Codex", "01-ab", map[string]string{codexFile: `{"type":"session_meta","payload":{"id":"other"}}`}},
		{"the chat of another", "GeminiCLI", geminiID, map[string]string{geminiFile: `{"sessionId":"c00d9cd7-ffff"}` + "\n" + `{"type":"user"}`}},
		{"not in the database", "OpenCode", "ses_1", map[string]string{openCodeFile: "ses_2"}},
		{"Exec has none", "Exec", "1", nil},
	}
	for _, tt := range tests {
		if got, err := adapter(t, tt.kind).Session(home(tt.files), tt.id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, %s: got %v, %v; want fs.ErrNotExist", tt.kind, tt.name, got, err)
		}
	}
}

// Folders, pipes and links in place of the agent's files do not block the reader.
func TestSessionOfHostileFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".claude/projects/p/01-cd.jsonl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ".claude/projects/p/01-ab.jsonl"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, ".claude/projects/p/01-ef.jsonl")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	go func() {
		for _, id := range []string{"01-ab", "01-cd", "01-ef"} {
			_, err := agent.ClaudeCode{}.Session(os.DirFS(dir), id)
			done <- err
		}
	}()
	for range 3 {
		select {
		case err := <-done:
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %v, want fs.ErrNotExist", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the reader is blocked")
		}
	}
}

// The state paths never match a file with credentials.
func TestStatePathsHoldNoCredentials(t *testing.T) {
	secrets := []string{
		".claude/.credentials.json", ".claude.json", ".claude/settings.json", ".codex/auth.json", ".codex/config.toml",
		".gemini/oauth_creds.json", ".gemini/settings.json", ".gemini/.env", ".gemini/google_accounts.json",
		".local/share/opencode/auth.json", ".local/share/opencode/mcp-auth.json", ".config/opencode/opencode.json",
		".qwen/oauth_creds.json", ".qwen/settings.json", ".qwen/.env",
	}
	for _, kind := range []string{"ClaudeCode", "Codex", "GeminiCLI", "OpenCode", "QwenCode"} {
		for _, pattern := range adapter(t, kind).StatePaths() {
			for _, secret := range secrets {
				parts := strings.Split(secret, "/")
				for i := range parts {
					if match, err := filepath.Match(pattern, strings.Join(parts[:i+1], "/")); match || err != nil {
						t.Errorf("%s: the state path %s matches %s: %v", kind, pattern, secret, err)
					}
				}
			}
		}
	}
}
