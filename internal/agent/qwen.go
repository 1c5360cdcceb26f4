package agent

import (
	"encoding/json"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// QwenCode is the adapter of Qwen Code: `qwen` with JSON output, whose events are those of
// Claude Code. Tested with version 0.24.4.
//
// Like Claude Code, it is resumed without a fork.
type QwenCode struct{}

// Executable returns qwen.
func (QwenCode) Executable() string { return "qwen" }

const qwenSettings = "qwen.json"

// Files returns settings with a PreToolUse hook for every tool, and the server of Clew's tools.
// They replace the system
// settings, which the user's and the project's settings cannot override.
func (QwenCode) Files(r FilesRequest) map[string][]byte {
	settings := map[string]any{
		"general":   map[string]any{"enableAutoUpdate": false},
		"privacy":   map[string]any{"usageStatisticsEnabled": false},
		"telemetry": map[string]any{"enabled": false},
	}
	if len(r.Tools) > 0 {
		settings["mcpServers"] = mcpServers(r.Tools, map[string]any{"timeout": toolSeconds * 1000, "trust": true, "alwaysLoadTools": true})
	}
	if len(r.Hook) > 0 {
		settings["hooks"] = map[string]any{"PreToolUse": []any{map[string]any{
			"matcher": "*",
			// In milliseconds: older versions read nothing else, and newer ones read numbers from 1000 as such.
			"hooks": []any{map[string]any{"type": "command", "command": shellWords(r.Hook), "timeout": hookSeconds(r.HookSeconds) * 1000}},
		}}}
	}
	return map[string][]byte{qwenSettings: jsonFile(settings)}
}

// Command passes the prompt on standard input. All permission prompts are disabled, as for
// Claude Code.
func (QwenCode) Command(s Start) Command {
	args := append(slices.Clone(s.Args), "--output-format", "stream-json", "--approval-mode", "yolo")
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Session != "" {
		args = append(args, "--resume", s.Session)
	}
	c := Command{Args: args, Stdin: s.Prompt, Env: []string{
		"QWEN_CODE_NO_RELAUNCH=true", // one process, so that signals reach it
		"QWEN_CODE_SUPPRESS_YOLO_WARNING=1",
	}}
	if s.FilesDir != "" {
		c.Env = append(c.Env, "QWEN_CODE_SYSTEM_SETTINGS_PATH="+path.Join(s.FilesDir, qwenSettings))
	}
	return c
}

// StatePaths returns the transcripts, without the credentials and settings beside them.
func (QwenCode) StatePaths() []string { return []string{".qwen/projects"} }

// Session reads the session's transcript.
func (QwenCode) Session(home fs.FS, id string) (Session, error) { return qwenSession(home, id) }

// TokensInSession is false: each message contains its usage.
func (QwenCode) TokensInSession() bool { return false }

// AsksBeforeTools is true: in tests, tools waited for the hook.
func (QwenCode) AsksBeforeTools() bool { return true }

// KnownErrors is true: the program's error messages are known.
func (QwenCode) KnownErrors() bool { return true }

// HookComesFirst is false: the call is printed before its hook runs.
func (QwenCode) HookComesFirst() bool { return false }

// NewParser returns a parser for the events of --output-format stream-json.
func (QwenCode) NewParser(o ParserOptions) Parser {
	return newClaudeParser(o, v1alpha1.AgentQwenCode, "Qwen Code")
}

// qwenSession reads a transcript: one JSON object per line. Those of the type tool_result
// contain the results of tools.
func qwenSession(home fs.FS, id string) (Session, error) {
	if !sessionID(id) {
		return Session{}, errNoSession("%q is not a session of Qwen Code", id)
	}
	file := newest(home, find(home, ".qwen/projects/*/chats/"+id+".jsonl"))
	if file == "" {
		return Session{}, errNoSession("Qwen Code has no file of session %s in .qwen/projects", id)
	}
	results, messages := map[string]bool{}, 0
	err := readLines(home, file, func(line []byte) {
		var e struct {
			Type    string `json:"type"`
			Message struct {
				Parts []struct {
					Response struct {
						ID string `json:"id"`
					} `json:"functionResponse"`
				} `json:"parts"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &e) != nil || !slices.Contains([]string{"user", "assistant", "tool_result"}, e.Type) {
			return
		}
		messages++
		for _, part := range e.Message.Parts {
			if id := part.Response.ID; id != "" && len(results) < maxSessionResults {
				results[Text([]byte(id))] = true
			}
		}
	})
	if err != nil {
		return Session{}, err
	}
	if messages == 0 {
		return Session{}, errNoSession("the file of session %s contains no message", id)
	}
	return Session{Results: results, ResultCount: len(results)}, nil
}

// qwenAPIError begins the text that Qwen Code prints instead of an answer if the model's
// API fails.
const qwenAPIError = "[API Error: "

// apiError returns the text of a message that is an API error of Qwen Code.
func (p *claudeParser) apiError(text string) (message string, is bool) {
	if p.kind != v1alpha1.AgentQwenCode || !strings.HasPrefix(text, qwenAPIError) {
		return "", false
	}
	return strings.TrimSuffix(text, "]"), true
}
