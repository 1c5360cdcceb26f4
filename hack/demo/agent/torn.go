package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// tornAhead is how many calls may have been done, while their answers waited for
// a slow disk, when the power went.
const tornAhead = 20

// mend expects what a power cut leaves: what answered calls did is there, what
// calls after them wrote may be there, be missing or be torn. It puts the latter
// back to what was before, so that those calls can be done again. It works in
// the folder that work shows.
func mend(p plan, answered int, s stateFile, work fs.FS) error {
	counted, err := s.read()
	if s.torn() {
		counted, err = answered, nil
	}
	if err != nil {
		return err
	}
	if counted < answered || counted > answered+tornAhead {
		return &mismatchError{fmt.Sprintf("the conversation answers %d calls, the session state counts %d", answered, counted)}
	}
	before, ok := p.files(answered)
	if !ok {
		return nil
	}
	got, err := readTree(work)
	if err != nil {
		return err
	}
	touched := touched(p, answered)
	for _, path := range paths(before, got) {
		was, had := before[path]
		is, there := got[path]
		if had == there && was == is {
			continue
		}
		if !touched[path] {
			return &mismatchError{fmt.Sprintf("no call after the %d answered ones is at %s, and it is not what they leave there (there: %v, expected: %v)", answered, path, there, had)}
		}
		if err := put(path, was, had); err != nil {
			return err
		}
	}
	return s.write(answered)
}

// touched are the paths that calls without an answer change.
func touched(p plan, answered int) map[string]bool {
	all := map[string]bool{}
	before, _ := p.files(answered)
	for n := answered + 1; n <= answered+tornAhead; n++ {
		after, _ := p.files(n)
		for _, path := range paths(before, after) {
			was, had := before[path]
			will, has := after[path]
			if had != has || was != will {
				all[path] = true
			}
		}
		before = after
	}
	return all
}

// put writes a file, or removes it where there is none to be.
func put(path, content string, there bool) error {
	if !there {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}

// torn says that the power went while the file was replaced: its name was on
// disk before its content.
func (s stateFile) torn() bool {
	data, err := os.ReadFile(string(s))
	return err == nil && len(bytes.Trim(data, "\x00")) == 0
}
