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

// git runs git with only the PATH of this process's environment.
type git struct {
	// binary is the absolute path of git, and config that of the configuration that
	// replaces the system's.
	binary, config string
	// memory is how many bytes of memory one git process may use; 0 for no limit.
	memory int64
	// namespace is the one that git works for, whose processor time effort counts. effort
	// is nil in the hook, which its parent counts.
	namespace string
	effort    *effort
}

// workingFor returns g with its processor time counted for a namespace.
func (g git) workingFor(namespace string) git {
	g.namespace = namespace
	return g
}

// start starts a process that command has prepared; it must be waited for with wait.
func (g git) start(command *exec.Cmd) error {
	if g.effort == nil {
		return command.Start()
	}
	return g.effort.start(g.namespace, command)
}

// wait waits for a process and counts its processor time.
func (g git) wait(command *exec.Cmd) error {
	err := command.Wait()
	if g.effort != nil {
		g.effort.ended(command)
	}
	return err
}

// defaultGitMemory suffices for a push of some 700,000 objects, or a delta of a file of
// 80 MiB.
const defaultGitMemory = 192 << 20

// killDelay is how long a terminated git process may take to clean up.
const killDelay = 5 * time.Second

// environment returns the environment of every git process.
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

// command prepares a git process in a process group of its own. When ctx is done, the
// group gets SIGTERM first, so that git removes its temporary files, and after killDelay
// the process is killed.
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

// run runs git to its end and returns its standard output.
func (g git) run(ctx context.Context, folder string, args ...string) (string, error) {
	return g.runHolding(ctx, nil, folder, args...)
}

// runHolding is run with files that git inherits, so that locks held through them last
// as long as the process.
func (g git) runHolding(ctx context.Context, held []*os.File, folder string, args ...string) (string, error) {
	return g.runWith(ctx, held, nil, folder, args...)
}

// runWith is runHolding with standard input.
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
