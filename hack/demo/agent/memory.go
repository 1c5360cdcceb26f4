package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// callID returns the id of call i.
func callID(i int) string { return fmt.Sprintf("call-%d", i) }

// memory is what the agent knows from the conversation.
type memory struct {
	// answered is the number of calls with an answer: calls 1 to answered have one.
	answered int
	// greeted is true if the agent has printed a message before.
	greeted bool
}

// readMemory reads the conversation file; without a file, nothing has happened yet.
func readMemory(path string) (memory, error) {
	if path == "" {
		return memory{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return memory{}, nil
	}
	if err != nil {
		return memory{}, err
	}
	defer f.Close()
	var m memory
	done := map[string]bool{}
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		var l struct {
			Type, Role, ID string
			Interrupted    bool
		}
		if json.Unmarshal(line, &l) == nil {
			m.greeted = m.greeted || l.Type == "message" && l.Role == "assistant"
			if l.Type == "tool_result" && !l.Interrupted {
				if done[l.ID] {
					return m, &mismatchError{fmt.Sprintf("the conversation contains two answers to %s", l.ID)}
				}
				done[l.ID] = true
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, err
		}
	}
	for done[callID(m.answered+1)] {
		m.answered++
	}
	if len(done) != m.answered {
		return m, &mismatchError{fmt.Sprintf("the conversation contains answers to %d calls, but without a gap only to the first %d", len(done), m.answered)}
	}
	return m, nil
}

// stateFile is a file in the agent's home in which it counts its calls. It plays the role
// of an agent's own session state.
type stateFile string

// state is the content of the state file.
type state struct {
	Calls int `json:"calls"`
}

// read returns the number of calls, 0 without a file.
func (s stateFile) read() (int, error) {
	data, err := os.ReadFile(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return 0, &mismatchError{fmt.Sprintf("the session state %s is not valid: %v", s, err)}
	}
	return st.Calls, nil
}

// write replaces the number of calls.
func (s stateFile) write(calls int) error {
	if err := os.MkdirAll(filepath.Dir(string(s)), 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(state{Calls: calls})
	if err != nil {
		return err
	}
	if err := os.WriteFile(string(s)+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(string(s)+".new", string(s))
}

// mismatchError describes how memory and files disagree.
type mismatchError struct{ message string }

// Error implements error.
func (e *mismatchError) Error() string { return "memory and files disagree: " + e.message }

// ahead is how many calls the files may be ahead of the conversation: one whose answer was
// not recorded yet when the pod was killed, and the next one.
const ahead = 2

// check compares the files with what the answered calls produce. The calls after those
// may have been carried out in part.
func check(p plan, answered int, s stateFile, work fs.FS) error {
	counted, err := s.read()
	if err != nil {
		return err
	}
	if counted < answered || counted > answered+ahead {
		return &mismatchError{fmt.Sprintf("the conversation contains answers to %d calls, the session state counts %d", answered, counted)}
	}
	if _, ok := p.files(0); !ok {
		return nil
	}
	got, err := readTree(work)
	if err != nil {
		return err
	}
	var first error
	for n := answered; n < answered+ahead; n++ {
		err := between(p, n, got)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// between checks that the files are those after n calls, with any partial effect of call
// n+1.
func between(p plan, n int, got map[string]string) error {
	before, _ := p.files(n)
	after, _ := p.files(n + 1)
	for _, path := range paths(before, after, got) {
		was, had := before[path]
		will, has := after[path]
		if had != has || was != will {
			continue // call n+1 changes it
		}
		if is, there := got[path]; there != had || is != was {
			return &mismatchError{fmt.Sprintf("after %d answered calls, %s is not as they left it (exists: %v, expected: %v)", n, path, there, had)}
		}
	}
	return nil
}

// readTree reads the files below "replay".
func readTree(work fs.FS) (map[string]string, error) {
	got := map[string]string{}
	err := fs.WalkDir(work, "replay", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == "replay" {
			return fs.SkipAll
		}
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(work, path)
		got[path] = string(data)
		return err
	})
	return got, err
}

// oneLine shortens an output to its first line.
func oneLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[:i] + " …"
	}
	return s
}
