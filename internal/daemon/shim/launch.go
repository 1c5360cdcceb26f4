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
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// launch is how the agent's main process is started.
type launch struct {
	command []string
	env     []string
	stdin   string
}

// launch is the user's command and, for an agent of a known kind, what its
// adapter makes of the plan that prepare left.
func (s *shim) launch(attempt int64) (launch, error) {
	env := mask.Strip(s.cfg.Env)
	env = withDefault(env, ConversationEnv, s.cfg.Conversation)
	env = withDefault(env, AttemptEnv, strconv.FormatInt(attempt, 10))
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
		Worktree: worktree, FilesDir: filepath.Join(s.cfg.RunDir, launchplan.FilesDir), Env: env})
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

// split parts the user's command into the program and its arguments. A program
// that the adapter knows is one word; of another, a wrapper say, the template
// tells which words are the command and which its arguments.
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

// input is a file from which the agent reads its standard input. To be closed
// when the agent has it.
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
		_, _ = io.WriteString(write, l.stdin) // an agent may not care for all of it
	}()
	return read, nil
}

// stderrors passes the agent's standard error through to the log, masked, and
// keeps the last of it.
type stderrors struct {
	file *os.File // given to the agent
	pipe *os.File
	tail tail
	done chan struct{}
}

func newErrors(log *os.File, masker *mask.Masker) (*stderrors, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe for the agent's errors: %w", err)
	}
	e := &stderrors{file: write, pipe: read, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		out := masker.Writer(io.MultiWriter(&e.tail, ignoring{log}))
		_, _ = io.Copy(out, read)
		_ = out.Flush()
	}()
	return e, nil
}

// started lets go of the agent's end.
func (e *stderrors) started() { _ = e.file.Close() }

// finish waits for the end of the errors, but not long for processes that
// outlived the agent.
func (e *stderrors) finish(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.done:
	case <-timer.C:
		_ = e.pipe.SetReadDeadline(time.Unix(1, 0))
		<-e.done
	}
}

// last is the end of what was written, in whole lines. To be asked after finish.
func (e *stderrors) last() string { return e.tail.String() }

// tail keeps the last bytes written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-wire.MaxLastErrors):]...)
	if extra := len(t.kept) - wire.MaxLastErrors; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(p), nil
}

// String leaves out a line whose beginning was dropped, unless it is the only one.
func (t *tail) String() string {
	text := t.kept
	if len(text) == wire.MaxLastErrors {
		if i := bytes.IndexByte(text, '\n'); i >= 0 && i < len(text)-1 {
			text = text[i+1:]
		}
	}
	return agent.Text(text)
}

// ignoring writes to a log: one that is gone must not stop the agent.
type ignoring struct{ io.Writer }

func (w ignoring) Write(p []byte) (int, error) {
	_, _ = w.Writer.Write(p)
	return len(p), nil
}
