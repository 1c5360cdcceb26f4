package agent

import (
	"encoding/json"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// GeminiCLI is the adapter of the Gemini CLI with --output-format stream-json. Tested with
// version 0.61.0.
//
// Its hook is an extension that its home links to, because the CLI accepts system settings
// only from folders owned by root. The hook does not get the call's id. The output does not
// contain thoughts.
type GeminiCLI struct{}

// Executable returns gemini.
func (GeminiCLI) Executable() string { return "gemini" }

// Files returns the extension, with a BeforeTool hook for every tool and the server of Clew's
// tools.
func (GeminiCLI) Files(r FilesRequest) map[string][]byte {
	hooks := map[string]any{}
	if len(r.Hook) > 0 {
		hooks["BeforeTool"] = []any{map[string]any{
			"matcher": "*",
			"hooks": []any{map[string]any{
				"name": "clew", "type": "command", "command": shellWords(r.Hook), "timeout": hookSeconds(r.HookSeconds) * 1000,
			}},
		}}
	}
	return map[string][]byte{
		"gemini-extension.json": jsonFile(map[string]any{
			"name": "clew", "version": "1.0.0", "mcpServers": mcpServers(r.Tools, map[string]any{"timeout": toolSeconds * 1000}),
		}),
		"hooks/hooks.json": jsonFile(map[string]any{"hooks": hooks}),
	}
}

// Command passes the prompt on standard input. Every tool is approved: nobody is there to
// approve it, and the pod is the sandbox.
func (GeminiCLI) Command(s Start) Command {
	args := append(slices.Clone(s.Args), "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust")
	if s.Model != "" {
		args = append(args, "-m", s.Model)
	}
	if s.Session != "" {
		args = append(args, "--resume", s.Session)
	}
	c := Command{Args: args, Stdin: s.Prompt, Env: []string{
		"GEMINI_CLI_NO_RELAUNCH=true", // one process, so that signals reach it
		"GEMINI_TELEMETRY_ENABLED=false",
	}}
	if s.FilesDir != "" {
		c.HomeFiles = map[string][]byte{
			".gemini/extensions/clew/.gemini-extension-install.json": jsonFile(map[string]any{"source": s.FilesDir, "type": "link"}),
		}
	}
	return c
}

// StatePaths returns the chats, the project names that their folders are named after, and
// the agent's memory files, without the credentials and settings beside them.
func (GeminiCLI) StatePaths() []string {
	return []string{".gemini/projects.json", ".gemini/tmp/*/chats", ".gemini/tmp/*/.project_root", ".gemini/tmp/*/memory", ".gemini/GEMINI.md"}
}

// Session reads the session's chat.
func (GeminiCLI) Session(home fs.FS, id string) (Session, error) {
	return geminiSession(home, id)
}

// TokensInSession is true: the output contains tokens only in the result, which a killed
// run does not print.
func (GeminiCLI) TokensInSession() bool { return true }

// AsksBeforeTools is true: in tests, tools waited for the hook.
func (GeminiCLI) AsksBeforeTools() bool { return true }

// KnownErrors is true: the program's error messages are known.
func (GeminiCLI) KnownErrors() bool { return true }

// HookComesFirst is false: the call is printed before its hook runs.
func (GeminiCLI) HookComesFirst() bool { return false }

// NewParser returns a parser for the events of --output-format stream-json.
func (GeminiCLI) NewParser(o ParserOptions) Parser {
	return &geminiParser{prompt: o.Prompt, prices: newPrices(o.Prices), session: cloneSession(o.Session), outcome: outcome{o.Outcome}}
}

// geminiEvent is one line of the output.
type geminiEvent struct {
	Type       string          `json:"type"`
	SessionID  string          `json:"session_id"`
	Model      string          `json:"model"`
	Role       string          `json:"role"`
	Content    *string         `json:"content"`
	Delta      bool            `json:"delta"`
	ToolName   string          `json:"tool_name"`
	ToolID     string          `json:"tool_id"`
	Parameters json.RawMessage `json:"parameters"`
	Status     string          `json:"status"`
	Output     json.RawMessage `json:"output"`
	Message    string          `json:"message"`
	Error      *struct {
		Message string `json:"message"`
	} `json:"error"`
	Stats *struct {
		geminiUsage
		Models map[string]geminiUsage `json:"models"`
	} `json:"stats"`
}

// geminiUsage is the usage of one model, or of all.
type geminiUsage struct {
	Total  count `json:"total_tokens"`
	Input  count `json:"input_tokens"`
	Output count `json:"output_tokens"`
	Cached count `json:"cached"`
}

// Limits of a message that is being streamed; a longer one is split.
const (
	maxDeltaBytes = 1 << 20
	maxDeltas     = 8192
)

// geminiParser parses one run. The assistant's text is streamed in pieces (delta), which
// form one message until another event follows.
type geminiParser struct {
	prompt  string
	prices  prices
	session *daemonv1.AgentSession
	outcome

	said   []byte
	deltas int
}

func (p *geminiParser) Pending() bool                   { return p.deltas > 0 }
func (p *geminiParser) End() []Item                     { return p.flush() }
func (p *geminiParser) Session() *daemonv1.AgentSession { return cloneSession(p.session) }

func (p *geminiParser) Clone() Parser {
	c := *p
	c.session = cloneSession(p.session)
	c.said = slices.Clip(p.said) // so that appending copies the array
	return &c
}

// flush ends the message that is being streamed.
func (p *geminiParser) flush() []Item {
	said := p.said
	p.said, p.deltas = nil, 0
	if len(said) == 0 {
		return nil
	}
	return []Item{textItem(daemonv1.Role_ROLE_ASSISTANT, string(said), "")}
}

func (p *geminiParser) Line(line []byte) []Item {
	var e geminiEvent
	if items, ok := event(line, &e); !ok {
		return append(p.flush(), items...)
	}
	if e.Type == "message" && e.Role == "assistant" && e.Delta && e.Content != nil {
		p.recordProgress()
		p.said = append(p.said, *e.Content...)
		p.deltas++
		if len(p.said) >= maxDeltaBytes || p.deltas >= maxDeltas {
			return p.flush()
		}
		return nil
	}
	return append(p.flush(), p.event(e, line)...)
}

// event returns the items of an event that is not a delta.
func (p *geminiParser) event(e geminiEvent, line []byte) []Item {
	switch {
	case e.Type == "init":
		if e.SessionID != "" {
			p.session = &daemonv1.AgentSession{Agent: "GeminiCLI", Id: Text([]byte(e.SessionID)), Model: Text([]byte(e.Model))}
		}
		return nil
	case e.Type == "message" && e.Content != nil:
		return p.message(e.Role, *e.Content, line)
	case e.Type == "tool_use" && e.ToolID != "" && e.ToolName != "":
		p.recordProgress()
		return []Item{call(e.ToolID, e.ToolName, e.Parameters, "")}
	case e.Type == "tool_result" && e.ToolID != "":
		answer := joinTexts(e.Output)
		if answer == "" && e.Error != nil {
			answer = e.Error.Message
		}
		return []Item{result(e.ToolID, answer, e.Status == "error", "")}
	case e.Type == "error" && e.Message != "":
		f := failure(0, e.Message)
		if geminiGaveUp.MatchString(e.Message) {
			f.Cause = CauseGaveUp
		}
		p.recordError(f)
		return []Item{notice(e.Message)}
	case e.Type == "result":
		return p.result(e)
	}
	return []Item{unknown(line)}
}

// message returns the items of a complete message.
func (p *geminiParser) message(role, text string, line []byte) []Item {
	switch {
	case role == "assistant" && text != "":
		return []Item{textItem(daemonv1.Role_ROLE_ASSISTANT, text, "")}
	case role == "user" && samePrompt(text, p.prompt), text == "":
		return nil
	case role == "user":
		return []Item{textItem(daemonv1.Role_ROLE_SYSTEM, text, "")}
	}
	return []Item{unknown(line)}
}

// geminiGaveUp matches the errors after which the CLI nevertheless ends with success.
var geminiGaveUp = regexp.MustCompile(`(?i)^(?:loop detected|maximum session turns|max(?:imum)? turns|.*\bturn limit\b)`)

// conclude records how the run ended. An agent that was stopped in a loop ends with
// "success".
func (p *geminiParser) conclude(e geminiEvent) {
	switch before := p.reported.Failure; {
	case e.Error != nil && e.Error.Message != "":
		f := failure(0, e.Error.Message)
		f.Message = Text([]byte(strings.TrimSuffix(apiMessage(e.Error.Message), "]")))
		p.recordEnd(f)
	case e.Status == "error" && before == nil:
		p.recordEnd(&Failure{Message: "the Gemini CLI ended with an error that it did not describe"})
	case e.Status == "error", before != nil && before.Cause == CauseGaveUp:
		p.recordEnd(before)
	default:
		p.recordEnd(nil)
	}
}

// result ends the run with its usage by model.
func (p *geminiParser) result(e geminiEvent) []Item {
	p.conclude(e)
	var items []Item
	if e.Error != nil && e.Error.Message != "" {
		items = append(items, notice(e.Error.Message))
	}
	if e.Stats == nil {
		return items
	}
	var used []Item
	if len(e.Stats.Models) == 0 {
		used = p.usage(p.session.GetModel(), e.Stats.geminiUsage)
	}
	for _, model := range slices.Sorted(maps.Keys(e.Stats.Models)) {
		used = append(used, p.usage(model, e.Stats.Models[model])...)
	}
	p.reported.Counted = len(used) > 0
	return append(items, used...)
}

// usage counts thoughts as output; only the total contains them.
func (p *geminiParser) usage(model string, g geminiUsage) []Item {
	u := &daemonv1.Usage{
		InputTokens:       int64(g.Input),
		CachedInputTokens: int64(g.Cached),
		OutputTokens:      int64(max(g.Output, g.Total-g.Input)),
		Model:             Text([]byte(strings.TrimSpace(model))),
	}
	u.CostMicroUsd = p.prices.cost(u)
	items := addUsage(u)
	for i := range items {
		items[i].WholeRun = true
	}
	return items
}
