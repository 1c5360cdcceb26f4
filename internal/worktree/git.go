package worktree

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/capacity"
)

// neutral is the configuration of every git process. It disables every means by
// which a file could make git run a program or leave the repository.
var neutral = []string{
	"--no-pager", "--literal-pathspecs",
	"-c", "core.fsmonitor=false",
	"-c", "core.hooksPath=/dev/null",
	"-c", "core.attributesFile=/dev/null",
	"-c", "core.excludesFile=/dev/null",
	"-c", "core.protectNTFS=false",
	"-c", "core.protectHFS=false",
	"-c", "core.fsync=all",
	"-c", "core.commitGraph=false",
	// The agent's files determine how much memory git needs: large ones are streamed
	// and never become deltas, which both sides of a push would hold in memory whole.
	"-c", "core.bigFileThreshold=16m",
	"-c", "core.deltaBaseCacheLimit=16m",
	"-c", "pack.threads=1",
	"-c", "pack.windowMemory=32m",
	"-c", "pack.deltaCacheSize=16m",
	"-c", "submodule.recurse=false",
	"-c", "fetch.recurseSubmodules=false",
	"-c", "diff.ignoreSubmodules=all",
	"-c", "protocol.allow=never",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
	"-c", "safe.bareRepository=explicit",
	"-c", "credential.helper=",
	"-c", "advice.detachedHead=false",
}

// neutralEnv returns the whole environment of a git process, apart from what a call
// adds.
func neutralEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_ADVICE=0",
	}
}

// gitCall describes one run of git.
type gitCall struct {
	args    []string // after the neutral options; begins with -c options or the command
	env     []string
	stdin   io.Reader
	stdout  io.Writer // nil: the output is collected and returned
	gitDir  string    // "": the repository of the checkpoints
	workDir string    // --work-tree, if any
}

// gitError is the failure of a git process.
type gitError struct {
	command string
	stderr  string
	err     error
}

func (e *gitError) Error() string {
	text := strings.TrimSpace(e.stderr)
	if text == "" {
		return "git " + e.command + ": " + e.err.Error()
	}
	return "git " + e.command + ": " + text
}

func (e *gitError) Unwrap() error { return e.err }

// Stderr returns git's standard error alone, without the messages that wrap it.
func (e *gitError) Stderr() string { return e.stderr }

// maxStderr is how many bytes are kept from the end of git's standard error; a quarter as
// many are kept from its beginning.
const maxStderr = 4 << 10

// command prepares a git process without starting it. Its standard error is
// collected in the returned buffer.
func (r *Repo) command(ctx context.Context, call gitCall) (*exec.Cmd, *endsBuffer) {
	dir := call.gitDir
	if dir == "" {
		dir = r.cfg.GitDir
	}
	args := append([]string{"--git-dir=" + dir}, neutral...)
	if call.workDir != "" {
		args = append(args, "--work-tree="+call.workDir)
	}
	name, args := capacity.LimitedCommand(r.cfg.Git, r.cfg.GitMemoryBytes, append(args, call.args...))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.cfg.GitDir
	cmd.Env = append(neutralEnv(), call.env...)
	cmd.Stdin = call.stdin
	stderr := &endsBuffer{}
	cmd.Stderr = stderr
	// A process group, so that cancelling a fetch also kills its helpers, and the
	// lock, so that the next owner waits for a git process that outlives this one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.ExtraFiles = []*os.File{r.lock}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, stderr
}

// git runs git and returns its standard output.
func (r *Repo) git(ctx context.Context, call gitCall) ([]byte, error) {
	cmd, stderr := r.command(ctx, call)
	var out bytes.Buffer
	cmd.Stdout = call.stdout
	if call.stdout == nil {
		cmd.Stdout = &out
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return out.Bytes(), &gitError{command: commandName(call.args), stderr: stderr.String(), err: err}
	}
	return out.Bytes(), nil
}

// gitText runs git and returns its output without the final line feed.
func (r *Repo) gitText(ctx context.Context, args ...string) (string, error) {
	out, err := r.git(ctx, gitCall{args: args})
	return strings.TrimSuffix(string(out), "\n"), err
}

// commandName returns the git command in args, which follows the -c options.
func commandName(args []string) string {
	for i := 0; i < len(args); i++ {
		if args[i] == "-c" {
			i++
			continue
		}
		return args[i]
	}
	return ""
}

// stderrOf returns the standard error of a failed git, or "".
func stderrOf(err error) string {
	var e *gitError
	if errors.As(err, &e) {
		return e.stderr
	}
	return ""
}

// interrupted reports whether err means that git could not complete: it or a child of it
// could not be started or was killed, its call was cancelled, or it ran out of memory. Such
// a failure says nothing about the repository.
func interrupted(err error) bool {
	var git *gitError
	if !errors.As(err, &git) {
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	}
	var exit *exec.ExitError
	if !errors.As(git.err, &exit) || outOfMemory.MatchString(git.stderr) || childKilled.MatchString(git.stderr) {
		return true
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	return status.Signaled() && slices.Contains(killSignals, status.Signal()) || slices.Contains(notStarted, status.ExitStatus())
}

// killSignals are the signals that others send to end git. SIGBUS is not among them: git
// gets it when a file is shorter than it should be.
var killSignals = []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// notStarted are the shell's exit codes for a program that it cannot start (POSIX). Git runs
// below a shell, which sets its memory limit.
var notStarted = []int{126, 127}

// childKilled matches git's messages about a child process or thread that was killed by one
// of killSignals or could not be started.
var childKilled = regexp.MustCompile(`died of signal (?:1|2|9|15)\b|(?i:cannot fork|unable to fork|unable to create thread)`)

// moreMemory tells users what to do when git runs out of memory.
const moreMemory = "ask an administrator to raise the manager's --daemon-limits, which apply to the task's next pod"

// failGit wraps an error of git as StorageFull, MemoryExceeded or GitFailed. An error that
// has a reason, a cancellation, or nil is returned as it is.
func failGit(err error, format string, args ...any) error {
	if err == nil || ReasonOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if outOfSpace(stderrOf(err)) {
		return fail(StorageFull, err, "the volume is full while trying to "+format+"; free space or enlarge the volume", args...)
	}
	if outOfMemory.MatchString(stderrOf(err)) {
		return fail(MemoryExceeded, err, "git needs more memory to "+format+" than Clew's container in the task's pod may use; "+moreMemory, args...)
	}
	return failIO(err, format, args...)
}

// endsBuffer keeps the beginning and the end of what is written to it. Git reports the cause
// first, such as a lack of memory, and its conclusion last; in between it may list a long
// chain of deltas.
type endsBuffer struct{ head, tail []byte }

func (b *endsBuffer) Write(p []byte) (int, error) {
	n := min(len(p), maxStderr/4-len(b.head))
	b.head = append(b.head, p[:n]...)
	b.tail = append(b.tail, p[n:]...)
	if len(b.tail) > 2*maxStderr {
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-maxStderr-1:]...)
	}
	return len(p), nil
}

func (b *endsBuffer) String() string {
	if over := len(b.tail) - maxStderr; over > 0 {
		return string(b.head) + "\n[...]\n" + string(b.tail[over:])
	}
	return string(b.head) + string(b.tail)
}
