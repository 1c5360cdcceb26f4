package agent

import (
	"io/fs"
	"path"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ClaudeCode is the adapter of Claude Code: `claude -p` with JSON output. Tested with
// version 2.1.329.
//
// It is resumed without a fork: its session file is restored with the checkpoint that it
// belongs to, so there is nothing to remove from it, and the session keeps its id.
type ClaudeCode struct{}

// Executable returns claude.
func (ClaudeCode) Executable() string { return "claude" }

const (
	claudeSettings = "claude.json"
	claudeServers  = "claude-mcp.json"
)

// Files returns settings with a PreToolUse hook for every tool, and the server of Clew's tools,
// which are few, and so are not left for the model to search for.
func (ClaudeCode) Files(r FilesRequest) map[string][]byte {
	settings := map[string]any{}
	if len(r.Hook) > 0 {
		settings["hooks"] = map[string]any{"PreToolUse": []any{map[string]any{
			"matcher": "*",
			"hooks":   []any{map[string]any{"type": "command", "command": shellWords(r.Hook), "timeout": hookSeconds(r.HookSeconds)}},
		}}}
	}
	return map[string][]byte{
		claudeSettings: jsonFile(settings),
		claudeServers:  jsonFile(map[string]any{"mcpServers": mcpServers(r.Tools, map[string]any{"alwaysLoad": true})}),
	}
}

// Command passes the prompt on standard input, where it may begin with a dash and have
// any size. All permission prompts are disabled: nobody is there to answer them, and the
// pod is the sandbox. (Claude Code does not allow that for root, but agents never run as
// root.)
func (ClaudeCode) Command(s Start) Command {
	args := append(slices.Clone(s.Args), "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
	if s.FilesDir != "" {
		if len(s.Tools) > 0 {
			// In front of another option, since it takes any number of files. The user's own
			// servers, from this option or from settings, are kept.
			args = append(args, "--mcp-config", path.Join(s.FilesDir, claudeServers))
		}
		args = append(args, "--settings", path.Join(s.FilesDir, claudeSettings))
	}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Session != "" {
		args = append(args, "--resume", s.Session)
	}
	return Command{Args: args, Stdin: s.Prompt, Env: []string{
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1",
		"DISABLE_ERROR_REPORTING=1",
		"DISABLE_TELEMETRY=1",
	}}
}

// StatePaths returns the transcripts, the agent's memory and its lists of tasks, without
// the credentials and settings beside them.
func (ClaudeCode) StatePaths() []string {
	return []string{".claude/projects", ".claude/tasks", ".claude/todos", ".claude/plans"}
}

// Session reads the session's transcript.
func (ClaudeCode) Session(home fs.FS, id string) (Session, error) {
	return claudeSession(home, id)
}

// TokensInSession is false: each message contains its usage.
func (ClaudeCode) TokensInSession() bool { return false }

// AsksBeforeTools is true: in tests, tools waited for the hook, also for users other than
// root.
func (ClaudeCode) AsksBeforeTools() bool { return true }

// KnownErrors is true: the program's error messages are known.
func (ClaudeCode) KnownErrors() bool { return true }

// HookComesFirst is false: the call is printed before its hook runs.
func (ClaudeCode) HookComesFirst() bool { return false }

// NewParser returns a parser for the events of --output-format stream-json.
func (ClaudeCode) NewParser(o ParserOptions) Parser {
	return newClaudeParser(o, v1alpha1.AgentClaudeCode, "Claude Code")
}

// newClaudeParser returns a parser for a kind of agent that prints the events of Claude
// Code.
func newClaudeParser(o ParserOptions, kind v1alpha1.AgentType, program string) Parser {
	p := &claudeParser{kind: kind, program: program, prompt: o.Prompt, prices: newPrices(o.Prices), model: o.Model,
		session: cloneSession(o.Session), outcome: outcome{o.Outcome}}
	if p.session.GetModel() != "" {
		p.model = p.session.GetModel()
	}
	return p
}
