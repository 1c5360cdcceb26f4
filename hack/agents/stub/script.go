package main

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Script defines how the model of a session behaves.
type Script struct {
	// Steps is the number of tool calls before DONE.
	Steps int `json:"steps"`
	// FileToolEvery = N makes every Nth step use the agent's tool for writing files
	// instead of its shell; 0 for none.
	FileToolEvery int `json:"fileToolEvery"`
	// Folder is the agent's working directory, for tools that require absolute paths.
	Folder string `json:"folder"`
	// Commands replaces the shell commands of some steps.
	Commands map[int]string `json:"commands,omitempty"`
	// Tools replaces the calls of some steps by calls of tools that the agent has from a server
	// of tools.
	Tools map[int]ServedTool `json:"tools,omitempty"`
	// DelayMilliseconds delays each answer; Delays additionally delays the answers
	// with these steps, in milliseconds.
	DelayMilliseconds int         `json:"delayMilliseconds,omitempty"`
	Delays            map[int]int `json:"delays,omitempty"`
	// Key is the API key that requests must have; if empty, any key is accepted.
	Key string `json:"key,omitempty"`
	// Failures are sent instead of answers to the first requests, in order.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is an HTTP error that replaces answers.
type Failure struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
	// Times is how many requests get it; 0 means all further ones.
	Times int `json:"times,omitempty"`
	// RetryAfterSeconds is sent as the header Retry-After unless it is 0.
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
}

// failure returns the failure for the request after the given number of others; nil for an
// answer.
func (s Script) failure(before int) *Failure {
	for i := range s.Failures {
		f := &s.Failures[i]
		if f.Times == 0 || before < f.Times {
			return f
		}
		before -= f.Times
	}
	return nil
}

// defaultScript is the script of sessions that set none.
func defaultScript() Script {
	return Script{Steps: 12, FileToolEvery: 4, Folder: "/workspace"}
}

// delay returns the delay of the answer with a step.
func (s Script) delay(step int) time.Duration {
	return time.Duration(s.DelayMilliseconds+s.Delays[step]) * time.Millisecond
}

// request is an agent's request, independent of the API.
type request struct {
	model  string
	stream bool
	tools  []tool
	// messages and assistant count the messages in all and those of the assistant;
	// prompts are the user's texts.
	messages, assistant int
	prompts             []string
	calls               []call
	results             []result
	key                 string
}

// tool is a tool that the agent offers.
type tool struct {
	name string
	// freeform tools take text, not JSON.
	freeform bool
	// namespace is that of the tool, in the Responses API.
	namespace string
	// search is set on the tool of the Responses API that finds other tools.
	search bool
}

// call is a tool call in the conversation.
type call struct{ id, input string }

// result is the result of a tool call.
type result struct{ id, text string }

// answer is the stub's answer: a text, or one tool call.
type answer struct {
	text string
	step int
	tool tool
	// input is a map, or a string for a freeform tool.
	input any
	side  bool // the answer to a request that is not part of the conversation
}

// isCall reports whether the answer is a tool call.
func (a answer) isCall() bool { return a.step > 0 }

// summary returns the answer for the log.
func (a answer) summary() string {
	if a.isCall() {
		return fmt.Sprintf("step %d: %s", a.step, a.tool.name)
	}
	return a.text
}

// recall is the word that makes a prompt ask what the model remembers.
const recall = "RECALL"

// decide returns the answer to a request according to the script.
func (s Script) decide(r request) answer {
	switch steps := s.steps(r); {
	case len(r.tools) == 0:
		// Agents also request titles and summaries.
		return answer{text: "An aside.", side: true}
	case strings.Contains(r.lastLine(), recall):
		return answer{text: s.remembered(r)}
	case last(steps) >= s.Steps:
		return answer{text: "DONE"}
	default:
		return s.call(last(steps)+1, r.tools)
	}
}

// remembered describes the content of the request.
func (s Script) remembered(r request) string {
	var b strings.Builder
	steps := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.steps(r))), ","), "[]")
	fmt.Fprintf(&b, "REMEMBERED prompts=%d calls=%d results=%d steps=%s", len(r.prompts), len(r.calls), len(r.answered()), steps)
	for i, p := range r.prompts {
		if runes := []rune(p); len(runes) > 120 {
			p = "…" + string(runes[len(runes)-120:])
		}
		fmt.Fprintf(&b, "\nprompt %d: %s", i+1, strings.Join(strings.Fields(p), " "))
	}
	return b.String()
}

// lastLine returns the last line of the last prompt. The lines before it may contain the
// earlier conversation.
func (r request) lastLine() string {
	if len(r.prompts) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(r.prompts[len(r.prompts)-1]), "\n")
	return lines[len(lines)-1]
}

// ending ends the shell commands: it prints that the step is done.
const ending = "; printf 'step %d is done"

var (
	stepOfCall   = regexp.MustCompile(`\bstep (\d+)\b`)
	stepsOfTexts = regexp.MustCompile(`\bstep (\d+) is done\b`)
	// exitedWithZero is in Qwen Code's results, also in those that lost their output.
	exitedWithZero = regexp.MustCompile(`(?m)^Exit Code: 0$`)
	// refused is in what an agent is told of a call that Clew denies.
	refused = regexp.MustCompile(`Do not make it again|A rule of this task refuses the call`)
)

