package agent

import (
	"encoding/json"
	"io/fs"
	"path"
	"slices"
	"strings"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// OpenCode is the adapter of OpenCode: `opencode run --format json`. Tested with version
// 1.18.33.
//
// It prints a tool call once the tool has ended, so call and result appear together; the
// hook runs before the tool.
type OpenCode struct{}

// Executable returns opencode.
func (OpenCode) Executable() string { return "opencode" }

const (
	openCodeConfig = "opencode.json"
	openCodePlugin = "opencode.js"
)

// Files returns settings for OPENCODE_CONFIG, and a plugin that runs the hook. The
// settings refer to the plugin by its path in FilesRequest.Dir.
func (OpenCode) Files(r FilesRequest) map[string][]byte {
	hook, err := marshal(append([]string{}, r.Hook...))
	if err != nil {
		hook = "[]"
	}
	return map[string][]byte{
		openCodeConfig: jsonFile(openCodeSettings(r.Dir, r.Tools)),
		openCodePlugin: []byte(strings.Replace(openCodePluginSource, "HOOK", hook, 1)),
	}
}

// openCodeSettings returns Clew's settings, with the plugin if its folder is known, and with
// the server of Clew's tools.
func openCodeSettings(dir string, tools []string) map[string]any {
	settings := map[string]any{"autoupdate": false, "share": "disabled"}
	if dir != "" {
		settings["plugin"] = []any{"file://" + path.Join(dir, openCodePlugin)}
	}
	if len(tools) > 0 {
		settings["mcp"] = map[string]any{toolServer: map[string]any{
			"type": "local", "command": tools, "enabled": true, "timeout": toolSeconds * 1000,
		}}
	}
	return settings
}

const openCodePluginSource = `import { spawn } from "node:child_process"

const hook = HOOK

// Runs the hook before each tool and waits until it ends. The exit code 2 refuses the tool, with what
// the hook has written to its standard error.
export const Clew = async () => ({
  "tool.execute.before": (input, output) => new Promise((resolve, reject) => {
    if (hook.length === 0) return resolve()
    const child = spawn(hook[0], hook.slice(1), { stdio: ["pipe", "ignore", "pipe"] })
    let said = ""
    child.stderr.on("data", (data) => { said += data })
    child.on("error", () => resolve())
    child.on("close", (code) => {
      if (code === 2) return reject(new Error(said.trim()))
      if (said !== "") process.stderr.write(said)
      resolve()
    })
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify({ tool: input.tool, callID: input.callID, args: output.args }))
  }),
})
`

// Command passes the prompt on standard input: as an argument, it would reach the model
// in quotes. Everything that the user's settings do not deny is allowed, since nobody is
// there to approve it. Clew's settings are passed in the first of two variables that the
// user has not set.
func (OpenCode) Command(s Start) Command {
	args := append(slices.Clone(s.Args), "run", "--format", "json", "--auto", "--thinking")
	if s.Worktree != "" {
		args = append(args, "--dir", s.Worktree) // it hangs when resumed elsewhere
	}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Session != "" {
		args = append(args, "--session", s.Session)
	}
	c := Command{Args: args, Stdin: s.Prompt, Env: []string{
		"OPENCODE_DISABLE_AUTOUPDATE=1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD=1",
	}}
	if s.FilesDir == "" {
		return c
	}
	// With a plugin, OpenCode waits until npm has installed the package for writing
	// plugins next to its settings. Clew's plugin does not need it, and without
	// access to npm the wait takes more than a minute. These files make OpenCode
	// believe that the package is installed.
	c.HomeFiles = map[string][]byte{
		".config/opencode/package-lock.json":       jsonFile(map[string]any{"packages": map[string]any{"": map[string]any{"dependencies": map[string]any{"@opencode-ai/plugin": "*"}}}}),
		".config/opencode/node_modules/.clew.json": jsonFile(map[string]any{}),
	}
	taken := func(name string) bool {
		return slices.ContainsFunc(s.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	if !taken("OPENCODE_CONFIG_CONTENT") {
		c.Env = append(c.Env, "OPENCODE_CONFIG_CONTENT="+strings.TrimSpace(string(jsonFile(openCodeSettings(s.FilesDir, s.Tools)))))
	} else if !taken("OPENCODE_CONFIG") {
		c.Env = append(c.Env, "OPENCODE_CONFIG="+path.Join(s.FilesDir, openCodeConfig))
	}
	return c
}

// StatePaths returns the database with its write-ahead log, and the files of older
// versions; auth.json and the snapshots of the worktree are beside them.
func (OpenCode) StatePaths() []string {
	const data = ".local/share/opencode/"
	return []string{data + "opencode*.db", data + "opencode*.db-wal", data + "storage"}
}

// Session searches for the session in the database. It does not return the results in
// it, since the database is ahead of what OpenCode prints.
func (OpenCode) Session(home fs.FS, id string) (Session, error) {
	return openCodeSession(home, id)
}

// TokensInSession is false: each step contains its usage.
func (OpenCode) TokensInSession() bool { return false }

// AsksBeforeTools is true: in tests, tools waited for the plugin.
func (OpenCode) AsksBeforeTools() bool { return true }

// KnownErrors is true: the program's error messages are known.
func (OpenCode) KnownErrors() bool { return true }

// HookComesFirst is true: a call is printed together with its result.
func (OpenCode) HookComesFirst() bool { return true }

// NewParser returns a parser for the events of --format json.
func (OpenCode) NewParser(o ParserOptions) Parser {
	p := &openCodeParser{model: o.Model, prices: newPrices(o.Prices), session: cloneSession(o.Session), outcome: outcome{o.Outcome}}
	if p.model == "" {
		p.model = p.session.GetModel()
	}
	return p
}

// openCodeEvent is one line of the output.
type openCodeEvent struct {
	Type      string          `json:"type"`
	SessionID string          `json:"sessionID"`
	Part      openCodePart    `json:"part"`
	Error     json.RawMessage `json:"error"`
}

// openCodePart is the part of a message that an event is about.
type openCodePart struct {
	Text   string `json:"text"`
	Reason string `json:"reason"`
	Tool   string `json:"tool"`
	CallID string `json:"callID"`
	State  struct {
		Status string          `json:"status"`
		Input  json.RawMessage `json:"input"`
		Output json.RawMessage `json:"output"`
		Error  string          `json:"error"`
	} `json:"state"`
	Tokens *openCodeTokens `json:"tokens"`
	Cost   dollars         `json:"cost"`
}

// openCodeTokens is the usage of a step.
type openCodeTokens struct {
	Total     count `json:"total"`
	Input     count `json:"input"`
	Output    count `json:"output"`
	Reasoning count `json:"reasoning"`
	Cache     struct {
		Write count `json:"write"`
		Read  count `json:"read"`
	} `json:"cache"`
}

// openCodeParser parses one run.
type openCodeParser struct {
	model   string
	prices  prices
	session *daemonv1.AgentSession
	outcome
}

func (p *openCodeParser) Pending() bool                   { return false }
func (p *openCodeParser) End() []Item                     { return nil }
func (p *openCodeParser) Session() *daemonv1.AgentSession { return cloneSession(p.session) }

func (p *openCodeParser) Clone() Parser {
	c := *p
	c.session = cloneSession(p.session)
	return &c
}

func (p *openCodeParser) Line(line []byte) []Item {
	var e openCodeEvent
	if items, ok := event(line, &e); !ok {
		return items
	}
	if e.SessionID != "" && p.session.GetId() != e.SessionID {
		p.session = &daemonv1.AgentSession{Agent: "OpenCode", Id: Text([]byte(e.SessionID)), Model: Text([]byte(p.model))}
	}
	part := e.Part
	if e.Type != "error" {
		p.recordProgress()
	}
	switch {
	case e.Type == "step_start":
		return nil
	case e.Type == "text" && part.Text != "":
		return []Item{textItem(daemonv1.Role_ROLE_ASSISTANT, part.Text, "")}
	case e.Type == "reasoning" && part.Text != "":
		return []Item{thought(part.Text)}
	case e.Type == "tool_use" && part.CallID != "" && part.Tool != "":
		return p.tool(part, line)
	case e.Type == "step_finish":
		if part.Reason == "stop" {
			p.recordEnd(nil)
		}
		return p.usage(part)
	case e.Type == "error" && len(e.Error) > 0:
		f := openCodeFailure(e.Error)
		p.recordEnd(f)
		return []Item{notice(f.Message)}
	}
	return []Item{unknown(line)}
}

// tool returns a call and its result.
func (p *openCodeParser) tool(part openCodePart, line []byte) []Item {
	answer, isError := joinTexts(part.State.Output), part.State.Status == "error"
	if isError && part.State.Error != "" {
		answer = part.State.Error
	}
	if part.State.Status != "completed" && !isError {
		return []Item{unknown(line)}
	}
	return []Item{call(part.CallID, part.Tool, part.State.Input, ""), result(part.CallID, answer, isError, "")}
}

// usage returns the usage of a step. Thoughts count as output, and only the total is
// certain to contain them. OpenCode's cost is zero for models without a price.
func (p *openCodeParser) usage(part openCodePart) []Item {
	t := part.Tokens
	if t == nil {
		return nil
	}
	input := t.Input + t.Cache.Read + t.Cache.Write
	u := &daemonv1.Usage{
		InputTokens:       int64(input),
		CachedInputTokens: int64(t.Cache.Read),
		OutputTokens:      int64(t.Output + t.Reasoning),
		CostMicroUsd:      part.Cost.micro(),
		Model:             Text([]byte(p.model)),
	}
	if t.Total >= input+t.Output {
		u.OutputTokens = int64(t.Total - input)
	}
	if u.CostMicroUsd == 0 {
		u.CostMicroUsd = p.prices.cost(u)
	}
	return addUsage(u)
}

// openCodeFailure classifies an error. Errors of APIs contain their status and headers.
func openCodeFailure(raw json.RawMessage) *Failure {
	var e struct {
		Name string `json:"name"`
		Data struct {
			Message string            `json:"message"`
			Status  int               `json:"statusCode"`
			Headers map[string]string `json:"responseHeaders"`
			Body    string            `json:"responseBody"`
		} `json:"data"`
	}
	if json.Unmarshal(raw, &e) != nil || e.Data.Message == "" {
		return failure(0, joinTexts(raw))
	}
	f := failure(e.Data.Status, e.Data.Message)
	f.Cause = causeOf(e.Data.Status, strings.Join([]string{e.Name, e.Data.Message, e.Data.Body}, "\n"))
	if e.Name == "ProviderAuthError" {
		f.Cause = CauseUnauthorized
	}
	if after := e.Data.Headers["retry-after"]; after != "" {
		f.RetryAfter = retryAfter("retry-after: " + after)
	}
	return f
}
