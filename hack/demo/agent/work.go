package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// agent carries out a plan.
type agent struct {
	plan   plan
	out    *bufio.Writer
	state  stateFile
	delay  time.Duration
	failAt int
}

// printLine prints one JSON line immediately.
func (a *agent) printLine(line any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(line); err != nil {
		return err
	}
	return a.out.Flush()
}

// message is a line with a message.
type message struct {
	Type string `json:"type"`
	Role string `json:"role"`
	Text string `json:"text"`
}

// message prints a message of the assistant.
func (a *agent) message(text string) error {
	return a.printLine(message{Type: "message", Role: "assistant", Text: text})
}

// work carries out the plan from the first call without an answer.
func (a *agent) work(ctx context.Context, m memory) error {
	if !m.greeted {
		if err := a.message(fmt.Sprintf("I have %d steps to do.", a.plan.len())); err != nil {
			return err
		}
	}
	for i := m.answered + 1; i <= a.plan.len(); i++ {
		if err := pause(ctx, a.delay); err != nil {
			return err
		}
		if i == a.failAt {
			return fmt.Errorf("failing at call %d, as requested by --fail-at", i)
		}
		if err := a.do(ctx, i); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return a.message("Done.")
}

// pause waits, or returns an error once the context is done.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do carries out call i: it prints the call, executes it, counts it and prints the
// result.
func (a *agent) do(ctx context.Context, i int) error {
	c := a.plan.call(i)
	if c.Message != "" {
		// A message in a script is also a call without an effect, so that it is not
		// printed again after a restart.
		if err := a.message(c.Message); err != nil {
			return err
		}
		c.Name = "note"
	}
	id := callID(i)
	if err := a.printLine(map[string]any{"type": "tool_call", "id": id, "name": c.Name, "input": c.Input}); err != nil {
		return err
	}
	output, err := execute(ctx, c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if interrupted(err) {
		return err
	}
	failed := err != nil
	if failed {
		output = strings.TrimSpace(output + "\n" + err.Error())
	}
	if err := a.state.write(i); err != nil {
		return err
	}
	if err := a.printLine(map[string]any{"type": "tool_result", "id": id, "output": oneLine(output), "isError": failed}); err != nil {
		return err
	}
	return a.printLine(map[string]any{"type": "usage", "inputTokens": 100 + i, "outputTokens": 20, "costMicroUSD": 150})
}

// interrupted reports whether a shell was killed. If a pod or an agent is killed, the
// signal may reach the shell a moment before the agent: such a call is incomplete, and
// must not get an answer.
func interrupted(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return true
	}
	// A shell that outlives its killed command exits with 128 plus the signal.
	return exit.ExitCode() == 128+int(syscall.SIGTERM) || exit.ExitCode() == 128+int(syscall.SIGKILL)
}

// execute carries out a call. It is idempotent.
func execute(ctx context.Context, c call) (output string, err error) {
	var in input
	if len(c.Input) > 0 {
		if err := json.Unmarshal(c.Input, &in); err != nil {
			return "", fmt.Errorf("the input is not valid: %w", err)
		}
	}
	switch c.Name {
	case "note":
		return "", nil
	case "write_file":
		if err := os.MkdirAll(filepath.Dir(in.Path), 0o755); err != nil {
			return "", err
		}
		return fmt.Sprintf("wrote %d bytes to %s", len(in.Content), in.Path), os.WriteFile(in.Path, []byte(in.Content), 0o644)
	case "append_file":
		return "appended to " + in.Path, appendOnce(in.Path, in.Content)
	case "delete_file":
		if err := os.Remove(in.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "deleted " + in.Path, nil
	case "move_file":
		return fmt.Sprintf("moved %s to %s", in.From, in.To), moveOnce(in.From, in.To)
	case "shell":
		out, err := exec.CommandContext(ctx, "sh", "-c", in.Command).CombinedOutput()
		return string(out), err
	default:
		return "", fmt.Errorf("there is no tool %q", c.Name)
	}
}

// appendOnce appends text to a file unless the file already contains it.
func appendOnce(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if strings.Contains(string(old), text) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// moveOnce moves a file unless it has been moved already.
func moveOnce(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := os.Stat(to); there == nil {
			return nil
		}
	}
	return err
}