// steps returns the steps that are done according to results of calls or prompts, in
// order.
func (s Script) steps(r request) []int {
	done := map[int]bool{}
	inputs := map[string]string{}
	for _, c := range r.calls {
		inputs[c.id] = c.input
	}
	for _, result := range r.results {
		n := number(stepOfCall.FindStringSubmatch(inputs[result.id]))
		// A shell command that completed prints it. An agent that was killed during a
		// call may invent a result.
		completed := number(stepsOfTexts.FindStringSubmatch(result.text)) == n || exitedWithZero.MatchString(result.text)
		if step, ok := s.served(inputs[result.id]); ok {
			if s.Tools[step].satisfied(result.text) {
				done[step] = true
			}
			continue
		}
		// A model goes on without a call that is denied.
		if n > 0 && (completed || refused.MatchString(result.text) || !strings.Contains(inputs[result.id], ending)) {
			done[n] = true
		}
	}
	for _, prompt := range r.prompts {
		for _, match := range stepsOfTexts.FindAllStringSubmatch(prompt, -1) {
			done[number(match)] = true
		}
	}
	return slices.Sorted(maps.Keys(done))
}

// answered returns the ids of the calls with a result. An agent may send a result twice.
func (r request) answered() map[string]bool {
	ids := map[string]bool{}
	for _, result := range r.results {
		ids[result.id] = true
	}
	return ids
}

// number parses the number of a match; 0 without a match.
func number(match []string) int {
	if match == nil {
		return 0
	}
	n, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return n
}

// last returns the last step; 0 for none.
func last(steps []int) int {
	if len(steps) == 0 {
		return 0
	}
	return steps[len(steps)-1]
}

// call returns the tool call of a step, with one of the agent's tools.
func (s Script) call(step int, tools []tool) answer {
	if served, ok := s.Tools[step]; ok {
		return served.call(step, tools)
	}
	_, special := s.Commands[step]
	if s.FileToolEvery > 0 && step%s.FileToolEvery == 0 && !special {
		if t, ok := find(tools, "Write", "write", "write_file", "apply_patch"); ok {
			return answer{step: step, tool: t, input: s.write(step, t)}
		}
	}
	t, ok := find(tools, "Bash", "bash", "run_shell_command", "exec_command", "shell_command")
	if !ok {
		return answer{text: fmt.Sprintf("I was offered no tool that I know, only %v.", tools)}
	}
	argument := "command"
	if t.name == "exec_command" {
		argument = "cmd"
	}
	input := map[string]any{argument: s.command(step)}
	if argument == "command" {
		input["description"] = fmt.Sprintf("step %d", step)
	}
	return answer{step: step, tool: t, input: input}
}

// command returns the shell command of a step. It prints that the step is done, while the
// comment only names the step: the call alone does not prove that it is done. The pause
// gives Qwen Code time to read the output: it stops reading when the shell exits, and
// loses whatever is in the pipe at that moment (seen with 0.24.4).
func (s Script) command(step int) string {
	work, ok := s.Commands[step]
	if !ok && step%2 == 0 {
		work = fmt.Sprintf(`mkdir -p src && echo "line of %d" > src/file%d.txt`, step, step)
	} else if !ok {
		work = fmt.Sprintf(`echo "line of %d" >> notes.txt`, step)
	}
	return work + ending + fmt.Sprintf("\\n' %d; sleep 0.2 # step %d", step, step)
}

// write returns the input of a file tool for a step.
func (s Script) write(step int, t tool) any {
	file := fmt.Sprintf("src/file%d.txt", step)
	content := fmt.Sprintf("line of %d, step %d is done\n", step, step)
	switch t.name {
	case "apply_patch":
		patch := fmt.Sprintf("*** Begin Patch\n*** Add File: %s\n+%s*** End Patch\n", file, content)
		if t.freeform {
			return patch
		}
		return map[string]any{"input": patch, "patchText": patch}
	case "write":
		return map[string]any{"filePath": path.Join(s.Folder, file), "content": content}
	default:
		return map[string]any{"file_path": path.Join(s.Folder, file), "content": content}
	}
}

// find returns the first of the names that is among the tools.
func find(tools []tool, names ...string) (tool, bool) {
	for _, name := range names {
		if i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name }); i >= 0 {
			return tools[i], true
		}
	}
	return tool{}, false
}

// findSearch returns the tool by which Codex's models find the tools of servers.
func findSearch(tools []tool) (tool, bool) {
	i := slices.IndexFunc(tools, func(t tool) bool { return t.search })
	if i < 0 {
		return tool{}, false
	}
	return tools[i], true
}

// additions matches what agents add to the user's prompt.
var additions = []*regexp.Regexp{
	regexp.MustCompile(`(?s)<system-reminder>.*?</system-reminder>`),
	regexp.MustCompile(`(?s)<session_context>.*?</session_context>`),
	regexp.MustCompile(`(?s)<environment_context>.*?</environment_context>`),
	regexp.MustCompile(`(?s)<user_instructions>.*?</user_instructions>`),
}

// prompt adds a text of the user, without the agent's additions.
func (r *request) prompt(text string) {
	for _, addition := range additions {
		text = addition.ReplaceAllString(text, "")
	}
	if text = strings.TrimSpace(text); text != "" {
		r.prompts = append(r.prompts, text)
	}
}
