package agent

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Codex is the adapter of the Codex CLI: `codex exec --json`. Tested with version 0.169.0.
//
// Codex restarts the numbering of its items in each run ("item_0"), so the ids of tool
// calls consist of the thread's id, ParserOptions.Run and the item's id:
// "01a1…-5e0/3/item_0".
//
// The hook does not get the item's id, so HookCall.CallID is empty. It runs before
// commands, patches and MCP tools, but not before input is sent to a running command.
type Codex struct{}

// Executable returns codex.
func (Codex) Executable() string { return "codex" }

const codexHook = "codex-hook.sh"

// Files returns a script that runs the hook. It exists without a hook too, because Command
// refers to it.
func (Codex) Files(r FilesRequest) map[string][]byte {
	script := "exit 0\n"
	if len(r.Hook) > 0 {
		script = "exec " + shellWords(r.Hook) + "\n"
	}
	return map[string][]byte{codexHook: []byte(script)}
}

// Command passes the prompt on standard input. Codex's approvals and sandbox are disabled:
// nobody is there to approve, and the pod is the sandbox. The hook is trusted for this run
// only, since Codex has no other way to trust a hook that is not in its home.
func (Codex) Command(s Start) Command {
	before, settings := codexSettings(s.Args)
	args := append(before, "exec")
	if s.Session != "" {
		args = append(args, "resume")
	}
	args = append(args, settings...)
	args = append(args, "--json", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check",
		"-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false", "-c", "feedback.enabled=false")
	if s.FilesDir != "" {
		hook := fmt.Sprintf(`hooks.PreToolUse=[{matcher="*",hooks=[{type="command",command=%s,timeout=%d}]}]`,
			tomlString("sh "+shellWords([]string{path.Join(s.FilesDir, codexHook)})), hookSeconds(s.HookSeconds))
		args = append(args, "--dangerously-bypass-hook-trust", "-c", hook)
	}
	args = append(args, codexTools(s.Tools)...)
	if s.Model != "" {
		args = append(args, "-m", s.Model)
	}
	if s.Session != "" {
		args = append(args, s.Session)
	}
	return Command{Args: append(args, "-"), Stdin: s.Prompt}
}

// codexTools returns the settings that name the server of Clew's tools, beside those of the
// user.
func codexTools(tools []string) []string {
	if len(tools) == 0 {
		return nil
	}
	words := make([]string, len(tools))
	for i, w := range tools {
		words[i] = tomlString(w)
	}
	server := "mcp_servers." + toolServer
	return []string{
		"-c", server + ".command=" + words[0],
		"-c", server + ".args=[" + strings.Join(words[1:], ",") + "]",
		"-c", fmt.Sprintf("%s.tool_timeout_sec=%d", server, toolSeconds),
	}
}

// codexSettings splits the user's arguments into those that stay before "exec" and the
// settings, which go after it: some versions ignore settings before "exec" if there are
// others after it, as there always are.
func codexSettings(args []string) (before, settings []string) {
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")                  // --config=KEY=VALUE
		short := strings.HasPrefix(args[i], "-c") && len(args[i]) > 2 // -cKEY=VALUE
		switch {
		case short, joined && slices.Contains([]string{"--config", "--enable", "--disable"}, name):
			settings = append(settings, args[i])
		case slices.Contains([]string{"-c", "--config", "--enable", "--disable"}, args[i]) && i+1 < len(args):
			settings = append(settings, args[i], args[i+1])
			i++
		default:
			before = append(before, args[i])
		}
	}
	return before, settings
}

// tomlString quotes a string for TOML. A JSON string is a valid basic string of TOML.
func tomlString(s string) string {
	quoted, err := marshal(s)
	if err != nil {
		return `""`
	}
	return quoted
}

// StatePaths returns the threads' rollouts, which are enough for Codex to resume without
// its databases; auth.json and config.toml are beside them.
func (Codex) StatePaths() []string { return []string{".codex/sessions"} }

// Session reads the thread's rollout. Its call ids differ from those in the output, so
// results are only counted.
func (Codex) Session(home fs.FS, id string) (Session, error) {
	return codexSession(home, id)
}

// TokensInSession is false: the token counters continue from one run of a thread to the
// next.
func (Codex) TokensInSession() bool { return false }

// AsksBeforeTools is true: in tests, commands and patches waited for the hook.
func (Codex) AsksBeforeTools() bool { return true }

// KnownErrors is true: the program's error messages are known.
func (Codex) KnownErrors() bool { return true }

// HookComesFirst is true: an item is printed as started once its hook has ended.
func (Codex) HookComesFirst() bool { return true }

