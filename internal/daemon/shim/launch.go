package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clewagent "github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/start"
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
	plan, err := start.Read(s.cfg.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	adapter, err := clewagent.For(plan.AgentType)
	if err != nil {
		return out, err
	}
	worktree, err := os.Getwd()
	if err != nil {
		return out, fmt.Errorf("find the agent's working folder: %w", err)
	}
	more := adapter.Command(clewagent.Start{Prompt: plan.Prompt, Model: plan.Model, Session: plan.Session,
		Worktree: worktree, FilesDir: filepath.Join(s.cfg.RunDir, start.FilesDir), Env: env})
	if err := writeHomeFiles(env, more.HomeFiles); err != nil {
		return out, err
	}
	out.command = append(out.command[:len(out.command):len(out.command)], more.Args...)
	for _, e := range more.Env {
		out.env = withDefaultEntry(out.env, e)
	}
	out.stdin = more.Stdin
	return out, nil
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

// stderrors passes the agent's standard error through to the log: by itself
// where there is nothing to mask.
type stderrors struct {
	file *os.File // given to the agent
	pipe *os.File // nil if file is the log
	done chan struct{}
}

func newErrors(log *os.File, masker *mask.Masker) (*stderrors, error) {
	if masker == nil {
		return &stderrors{file: log}, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe for the agent's errors: %w", err)
	}
	e := &stderrors{file: write, pipe: read, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		out := masker.Writer(ignoring{log})
		_, _ = io.Copy(out, read)
		_ = out.Flush()
	}()
	return e, nil
}

// started lets go of the agent's end.
func (e *stderrors) started() {
	if e.pipe != nil {
		_ = e.file.Close()
	}
}

// finish waits for the end of the errors, but not long for processes that
// outlived the agent.
func (e *stderrors) finish(wait time.Duration) {
	if e.pipe == nil {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.done:
	case <-timer.C:
		_ = e.pipe.SetReadDeadline(time.Unix(1, 0))
		<-e.done
	}
}

// ignoring writes to a log: one that is gone must not stop the agent.
type ignoring struct{ io.Writer }

func (w ignoring) Write(p []byte) (int, error) {
	_, _ = w.Writer.Write(p)
	return len(p), nil
}
