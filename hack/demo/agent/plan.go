package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
)

// call is one step of a plan: a message, or a tool call.
type call struct {
	Message string          `json:"message,omitempty"`
	Name    string          `json:"name,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
}

// input is the input of any tool.
type input struct {
	Path    string `json:"path,omitempty"`
	Content string `json:"content,omitempty"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	Command string `json:"command,omitempty"`
}

// plan is a list of calls, numbered from 1.
type plan interface {
	len() int
	call(i int) call
	// files returns the files in the folder "replay" after the first n calls; ok is
	// false if they are unknown.
	files(n int) (tree map[string]string, ok bool)
}

// script is a plan from a file.
type script []call

// readScript reads a script.
func readScript(path string) (script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s script
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("the script %s is not valid: %w", path, err)
	}
	return s, nil
}

func (s script) len() int                            { return len(s) }
func (s script) call(i int) call                     { return s[i-1] }
func (s script) files(int) (map[string]string, bool) { return nil, false }

// generated is a plan that is generated from a seed.
type generated struct {
	calls int
	seed  uint64
}

func (m generated) len() int { return m.calls }

// Kinds of generated calls.
const (
	kindWrite = iota
	kindWriteLarge
	kindAppend
	kindShell
	kindMove
	kindStage
	kindWriteAgain
	kindDelete
	kindCommit
	kinds
)

// call returns call i.
func (m generated) call(i int) call {
	in, _ := m.step(i)
	name := map[int]string{kindWrite: "write_file", kindWriteLarge: "write_file", kindWriteAgain: "write_file",
		kindAppend: "append_file", kindMove: "move_file", kindDelete: "delete_file"}[kind(i)]
	if name == "" {
		name = "shell"
	}
	raw, _ := json.Marshal(in) // strings only: cannot fail
	return call{Name: name, Input: raw}
}

// kind returns the kind of call i.
func kind(i int) int { return (i - 1) % kinds }

// file returns the path that call i writes, if it writes a file.
func file(i int) string { return fmt.Sprintf("replay/part-%d/file-%d.txt", (i-1)/kinds, i) }

const logFile = "replay/log.md"

// step returns the input of call i, and its effect on the files.
func (m generated) step(i int) (in input, apply func(map[string]string)) {
	switch kind(i) {
	case kindWrite, kindWriteLarge:
		in = input{Path: file(i), Content: m.text(i)}
		return in, func(t map[string]string) { t[in.Path] = in.Content }
	case kindWriteAgain:
		in = input{Path: file(i - kindWriteAgain + kindWriteLarge), Content: m.text(i)}
		return in, func(t map[string]string) { t[in.Path] = in.Content }
	case kindAppend:
		in = input{Path: logFile, Content: fmt.Sprintf("- call %d\n", i)}
		return in, func(t map[string]string) { t[in.Path] += in.Content }
	case kindShell:
		path, text := file(i), fmt.Sprintf("made by a shell, call %d", i)
		in = input{Command: fmt.Sprintf("mkdir -p replay/part-%d && echo '%s' > %s", (i-1)/kinds, text, path)}
		return in, func(t map[string]string) { t[path] = text + "\n" }
	case kindMove:
		in = input{From: file(i - kindMove + kindWrite), To: file(i)}
		return in, func(t map[string]string) { t[in.To] = t[in.From]; delete(t, in.From) }
	case kindStage:
		in = input{Command: gitCommand("git add -A replay")}
	case kindDelete:
		in = input{Path: file(i - kindDelete + kindShell)}
		return in, func(t map[string]string) { delete(t, in.Path) }
	case kindCommit:
		in = input{Command: gitCommand(fmt.Sprintf(
			`git log -3 --format=%%s 2>/dev/null | grep -qx 'Call %d' || { git add -A replay && git -c user.name=Replay -c user.email=replay@clew.dev commit -q -m 'Call %d'; }`, i, i))}
	}
	return in, func(map[string]string) {}
}

// gitCommand returns a shell command that works in images without git, too.
func gitCommand(command string) string {
	return "if command -v git >/dev/null; then rm -f .git/index.lock; " + command + "; else echo 'no git in this image'; fi"
}

// text returns the content that call i writes.
func (m generated) text(i int) string {
	random := rand.New(rand.NewPCG(m.seed, uint64(i)))
	n := 3 + random.IntN(10)
	if kind(i) == kindWriteLarge {
		n = 400
	}
	out := fmt.Appendf(nil, "call %d\n", i)
	for range n {
		out = fmt.Appendf(out, "%016x\n", random.Uint64())
	}
	return string(out)
}

// files returns the files after the first n calls.
func (m generated) files(n int) (map[string]string, bool) {
	tree := map[string]string{}
	for i := 1; i <= min(n, m.calls); i++ {
		_, apply := m.step(i)
		apply(tree)
	}
	return tree, true
}

// paths returns the paths of all trees, sorted.
func paths(trees ...map[string]string) []string {
	all := map[string]bool{}
	for _, t := range trees {
		for p := range t {
			all[p] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