// NewParser returns a parser for the events of --json.
func (Codex) NewParser(o ParserOptions) Parser {
	p := &codexParser{run: o.Run, model: o.Model, prices: newPrices(o.Prices), session: cloneSession(o.Session), outcome: outcome{o.Outcome}, open: map[string]bool{}}
	if p.model == "" {
		p.model = p.session.GetModel()
	}
	return p
}

// codexToolName converts a tool's name in the hook to its name in the output.
func codexToolName(hook string) string {
	switch hook {
	case "Bash":
		return "command_execution"
	case "apply_patch":
		return "file_change"
	}
	return hook
}

// codexEvent is one line of the output.
type codexEvent struct {
	Type     string          `json:"type"`
	ThreadID string          `json:"thread_id"`
	Item     json.RawMessage `json:"item"`
	Usage    *codexUsage     `json:"usage"`
	Message  string          `json:"message"`
	Error    *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// codexUsage counts the tokens of a thread.
type codexUsage struct {
	Input  count `json:"input_tokens"`
	Cached count `json:"cached_input_tokens"`
	Output count `json:"output_tokens"`
}

// codexItem is an item of a turn: a message, a thought, an error or a tool call.
type codexItem struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Status    string          `json:"status"`
	Text      string          `json:"text"`
	Message   string          `json:"message"`
	Command   string          `json:"command"`
	Output    string          `json:"aggregated_output"`
	ExitCode  *int64          `json:"exit_code"`
	Changes   json.RawMessage `json:"changes"`
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    json.RawMessage `json:"result"`
	Error     json.RawMessage `json:"error"`
	Query     string          `json:"query"`
	Items     json.RawMessage `json:"items"`
}

// codexParser parses one run. Codex counts tokens over the whole thread, so the usage of
// a turn is the difference to AgentSession.counted.
type codexParser struct {
	run     string
	model   string
	prices  prices
	session *daemonv1.AgentSession
	outcome

	begun  bool
	open   map[string]bool // calls without a result
	failed string          // the last error
}

// maxOpen limits how many open calls are remembered.
const maxOpen = 4096

func (p *codexParser) Pending() bool                   { return false }
func (p *codexParser) End() []Item                     { return nil }
func (p *codexParser) Session() *daemonv1.AgentSession { return cloneSession(p.session) }

func (p *codexParser) Clone() Parser {
	c := *p
	c.session = cloneSession(p.session)
	c.open = make(map[string]bool, len(p.open))
	for id := range p.open {
		c.open[id] = true
	}
	return &c
}

func (p *codexParser) Line(line []byte) []Item {
	var e codexEvent
	if items, ok := event(line, &e); !ok {
		return items
	}
	switch e.Type {
	case "thread.started":
		p.thread(e.ThreadID)
		return nil
	case "turn.started":
		return nil
	case "turn.completed":
		p.recordEnd(nil)
		return p.usage(e.Usage)
	case "turn.failed":
		if e.Error != nil {
			p.recordEnd(failure(0, e.Error.Message))
			return p.fail(e.Error.Message)
		}
	case "error":
		if e.Message != "" {
			p.recordError(failure(0, e.Message))
			return p.fail(e.Message)
		}
	case "item.started", "item.completed":
		var item codexItem
		if json.Unmarshal(e.Item, &item) == nil && item.ID != "" {
			if items, ok := p.item(e.Type == "item.completed", item); ok {
				return items
			}
		}
	}
	return []Item{unknown(line)}
}

// thread records the thread that the run belongs to.
func (p *codexParser) thread(id string) {
	p.begun = true
	if id == "" {
		return
	}
	id = Text([]byte(id))
	if p.session.GetId() != id {
		p.session = &daemonv1.AgentSession{Id: id}
	}
	p.session.Agent = "Codex"
	if p.model != "" {
		p.session.Model = Text([]byte(p.model))
	}
}

// fail returns the notice of an error, once: Codex prints an error that ends a turn twice.
func (p *codexParser) fail(message string) []Item {
	if message == p.failed {
		return nil
	}
	p.failed = message
	return []Item{notice(message)}
}

