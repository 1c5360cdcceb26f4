package shim

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	clewagent "github.com/clew-dev/clew/internal/agent"
)

const (
	// versionWait is how long a program may take to print its version. Some load
	// JavaScript for a second before they do, and for longer on a busy node.
	versionWait = 30 * time.Second
	// maxVersionText bounds, in bytes, how much of its output is read.
	maxVersionText = 16 << 10
)

// tooOldError is returned when the agent's program is too old to be started.
type tooOldError struct{ message string }

func (e *tooOldError) Error() string { return e.message }

// tooOld asks the agent's program for its version, and returns why it cannot be used, or
// nil if it can or does not print its version. A wrapper is not asked, since running it
// may have any effect.
func (s *shim) tooOld(program, env []string, executable string) *clewagent.Failure {
	if _, known := clewagent.OldestVersion(executable); !known || len(program) != 1 || filepath.Base(program[0]) != executable {
		return nil
	}
	printed := askVersion(program[0], env)
	version, ok := clewagent.ParseVersion(s.cfg.Mask.Text(printed))
	if !ok {
		s.log.Info("the agent's program does not print its version", "program", executable)
		return nil
	}
	return clewagent.TooOld(executable, version)
}

// askVersion returns what a program prints when it is asked for its version.
func askVersion(program string, env []string) string {
	path, err := lookPath(program, env)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
	defer cancel()
	out := &head{limit: maxVersionText}
	cmd := exec.CommandContext(ctx, path, clewagent.VersionArgs()...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	_ = cmd.Run() // what it printed counts, even if it failed
	return out.String()
}

// head keeps the first limit bytes written to it.
type head struct {
	bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.limit - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
