package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// tornAhead is how many calls may have been carried out, with their answers waiting for a
// slow disk, when the power failed.
const tornAhead = 20

// repair checks and repairs the files after a power failure: the effects of answered
// calls must be complete, but files of later calls may be complete, missing or damaged.
// It restores the latter to their previous content, so that the calls can be repeated.
// work must be the current directory.
func repair(p plan, answered int, s stateFile, work fs.FS) error {
	counted, err := s.read()
	if s.torn() {
		counted, err = answered, nil
	}
	if err != nil {
		return err
	}
	if counted < answered || counted > answered+tornAhead {
		return &mismatchError{fmt.Sprintf("the conversation contains answers to %d calls, the session state counts %d", answered, counted)}
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
			return &mismatchError{fmt.Sprintf("after %d answered calls, %s is not as they left it, and no later call changes it (exists: %v, expected: %v)", answered, path, there, had)}
		}
		if err := put(path, was, had); err != nil {
			return err
		}
	}
	return s.write(answered)
}

// touched returns the paths that calls without an answer change.
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

// put writes a file, or removes it if it should not exist.
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

// torn reports whether the power failed while the file was replaced: its name reached the
// disk before its content.
func (s stateFile) torn() bool {
	data, err := os.ReadFile(string(s))
	return err == nil && len(bytes.Trim(data, "\x00")) == 0
}