// item returns what an item completes; ok is false if it is not understood.
func (p *codexParser) item(completed bool, item codexItem) ([]Item, bool) {
	switch item.Type {
	case "agent_message":
		p.recordProgress()
		return p.whole(completed, item.Text, textItem(daemonv1.Role_ROLE_ASSISTANT, item.Text, ""))
	case "reasoning":
		return p.whole(completed, item.Text, thought(item.Text))
	case "error":
		if strings.HasPrefix(item.Message, "`--dangerously-bypass-hook-trust`") {
			return []Item{output([]byte(item.Message))}, true // a notice about Clew's own hook
		}
		return p.whole(completed, item.Message, notice(item.Message))
	}
	name, input, ok := codexCall(item)
	if !ok {
		return nil, false
	}
	p.recordProgress()
	id := p.callID(item.ID)
	if !completed {
		if len(p.open) < maxOpen {
			p.open[id] = true
		}
		return []Item{call(id, name, input, "")}, true
	}
	answer, isError := codexAnswer(item)
	items := []Item{result(id, answer, isError, "")}
	// If this parser saw the beginning of the run but not of this call, there was no
	// event for the beginning. Otherwise an earlier process has recorded it.
	if !p.open[id] && p.begun {
		items = append([]Item{call(id, name, input, "")}, items...)
	}
	delete(p.open, id)
	return items, true
}

// whole returns an item that is recorded only once it is completed.
func (p *codexParser) whole(completed bool, text string, item Item) ([]Item, bool) {
	if !completed {
		return nil, true
	}
	if text == "" {
		return nil, false
	}
	return []Item{item}, true
}

// callID makes an item's id unique in the task.
func (p *codexParser) callID(item string) string {
	parts := []string{item}
	if p.run != "" {
		parts = append([]string{p.run}, parts...)
	}
	if id := p.session.GetId(); id != "" {
		parts = append([]string{id}, parts...)
	}
	return strings.Join(parts, "/")
}

// codexCall returns the tool call of an item; ok is false for other items.
func codexCall(item codexItem) (name string, input json.RawMessage, ok bool) {
	var in any
	switch item.Type {
	case "command_execution":
		name, in = item.Type, map[string]string{"command": item.Command}
	case "file_change":
		name, in = item.Type, map[string]json.RawMessage{"changes": orNull(item.Changes)}
	case "web_search":
		name, in = item.Type, map[string]string{"query": item.Query}
	case "todo_list":
		name, in = item.Type, map[string]json.RawMessage{"items": orNull(item.Items)}
	case "mcp_tool_call":
		if item.Tool == "" {
			return "", nil, false
		}
		return "mcp__" + item.Server + "__" + item.Tool, item.Arguments, true
	default:
		return "", nil, false
	}
	s, err := marshal(in)
	return name, json.RawMessage(s), err == nil
}

// codexAnswer returns the result of a completed call.
func codexAnswer(item codexItem) (text string, isError bool) {
	isError = item.Status == "failed" || item.Status == "declined"
	switch item.Type {
	case "command_execution":
		text = item.Output
		if item.ExitCode != nil && *item.ExitCode != 0 {
			isError = true
			text = strings.TrimSuffix(text, "\n") + fmt.Sprintf("\n[exit code %d]", *item.ExitCode)
		}
	case "mcp_tool_call":
		text = codexMCPAnswer(item)
		isError = isError || (len(item.Error) > 0 && string(item.Error) != "null")
	default:
		text = item.Status
	}
	return strings.TrimPrefix(text, "\n"), isError
}

// codexMCPAnswer returns the result or the error of a call of an MCP tool.
func codexMCPAnswer(item codexItem) string {
	var failure struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(item.Error, &failure) == nil && failure.Message != "" {
		return failure.Message
	}
	var answer struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(item.Result, &answer) == nil && len(answer.Content) > 0 {
		return joinTexts(answer.Content)
	}
	return joinTexts(item.Result)
}

// orNull replaces missing JSON with null.
func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// usage returns what the thread has used since its counters were last read.
func (p *codexParser) usage(u *codexUsage) []Item {
	if u == nil {
		return nil
	}
	before := p.session.GetCounted()
	now := &daemonv1.Usage{InputTokens: int64(u.Input), CachedInputTokens: int64(u.Cached), OutputTokens: int64(u.Output)}
	if now.InputTokens < before.GetInputTokens() || now.OutputTokens < before.GetOutputTokens() {
		before = nil // the counters were reset
	}
	if p.session != nil {
		p.session.Counted = now
	}
	used := &daemonv1.Usage{
		InputTokens:       now.InputTokens - before.GetInputTokens(),
		CachedInputTokens: max(0, now.CachedInputTokens-before.GetCachedInputTokens()),
		OutputTokens:      now.OutputTokens - before.GetOutputTokens(),
		Model:             Text([]byte(p.model)),
	}
	used.CostMicroUsd = p.prices.cost(used)
	return addUsage(used)
}
