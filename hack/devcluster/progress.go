package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// progress shows the user which step runs and how long it took.
type progress struct {
	w     io.Writer
	start time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

// step prints what, runs fn, and prints the seconds that it took.
func (p *progress) step(what string, fn func() error) error {
	fmt.Fprintf(p.w, "  %s ...", what)
	start := time.Now()
	err := fn()
	if err != nil {
		fmt.Fprintf(p.w, " failed after %.1f s\n", time.Since(start).Seconds())
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(p.w, " %.1f s\n", time.Since(start).Seconds())
	return nil
}

func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p.w, format+"\n", args...)
}

// total returns the time since the program started, for the last line.
func (p *progress) total() string {
	return fmt.Sprintf("%.1f s", time.Since(p.start).Seconds())
}

// run runs a command and returns its standard output. An error contains the command line
// and the last lines of its standard error.
func run(ctx context.Context, name string, args ...string) (string, error) {
	return runCmd(exec.CommandContext(ctx, name, args...))
}

func runCmd(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	said := strings.TrimSpace(errs.String())
	if said == "" {
		said = strings.TrimSpace(out.String())
	}
	return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, lastLines(said, 15))
}

// lastLines returns the last n lines of s.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// writeFile writes a file atomically, and makes the folders above it.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(data); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Chmod(tmp.Name(), mode); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// waitFor calls check until it returns nil or a hopelessError, or the time is over. It
// returns the last error.
func waitFor(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if dead, ok := err.(hopelessError); ok {
			return dead.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s: %w", limit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// hopelessError ends waitFor at once.
type hopelessError struct{ error }
