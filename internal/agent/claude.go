package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// ClaudeCode is Claude Code, `claude -p` with its stream of JSON. Tried with
// version 2.1.329.
//
// It is resumed without a fork: its session file is restored with the
// checkpoint that it belongs to, so there is nothing to cut off, and the session
// keeps its id.
type ClaudeCode struct{}

// Executable is claude.
func (ClaudeCode) Executable() string { return "claude" }

const claudeSettings = "claude.json"

// Files are settings with a PreToolUse hook for every tool.
func (ClaudeCode) Files(r FilesRequest) map[string][]byte {
	settings := map[string]any{}
	if len(r.Hook) > 0 {
		settings["hooks"] = map[string]any{"PreToolUse": []any{map[string]any{
			"matcher": "*",
			"hooks":   []any{map[string]any{"type": "command", "command": shellWords(r.Hook), "timeout": hookSeconds}},
		}}}
	}
	return map[string][]byte{claudeSettings: jsonFile(settings)}
}

// Command gives the prompt on standard input: there it may begin with a dash
// and be of any size. All permission prompts are off: nobody is there to answer
// them, and the pod is the sandbox. (Claude Code refuses that to root, which
// agents never run as.)
func (ClaudeCode) Command(s Start) Command {
	args := append(slices.Clone(s.Args), "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
	if s.FilesDir != "" {
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

// StatePaths hold transcripts, what the agent noted for itself, and its lists of
// tasks; credentials and settings lie beside them.
func (ClaudeCode) StatePaths() []string {
	return []string{".claude/projects", ".claude/tasks", ".claude/todos", ".claude/plans"}
}

// Session reads the session's transcript.
func (ClaudeCode) Session(home fs.FS, id string) (Session, error) {
	return claudeSession(home, id)
}

// TokensInSession does not hold: each message tells what it used.
func (ClaudeCode) TokensInSession() bool { return false }

// BeforeTools holds: the tool was seen to wait for the hook, as another user
// than root too.
func (ClaudeCode) BeforeTools() bool { return true }

// WordsTell is true: the program complains in words of its own.
func (ClaudeCode) WordsTell() bool { return true }

// HookComesFirst does not hold: the call is printed before its hook is run.
func (ClaudeCode) HookComesFirst() bool { return false }

// NewParser reads the events of --output-format stream-json.
func (ClaudeCode) NewParser(o ParserOptions) Parser {
	return newClaudeParser(o, v1alpha1.AgentClaudeCode, "Claude Code")
}

// newClaudeParser reads the events of a kind of agent that prints those of Claude Code.
func newClaudeParser(o ParserOptions, kind v1alpha1.AgentType, program string) Parser {
	p := &claudeParser{kind: kind, program: program, prompt: o.Prompt, prices: newPrices(o.Prices), model: o.Model,
		session: cloneSession(o.Session), outcome: outcome{o.Outcome}}
	if p.session.GetModel() != "" {
		p.model = p.session.GetModel()
	}
	return p
}

type claudeEvent struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Model     string `json:"model"`
	Version   string `json:"claude_code_version"`
	Qwen      string `json:"qwen_code_version"`
	Parent    string `json:"parent_tool_use_id"`
	// Error names the kind of an API's error. Its HTTP status has one name in a
	// retry and another in a message or a result.
	Error      claudeError    `json:"error"`
	Status     int            `json:"error_status"`
	APIStatus  int            `json:"api_error_status"`
	APIError   string         `json:"api_error_type"`
	RetryTry   count          `json:"attempt"`
	RetryOf    count          `json:"max_retries"`
	RetryDelay count          `json:"retry_delay_ms"`
	Message    *claudeMessage `json:"message"`

	IsError   bool                   `json:"is_error"`
	Result    string                 `json:"result"`
	Errors    []string               `json:"errors"`
	TotalCost *dollars               `json:"total_cost_usd"`
	Usage     *claudeUsage           `json:"usage"`
	SinceLast map[string]claudeModel `json:"model_usage_since_last_result"`
}

// claudeError is a word for the kind of an error, or an object with its message, as Qwen
// Code has it.
type claudeError struct{ kind, message string }

func (e *claudeError) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &e.kind) == nil {
		return nil
	}
	var object struct {
		Message string `json:"message"`
	}
	err := json.Unmarshal(data, &object)
	e.message = object.Message
	return err
}

