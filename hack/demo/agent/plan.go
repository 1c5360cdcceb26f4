package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
)

// call is one thing to do.
type call struct {
	Message string          `json:"message,omitempty"`
	Name    string          `json:"name,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
}

// input is that of any call.
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
	// files is what the first n calls leave in the folder "replay"; ok is false
	// if that cannot be told.
	files(n int) (tree map[string]string, ok bool)
}

// script is a plan from a file.
type script []call

func readScript(path string) (script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s script
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("the script %s cannot be read: %w", path, err)
	}
	return s, nil
}

func (s script) len() int                            { return len(s) }
func (s script) call(i int) call                     { return s[i-1] }
func (s script) files(int) (map[string]string, bool) { return nil, false }

// made is a plan made up from a seed.
type made struct {
	calls int
	seed  uint64
}

func (m made) len() int { return m.calls }

// Kinds of made-up calls.
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

func (m made) call(i int) call {
	in, _ := m.step(i)
	name := map[int]string{kindWrite: "write_file", kindWriteLarge: "write_file", kindWriteAgain: "write_file",
		kindAppend: "append_file", kindMove: "move_file", kindDelete: "delete_file"}[kind(i)]
	if name == "" {
		name = "shell"
	}
	raw, _ := json.Marshal(in) // strings only: cannot fail
	return call{Name: name, Input: raw}
}

func kind(i int) int { return (i - 1) % kinds }

// file is the path that call i writes, if it writes one.
func file(i int) string { return fmt.Sprintf("replay/part-%d/file-%d.txt", (i-1)/kinds, i) }

const logFile = "replay/log.md"

// step is what call i does, and its effect on the files.
func (m made) step(i int) (in input, apply func(map[string]string)) {
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

// gitCommand is a command for images that may have no git.
func gitCommand(command string) string {
	return "if command -v git >/dev/null; then rm -f .git/index.lock; " + command + "; else echo 'no git in this image'; fi"
}

// text is the content that call i writes.
func (m made) text(i int) string {
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

func (m made) files(n int) (map[string]string, bool) {
	tree := map[string]string{}
	for i := 1; i <= min(n, m.calls); i++ {
		_, apply := m.step(i)
		apply(tree)
	}
	return tree, true
}

// paths are all those of some trees.
func paths(trees ...map[string]string) []string {
	all := map[string]bool{}
	for _, t := range trees {
		for p := range t {
			all[p] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
