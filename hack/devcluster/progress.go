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

// progress tells the user, on one writer, which step runs and how long it took.
type progress struct {
	w     io.Writer
	start time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

// step runs fn and says so: what before, elapsed seconds after.
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

// total is the time since the program started, for a last line.
func (p *progress) total() string {
	return fmt.Sprintf("%.1f s", time.Since(p.start).Seconds())
}

// run runs a command and gives its standard output. An error carries the
// command line and the last lines that it wrote to standard error.
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

// lastLines gives the last n lines of s.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// writeFile writes a file so that it is there wholly or not at all, and makes
// the folders above it.
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

// waitFor calls check until it gives no error, a hopelessError, or the time is
// over. It gives the last error.
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
			return fmt.Errorf("not so after %s: %w", limit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// hopelessError ends waitFor at once.
type hopelessError struct{ error }
