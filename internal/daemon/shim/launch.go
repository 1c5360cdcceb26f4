package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// launch is the command line, environment and standard input of the agent's main process.
type launch struct {
	command []string
	env     []string
	stdin   string
}

// launch returns the user's command, extended for an agent of a known kind by its
// adapter, which follows the launch plan that prepare left.
func (s *shim) launch(attempt int64) (launch, error) {
	env := mask.Strip(s.cfg.Env)
	env = withDefault(env, ConversationEnv, s.cfg.Conversation)
	env = withDefault(env, AttemptEnv, strconv.FormatInt(attempt, 10))
	env = withProgram(env, filepath.Join(s.cfg.RunDir, launchplan.ProgramFile))
	out := launch{command: s.cfg.Command, env: env}
	plan, err := launchplan.Read(s.cfg.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	adapter, err := agent.For(plan.AgentType)
	if err != nil {
		return out, err
	}
	worktree, err := os.Getwd()
	if err != nil {
		return out, fmt.Errorf("find the agent's working folder: %w", err)
	}
	program, args := s.cfg.split(adapter.Executable())
	if f := s.tooOld(program, env, adapter.Executable()); f != nil {
		return out, &tooOldError{f.Message}
	}
	more := adapter.Command(agent.Start{Args: args, Prompt: plan.Prompt, Model: plan.Model, Session: plan.Session,
		Worktree: worktree, Tools: plan.Tools, HookSeconds: plan.HookSeconds, FilesDir: filepath.Join(s.cfg.RunDir, launchplan.FilesDir), Env: env})
	if err := writeHomeFiles(env, more.HomeFiles); err != nil {
		return out, err
	}
	out.command = append(program, more.Args...)
	for _, e := range more.Env {
		out.env = withDefaultEntry(out.env, e)
	}
	out.stdin = more.Stdin
	return out, nil
}

// withProgram adds the command line of Clew's tools: its path, and its folder to a PATH that is
// set, after all others, so that no program of the user's is hidden.
func withProgram(env []string, program string) []string {
	out := slices.Clone(withDefault(env, ProgramEnv, program))
	for i, e := range out {
		if value, ok := strings.CutPrefix(e, "PATH="); ok && value != "" {
			out[i] = e + string(filepath.ListSeparator) + filepath.Dir(program)
		}
	}
	return out
}

// split separates the user's command into the program and its arguments. The adapter's
// own executable is one word; for any other program, such as a wrapper, the pod template
// says which words are the command and which are its arguments.
func (c Config) split(executable string) (program, args []string) {
	words := len(c.Command)
	switch {
	case filepath.Base(c.Command[0]) == executable:
		words = 1
	case c.ProgramWords > 0:
		words = min(c.ProgramWords, words)
	}
	return slices.Clone(c.Command[:words]), c.Command[words:]
}

// input returns the file that becomes the agent's standard input. The caller closes it
// once the agent is started.
func (l launch) input() (*os.File, error) {
	if l.stdin == "" {
		return os.Open(os.DevNull)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe for the agent's input: %w", err)
	}
	go func() {
		defer write.Close()
		_, _ = io.WriteString(write, l.stdin) // an agent need not read all of it
	}()
	return read, nil
}

// stderrPipe copies the agent's standard error to the log, masked, and keeps its end.
type stderrPipe struct {
	file *os.File // given to the agent
	pipe *os.File
	tail tail
	done chan struct{}
}

func newStderrPipe(log *os.File, masker *mask.Masker) (*stderrPipe, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe for the agent's errors: %w", err)
	}
	e := &stderrPipe{file: write, pipe: read, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		out := masker.Writer(io.MultiWriter(&e.tail, ignoreErrors{log}))
		_, _ = io.Copy(out, read)
		_ = out.Flush()
	}()
	return e, nil
}

// started closes the shim's copy of the agent's end of the pipe.
func (e *stderrPipe) started() { _ = e.file.Close() }

// finish waits until standard error is closed, for at most wait, since processes that
// outlived the agent may keep it open.
func (e *stderrPipe) finish(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.done:
	case <-timer.C:
		_ = e.pipe.SetReadDeadline(time.Unix(1, 0))
		<-e.done
	}
}

// last returns the end of standard error, in whole lines. It is valid after finish.
func (e *stderrPipe) last() string { return e.tail.String() }

// tail keeps the last wire.MaxLastErrors bytes written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-wire.MaxLastErrors):]...)
	if extra := len(t.kept) - wire.MaxLastErrors; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(p), nil
}

// String returns the kept bytes without a first line whose beginning was dropped, unless
// that is the only line.
func (t *tail) String() string {
	text := t.kept
	if len(text) == wire.MaxLastErrors {
		if i := bytes.IndexByte(text, '\n'); i >= 0 && i < len(text)-1 {
			text = text[i+1:]
		}
	}
	return agent.Text(text)
}

// ignoreErrors is a writer that never fails: a closed log must not stop the agent.
type ignoreErrors struct{ io.Writer }

func (w ignoreErrors) Write(p []byte) (int, error) {
	_, _ = w.Writer.Write(p)
	return len(p), nil
}
