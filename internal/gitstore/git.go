package gitstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/capacity"
)

// git runs git with nothing of this process's environment but the PATH.
type git struct {
	// binary and config are absolute paths: of git, and of the configuration
	// that takes the place of the system's.
	binary, config string
	// memory is how many bytes one git process may have; 0 for no limit.
	memory int64
	// namespace is for whom it works, and effort how much it works for each; nil in
	// the hook, whose parent counts.
	namespace string
	effort    *effort
}

// workingFor is git for a namespace.
func (g git) workingFor(namespace string) git {
	g.namespace = namespace
	return g
}

// start starts a process that command has prepared. Wait for it with wait.
func (g git) start(command *exec.Cmd) error {
	if g.effort == nil {
		return command.Start()
	}
	return g.effort.start(g.namespace, command)
}

func (g git) wait(command *exec.Cmd) error {
	err := command.Wait()
	if g.effort != nil {
		g.effort.ended(command)
	}
	return err
}

// defaultGitMemory is enough to take in some 700,000 objects at once, or a delta
// of a file of 80 MiB.
const defaultGitMemory = 192 << 20

// killDelay is how long a git process has to clean up after itself.
const killDelay = 5 * time.Second

func (g git) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"TMPDIR=" + os.TempDir(),
		"GIT_CONFIG_SYSTEM=" + g.config,
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_OPTIONAL_LOCKS=0",
	}
}

// withConfig returns the environment variables that set configuration values,
// given as key, value, key, value ...
func withConfig(pairs ...string) []string {
	env := []string{fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(pairs)/2)}
	for i := 0; i+1 < len(pairs); i += 2 {
		env = append(env,
			fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i/2, pairs[i]),
			fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i/2, pairs[i+1]))
	}
	return env
}

// command prepares a git process in a process group of its own, which is ended
// when ctx is done: politely first, so that it removes its temporary files.
func (g git) command(ctx context.Context, folder string, args ...string) *exec.Cmd {
	name, words := capacity.LimitedCommand(g.binary, g.memory, args)
	command := exec.CommandContext(ctx, name, words...)
	command.Dir = folder
	command.Env = append(g.environment(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(folder))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = killDelay
	return command
}

// run runs git to its end and returns what it printed. Files are inherited, so
// that locks held by them last as long as the process.
func (g git) run(ctx context.Context, folder string, args ...string) (string, error) {
	return g.runHolding(ctx, nil, folder, args...)
}

func (g git) runHolding(ctx context.Context, held []*os.File, folder string, args ...string) (string, error) {
	return g.runWith(ctx, held, nil, folder, args...)
}

// runWith is run with files to inherit and something to read.
func (g git) runWith(ctx context.Context, held []*os.File, stdin io.Reader, folder string, args ...string) (string, error) {
	command := g.command(ctx, folder, args...)
	command.ExtraFiles = held
	command.Stdin = stdin
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := g.start(command)
	if err == nil {
		err = g.wait(command)
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