type claudeMessage struct {
	ID      string          `json:"id"`
	Model   string          `json:"model"`
	Content json.RawMessage `json:"content"`
	Usage   *claudeUsage    `json:"usage"`
}

type claudeUsage struct {
	Input       count `json:"input_tokens"`
	CacheCreate count `json:"cache_creation_input_tokens"`
	CacheRead   count `json:"cache_read_input_tokens"`
	Output      count `json:"output_tokens"`
}

type claudeModel struct {
	Input       count   `json:"inputTokens"`
	CacheCreate count   `json:"cacheCreationInputTokens"`
	CacheRead   count   `json:"cacheReadInputTokens"`
	Output      count   `json:"outputTokens"`
	Cost        dollars `json:"costUSD"`
}

type claudeBlock struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`

	raw json.RawMessage
}

// claudeParser reads one run. Usage comes twice in it: with each message, where
// the output is counted before it is complete, and in the result at the end,
// with the cost. The first is added at once, so that a run that is killed is
// counted too; the result then adds the difference, if the parser has seen the
// run's beginning and so knows what was added.
type claudeParser struct {
	kind    v1alpha1.AgentType
	program string // for messages
	prompt  string
	prices  prices
	model   string
	session *daemonv1.AgentSession
	outcome

	begun    bool
	spoken   [sha256.Size]byte // the last text that the assistant said
	counted  []claudeCounted   // newest last
	added    totals            // since the last result
	lastCost int64             // the total cost in the last result
}

// claudeCounted is what was added for a message: its events repeat its usage.
type claudeCounted struct {
	id    string
	total totals
}

// totals are sums that can be compared and copied.
type totals struct{ input, cached, output, cost int64 }

func (p *claudeParser) Pending() bool                   { return false }
func (p *claudeParser) End() []Item                     { return nil }
func (p *claudeParser) Session() *daemonv1.AgentSession { return cloneSession(p.session) }

func (p *claudeParser) Clone() Parser {
	c := *p
	c.session = cloneSession(p.session)
	c.counted = slices.Clone(p.counted)
	return &c
}

func (p *claudeParser) Line(line []byte) []Item {
	var e claudeEvent
	if items, ok := event(line, &e); !ok {
		return items
	}
	switch {
	case e.Type == "system" && e.Subtype == "init":
		p.init(e)
		return nil
	case e.Type == "system" && e.Subtype == "api_retry":
		return p.retry(e)
	case e.progress():
		return nil
	case e.Type == "assistant" && e.Message != nil:
		return p.assistant(e, line)
	case e.Type == "user" && e.Message != nil:
		return p.user(e, line)
	case e.Type == "result":
		return p.result(e)
	}
	return []Item{unknown(line)}
}

// progress tells whether an event only says how far something is that comes
// whole later: a message, a tool that takes long, a command in the background.
func (e claudeEvent) progress() bool {
	if e.Type != "system" {
		return e.Type == "stream_event" || e.Type == "tool_progress"
	}
	switch e.Subtype {
	case "thinking_tokens", "status", "task_started", "task_progress", "task_updated", "task_notification":
		return true
	}
	return false
}

// retry is an error of the model's API that Claude Code tries to get over.
func (p *claudeParser) retry(e claudeEvent) []Item {
	f := failure(e.Status, e.Error.kind)
	f.Message = strings.TrimSpace(fmt.Sprintf("the model's API answers with status %d %s", e.Status, e.Error.kind))
	p.trouble(f)
	return []Item{output(fmt.Appendf(nil, "%s; %s tries again (%d of %d) after %d ms", f.Message, p.program, e.RetryTry, e.RetryOf, e.RetryDelay))}
}

func (p *claudeParser) init(e claudeEvent) {
	p.begun = true
	if e.Model != "" {
		p.model = Text([]byte(e.Model))
	}
	if e.SessionID != "" {
		p.session = &daemonv1.AgentSession{
			Agent: string(p.kind), Id: Text([]byte(e.SessionID)), Version: Text([]byte(cmp.Or(e.Version, e.Qwen))), Model: p.model,
		}
	}
}

func (p *claudeParser) assistant(e claudeEvent, line []byte) []Item {
	blocks, ok := claudeBlocks(e.Message.Content)
	if !ok {
		return []Item{unknown(line)}
	}
	role, raw := daemonv1.Role_ROLE_ASSISTANT, parent(e.Parent)
	p.goOn()
	if e.Message.Model == "<synthetic>" {
		role = daemonv1.Role_ROLE_SYSTEM // an error or a notice of the CLI
	}
	var items []Item
	for _, b := range blocks {
		switch {
		case b.Type == "text" && b.Text != "":
			message, failed := p.apiError(b.Text)
			if failed {
				role = daemonv1.Role_ROLE_SYSTEM
			}
			items = append(items, say(role, b.Text, raw))
			if failed {
				p.trouble(claudeFailure(e, message))
			} else if e.Error.kind != "" {
				p.trouble(claudeFailure(e, b.Text))
			}
			if raw == "" {
				p.spoken = sha256.Sum256([]byte(b.Text))
			}
		case b.Type == "text":
		case b.Type == "thinking":
			if b.Thinking != "" {
				items = append(items, thought(b.Thinking))
			}
		case (b.Type == "tool_use" || b.Type == "server_tool_use" || b.Type == "mcp_tool_use") && b.ID != "" && b.Name != "":
			items = append(items, call(b.ID, b.Name, b.Input, raw))
		case strings.HasSuffix(b.Type, "_tool_result") && b.ToolUseID != "":
			items = append(items, result(b.ToolUseID, texts(b.Content), b.IsError, raw))
		default:
			items = append(items, unknown(b.raw))
		}
	}
	return append(items, p.usage(e.Message)...)
}

func (p *claudeParser) user(e claudeEvent, line []byte) []Item {
	blocks, ok := claudeBlocks(e.Message.Content)
	if !ok {
		return []Item{unknown(line)}
	}
	raw := parent(e.Parent)
	var items []Item
	for _, b := range blocks {
		switch {
		case b.Type == "tool_result" && b.ToolUseID != "":
			items = append(items, result(b.ToolUseID, texts(b.Content), b.IsError, raw))
		case b.Type == "text" && raw == "" && samePrompt(b.Text, p.prompt):
		case b.Type == "text" && b.Text != "":
			items = append(items, say(daemonv1.Role_ROLE_SYSTEM, b.Text, raw))
		case b.Type == "text":
		default:
			items = append(items, unknown(b.raw))
		}
	}
	return items
}

// usage adds what is new in a message's usage.
func (p *claudeParser) usage(m *claudeMessage) []Item {
	if m.Usage == nil || m.ID == "" {
		return nil
	}
	now := totals{
		input:  int64(m.Usage.Input + m.Usage.CacheCreate + m.Usage.CacheRead),
		cached: int64(m.Usage.CacheRead),
		output: int64(m.Usage.Output),
	}
	if p.kind == v1alpha1.AgentQwenCode {
		now.input = int64(m.Usage.Input) // what was cached is part of it
	}
	i := slices.IndexFunc(p.counted, func(c claudeCounted) bool { return c.id == m.ID })
	var before totals
	if i >= 0 {
		before = p.counted[i].total
		p.counted = slices.Delete(p.counted, i, i+1)
	}
	now.input, now.cached, now.output = max(now.input, before.input), max(now.cached, before.cached), max(now.output, before.output)
	// Messages of subagents come between those of the main one, so the last few
	// are kept.
	if len(p.counted) >= 64 {
		p.counted = slices.Delete(p.counted, 0, 1)
	}
	p.counted = append(p.counted, claudeCounted{m.ID, now})
	model := m.Model
	if model == "" {
		model = p.model
	}
	u := &daemonv1.Usage{
		InputTokens:       now.input - before.input,
		CachedInputTokens: now.cached - before.cached,
		OutputTokens:      now.output - before.output,
		Model:             Text([]byte(model)),
	}
	u.CostMicroUsd = p.prices.cost(u)
	p.added.input += u.InputTokens
	p.added.cached += u.CachedInputTokens
	p.added.output += u.OutputTokens
	p.added.cost += u.CostMicroUsd
	return addUsage(u)
}

// result ends a turn: it may say what no message said, and corrects the usage.
func (p *claudeParser) result(e claudeEvent) []Item {
	p.conclude(e)
	var items []Item
	if said := cmp.Or(e.Result, e.Error.message); said == "" || sha256.Sum256([]byte(said)) != p.spoken {
		failed := e.IsError || (e.Subtype != "" && e.Subtype != "success")
		if text := strings.Join(append(e.Errors, said), "\n"); failed && strings.TrimSpace(text) != "" {
			items = append(items, notice(strings.TrimSpace(text)))
		} else if failed {
			items = append(items, notice(p.program+" ended with "+e.Subtype+"."))
		} else if said != "" && p.begun {
			items = append(items, say(daemonv1.Role_ROLE_ASSISTANT, said, ""))
		}
	}
	if !p.begun {
		return items
	}
	total, ok := p.total(e)
	if ok {
		u := &daemonv1.Usage{
			InputTokens:       max(0, total.input-p.added.input),
			CachedInputTokens: max(0, total.cached-p.added.cached),
			OutputTokens:      max(0, total.output-p.added.output),
			CostMicroUsd:      total.cost - p.added.cost,
			Model:             p.model,
		}
		items = append(items, addUsage(u)...)
	}
	p.added = totals{}
	return items
}

// claudeFailure classifies an error by its text and by what is told beside it.
func claudeFailure(e claudeEvent, text string) *Failure {
	f := failure(e.APIStatus, text)
	if kinds := strings.TrimSpace(e.Error.kind + " " + e.APIError); kinds != "" {
		f.Cause = causeOf(e.APIStatus, kinds+" "+text)
	}
	return f
}

// conclude notes how a turn ended.
func (p *claudeParser) conclude(e claudeEvent) {
	if !e.IsError && (e.Subtype == "" || e.Subtype == "success") {
		p.end(nil)
		return
	}
	text := strings.TrimSpace(strings.Join(append(e.Errors, cmp.Or(e.Result, e.Error.message)), "\n"))
	if text == "" {
		text = p.program + " ended with " + e.Subtype
	}
	f := claudeFailure(e, text)
	if before := p.told.Failure; f.Cause == CauseUnknown && before != nil {
		f.Cause = before.Cause
	}
	if e.Subtype == "error_max_turns" || e.Subtype == "error_max_budget_usd" {
		f.Cause = CauseGaveUp
	}
	p.end(f)
}

// total is what the turn used by the result's own account. Newer versions tell
// by model what was used since the last result; total_cost_usd counts on from
// one result to the next, and in these versions over all runs of a session.
func (p *claudeParser) total(e claudeEvent) (totals, bool) {
	var t totals
	for _, m := range e.SinceLast {
		t.input += int64(m.Input + m.CacheCreate + m.CacheRead)
		t.cached += int64(m.CacheRead)
		t.output += int64(m.Output)
		t.cost += m.Cost.micro()
	}
	if len(e.SinceLast) > 0 {
		return t, true
	}
	if e.TotalCost == nil {
		return t, false
	}
	if e.Usage != nil {
		t.input = int64(e.Usage.Input + e.Usage.CacheCreate + e.Usage.CacheRead)
		t.cached, t.output = int64(e.Usage.CacheRead), int64(e.Usage.Output)
	}
	t.cost = max(0, e.TotalCost.micro()-p.lastCost)
	p.lastCost = max(p.lastCost, e.TotalCost.micro())
	return t, true
}

// claudeBlocks are the parts of a content: a string is one text. A part that
// cannot be read has no type.
func claudeBlocks(content json.RawMessage) ([]claudeBlock, bool) {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []claudeBlock{{Type: "text", Text: text}}, true
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil || len(parts) == 0 {
		return nil, false
	}
	blocks := make([]claudeBlock, len(parts))
	for i, part := range parts {
		if json.Unmarshal(part, &blocks[i]) != nil {
			blocks[i] = claudeBlock{}
		}
		blocks[i].raw = part
	}
	return blocks, true
}

// parent marks what a subagent said.
func parent(id string) string {
	if id == "" {
		return ""
	}
	raw, err := marshal(struct {
		Parent string `json:"parent"`
	}{Text([]byte(id))})
	if err != nil {
		return ""
	}
	return raw
}

// samePrompt tells whether an agent repeats its prompt.
func samePrompt(text, prompt string) bool {
	return prompt != "" && (text == prompt || strings.TrimSpace(text) == strings.TrimSpace(prompt))
}

func cloneSession(s *daemonv1.AgentSession) *daemonv1.AgentSession {
	if s == nil {
		return nil
	}
	return proto.Clone(s).(*daemonv1.AgentSession)
}
