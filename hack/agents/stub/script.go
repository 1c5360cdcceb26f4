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

// Script is what the model of a session does.
type Script struct {
	// Steps is how many tools are called before DONE.
	Steps int `json:"steps"`
	// FileToolEvery makes every so many steps one of the agent's own tool for
	// writing files instead of its shell; 0 for none.
	FileToolEvery int `json:"fileToolEvery"`
	// Folder is where the agent works, for tools that want whole paths.
	Folder string `json:"folder"`
	// Commands are what the shell runs in some steps instead of the usual.
	Commands map[int]string `json:"commands,omitempty"`
	// DelayMilliseconds passes before each answer, Delays before the answer
	// with that step, in addition.
	DelayMilliseconds int         `json:"delayMilliseconds,omitempty"`
	Delays            map[int]int `json:"delays,omitempty"`
	// Key is the API key that requests must have; any will do if empty.
	Key string `json:"key,omitempty"`
	// Failures are what the first requests get in place of an answer, in order.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is an HTTP error that the model answers with.
type Failure struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
	// Times is how many requests get it; 0 means all that follow.
	Times int `json:"times,omitempty"`
	// RetryAfterSeconds is sent as the header of that name, unless 0.
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
}

// failure is what the request gets after so many others; nil for an answer.
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

func defaultScript() Script {
	return Script{Steps: 12, FileToolEvery: 4, Folder: "/workspace"}
}

func (s Script) delay(step int) time.Duration {
	return time.Duration(s.DelayMilliseconds+s.Delays[step]) * time.Millisecond
}

// request is what an agent asked, in the words of no API.
type request struct {
	model  string
	stream bool
	tools  []tool
	// messages, assistant count what the conversation carries; prompts are the
	// texts of the user.
	messages, assistant int
	prompts             []string
	calls               []call
	results             []result
	key                 string
}

type tool struct {
	name string
	// freeform tools take a text, not JSON.
	freeform bool
}

type call struct{ id, input string }

type result struct{ id, text string }

// answer is what the stub says: a text, or one call.
type answer struct {
	text string
	step int
	tool tool
	// input is a map, or a string for a freeform tool.
	input any
	side  bool
}

func (a answer) isCall() bool { return a.step > 0 }

// summary is how the log names the answer.
func (a answer) summary() string {
	if a.isCall() {
		return fmt.Sprintf("step %d: %s", a.step, a.tool.name)
	}
	return a.text
}

// recall is the word in a prompt that asks what the model remembers.
const recall = "RECALL"

// decide answers a request as the script says.
func (s Script) decide(r request) answer {
	switch steps := r.steps(); {
	case len(r.tools) == 0:
		// Agents ask aside for titles and summaries.
		return answer{text: "An aside.", side: true}
	case strings.Contains(r.lastLine(), recall):
		return answer{text: r.remembered()}
	case last(steps) >= s.Steps:
		return answer{text: "DONE"}
	default:
		return s.call(last(steps)+1, r.tools)
	}
}

// remembered lists what the request carried.
func (r request) remembered() string {
	var b strings.Builder
	steps := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(r.steps())), ","), "[]")
	fmt.Fprintf(&b, "REMEMBERED prompts=%d calls=%d results=%d steps=%s", len(r.prompts), len(r.calls), len(r.answered()), steps)
	for i, p := range r.prompts {
		if runes := []rune(p); len(runes) > 120 {
			p = "…" + string(runes[len(runes)-120:])
		}
		fmt.Fprintf(&b, "\nprompt %d: %s", i+1, strings.Join(strings.Fields(p), " "))
	}
	return b.String()
}

// lastLine of the last prompt: before it, a prompt may tell what was before.
func (r request) lastLine() string {
	if len(r.prompts) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(r.prompts[len(r.prompts)-1]), "\n")
	return lines[len(lines)-1]
}

// ending is how the commands of the shell say that a step is done.
const ending = "; printf 'step %d is done"

var (
	stepOfCall   = regexp.MustCompile(`\bstep (\d+)\b`)
	stepsOfTexts = regexp.MustCompile(`\bstep (\d+) is done\b`)
)

// steps are those that the request tells to be done, by the result of a call or
// by a prompt, in order.
func (r request) steps() []int {
	done := map[int]bool{}
	inputs := map[string]string{}
	for _, c := range r.calls {
		inputs[c.id] = c.input
	}
	for _, result := range r.results {
		n := number(stepOfCall.FindStringSubmatch(inputs[result.id]))
		// A shell says so when it came to the end: an agent that was killed in
		// a call may make a result up for it.
		said := number(stepsOfTexts.FindStringSubmatch(result.text))
		if n > 0 && (said == n || !strings.Contains(inputs[result.id], ending)) {
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

// answered are the ids of the calls that have a result: an agent may send one
// result twice.
func (r request) answered() map[string]bool {
	ids := map[string]bool{}
	for _, result := range r.results {
		ids[result.id] = true
	}
	return ids
}

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

func last(steps []int) int {
	if len(steps) == 0 {
		return 0
	}
	return steps[len(steps)-1]
}

// call makes the call of a step with one of the agent's tools.
func (s Script) call(step int, tools []tool) answer {
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

// command prints that the step is done, and the comment names the step: what
// is in the call itself does not make it done.
func (s Script) command(step int) string {
	work, ok := s.Commands[step]
	if !ok && step%2 == 0 {
		work = fmt.Sprintf(`mkdir -p src && echo "line of %d" > src/file%d.txt`, step, step)
	} else if !ok {
		work = fmt.Sprintf(`echo "line of %d" >> notes.txt`, step)
	}
	return work + ending + fmt.Sprintf("\\n' %d # step %d", step, step)
}

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

// find gives the first of the names that is among the tools.
func find(tools []tool, names ...string) (tool, bool) {
	for _, name := range names {
		if i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name }); i >= 0 {
			return tools[i], true
		}
	}
	return tool{}, false
}

// notes are what agents add to a user's words on their own.
var notes = []*regexp.Regexp{
	regexp.MustCompile(`(?s)<system-reminder>.*?</system-reminder>`),
	regexp.MustCompile(`(?s)<session_context>.*?</session_context>`),
	regexp.MustCompile(`(?s)<environment_context>.*?</environment_context>`),
	regexp.MustCompile(`(?s)<user_instructions>.*?</user_instructions>`),
}

// prompt adds a text of the user, without what the agent added to it.
func (r *request) prompt(text string) {
	for _, note := range notes {
		text = note.ReplaceAllString(text, "")
	}
	if text = strings.TrimSpace(text); text != "" {
		r.prompts = append(r.prompts, text)
	}
}
