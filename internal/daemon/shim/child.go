package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/agent"
)

// stopWait bounds how long stopping the agent's processes may take.
const stopWait = 500 * time.Millisecond

// killWait bounds how long killing the processes that the agent left behind may take.
const killWait = 2 * time.Second

// child is the agent's main process and every process it started. When the shim is
// process 1 of a container, every other process there is the agent's. Elsewhere the
// agent's processes are the descendants of the shim, in any session or process group:
// their orphans are reparented to the shim.
type child struct {
	pid    int
	init   bool     // the shim is process 1
	exited chan int // receives the exit code, once

	mu      sync.Mutex
	stopped bool
	others  []int // stopped processes outside the process group
}

// startChild starts the agent with the given stdout and stderr.
func startChild(l launch, stdout, stderr *os.File, log logr.Logger) (*child, error) {
	path, err := lookPath(l.command[0], l.env)
	if err != nil {
		return nil, &programError{err}
	}
	stdin, err := l.input()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	// The agent's orphans are reparented to the shim even where it is not process 1.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		log.Error(err, "the agent's orphans will not be reaped")
	}
	c := &child{init: os.Getpid() == 1, exited: make(chan int, 1)}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	c.pid, err = syscall.ForkExec(path, l.command, &syscall.ProcAttr{
		Env:   l.env,
		Files: []uintptr{stdin.Fd(), stdout.Fd(), stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		signal.Stop(died)
		return nil, &programError{&fs.PathError{Op: "start", Path: path, Err: err}}
	}
	go c.reap(died)
	return c, nil
}

// lookPath finds a command as a shell does, in the agent's own PATH.
func lookPath(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, nil
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	found := exec.ErrNotFound
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, command)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
		found = fs.ErrPermission
	}
	return "", fmt.Errorf("%s: %w", command, found)
}

// programError is returned when the agent's program cannot be started.
type programError struct{ error }

func (e *programError) Unwrap() error { return e.error }

// causeOf returns why the agent was not started, or agent.CauseUnknown if another start
// may succeed.
func causeOf(err error) agent.Cause {
	var tooOld *tooOldError
	var program *programError
	switch {
	case errors.As(err, &tooOld):
		return agent.CauseTooOld
	case !errors.As(err, &program):
		return agent.CauseUnknown
	case exitCodeOf(err) == exitNotFound:
		return agent.CauseProgramNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return agent.CauseProgramNotExecutable
	}
	return agent.CauseUnknown // for example, out of memory
}

// exitCodeOf returns the code that a shell would exit with.
func exitCodeOf(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitNotFound
	}
	return exitNotExecutable
}

// reap waits for every process that ends, including the agent's main process.
func (c *child) reap(died <-chan os.Signal) {
	tick := time.NewTicker(time.Second) // SIGCHLDs may be merged before Notify
	defer tick.Stop()
	for {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if pid == c.pid {
				c.exited <- exitCode(status)
			}
		}
		select {
		case <-died:
		case <-tick.C:
		}
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// signalGroup forwards a signal to the agent's process group. A stopped agent receives
// it when it is continued.
func (c *child) signalGroup(sig unix.Signal) { _ = unix.Kill(-c.pid, sig) }

// signalMost sends a signal to all of the agent's processes if one system call can do
// that, which it can when the shim is process 1, and otherwise to its process group.
func (c *child) signalMost(sig unix.Signal) {
	if c.init {
		_ = unix.Kill(-1, sig)
		return
	}
	c.signalGroup(sig)
}

// killAll kills every process of the agent.
func (c *child) killAll() {
	c.signalMost(unix.SIGKILL)
	if c.init {
		return
	}
	for pid, p := range c.processes() {
		if p.group != c.pid {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// killRest kills the processes that the agent's main process left behind. Killing a
// process reparents its children to the shim, so killRest repeats until none are left,
// for at most killWait.
func (c *child) killRest() {
	poll(killWait, func() bool {
		c.killAll()
		left := orphans()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// poll calls done until it returns true or wait has passed. It polls because the kernel
// does not notify the shim of changes in processes that are not its own children.
func poll(wait time.Duration, done func() bool) {
	over := time.NewTimer(wait)
	defer over.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-over.C:
			return
		case <-tick.C:
		}
	}
}

// orphans returns the agent's processes that were reparented to the shim.
func orphans() []int {
	var out []int
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// setStopped stops most of the agent's processes, see signalMost, or continues all of
// them.
func (c *child) setStopped(stop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped == stop {
		return
	}
	c.stopped = stop
	if stop {
		c.signalMost(unix.SIGSTOP)
		return
	}
	c.signalMost(unix.SIGCONT)
	for _, pid := range c.others {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	c.others = nil
}

// awaitStopped stops the processes that setStopped did not reach, waits up to stopWait
// until every process of the agent is stopped, and reports whether all of them are.
func (c *child) awaitStopped() (stopped bool) {
	var continued []int
	poll(stopWait, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.stopped {
			return true
		}
		all := c.processes()
		running := runningOf(all)
		for _, pid := range running {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		continued = stoppedBeforeExec(all)
		for _, pid := range continued {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		c.others = append(c.others, running...)
		stopped = len(running) == 0
		return stopped
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped && !stopped { // no further round stops what the last one continued
		for _, pid := range continued {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
	}
	return stopped
}

// runningOf lists the processes that are not stopped.
func runningOf(all map[int]proc) (out []int) {
	for pid, p := range all {
		if !strings.ContainsRune(stoppedStates, p.state) {
			out = append(out, pid)
		}
	}
	return out
}

// stoppedStates are the states of processes that do not run until they are continued:
// stopped, traced, or ended.
const stoppedStates = "TtZXx"

// stoppedBeforeExec lists the stopped children of processes in uninterruptible sleep. A
// shell starts a program by vfork and sleeps, where no signal reaches it, until the child
// has executed the program: a child that is stopped just before that keeps its parent from
// being stopped. The caller continues such a child, and stops it again a moment later, when
// it has executed the program.
func stoppedBeforeExec(all map[int]proc) (out []int) {
	for pid, p := range all {
		if parent, ok := all[p.parent]; ok && parent.state == 'D' && p.state == 'T' {
			out = append(out, pid)
		}
	}
	return out
}

// proc is the part of a process's /proc/<pid>/stat that the shim uses.
type proc struct {
	state         rune
	parent, group int
}

// processes returns the agent's processes by their pid.
func (c *child) processes() map[int]proc {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	self := os.Getpid()
	all := map[int]proc{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != self {
			if p, ok := procStat(pid); ok {
				all[pid] = p
			}
		}
	}
	if !c.init {
		maps.DeleteFunc(all, func(_ int, p proc) bool { return p.group != c.pid && !descends(all, p, self) })
	}
	return all
}

// descends reports whether p is a descendant of the process top.
func descends(all map[int]proc, p proc, top int) bool {
	for range all { // bounded, since reused pids may form a cycle
		if p.parent == top {
			return true
		}
		next, ok := all[p.parent]
		if !ok {
			return false
		}
		p = next
	}
	return false
}

// procStat reads the state of a process; ok is false if it has ended.
func procStat(pid int) (p proc, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	// The second field is the name in parentheses and may contain any byte.
	rest := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(rest) < 3 {
		return p, false
	}
	p.state = rune(rest[0][0])
	p.parent, err = strconv.Atoi(string(rest[1]))
	if err != nil {
		return p, false
	}
	p.group, err = strconv.Atoi(string(rest[2]))
	return p, err == nil
}

// withDefault adds a variable to an environment that does not have it.
func withDefault(env []string, name, value string) []string {
	return withDefaultEntry(env, name+"="+value)
}

// withDefaultEntry is withDefault for a variable written as name=value.
func withDefaultEntry(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return env
		}
	}
	return append(env[:len(env):len(env)], entry)
}
