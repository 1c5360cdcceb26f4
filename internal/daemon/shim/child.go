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

// stopWait is how long stopping the agent's processes may take.
const stopWait = 500 * time.Millisecond

// killWait is how long killing what the agent left behind may take.
const killWait = 2 * time.Second

// child is the agent's main process and whatever it started. As process 1 of a
// container the shim knows that every other process there is the agent's.
// Elsewhere the agent's are those that descend from the shim, in whatever
// session or process group they are: orphans among them come to the shim.
type child struct {
	pid    int
	init   bool     // the shim is process 1
	exited chan int // gets the exit code, once

	mu      sync.Mutex
	stopped bool
	others  []int // stopped beyond the process group
}

// startChild starts the agent with stdout and stderr as its own.
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
	// Orphans of the agent come to the shim even where it is not process 1.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		log.Error(err, "orphans of the agent will not be reaped")
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

// lookPath finds a command the way a shell would, in the agent's own PATH.
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

// programError says that the agent's program could not be started.
type programError struct{ error }

func (e *programError) Unwrap() error { return e.error }

// causeOf says why the agent was not started, where another start would not help.
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
	return agent.CauseUnknown // short of memory, say
}

// exitCodeOf is what a shell would exit with.
func exitCodeOf(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitNotFound
	}
	return exitNotExecutable
}

// reap waits for every process that ends, the agent's main one among them.
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

// signalGroup passes a signal on to the agent's process group. A stopped agent
// sees it when it goes on.
func (c *child) signalGroup(sig unix.Signal) { _ = unix.Kill(-c.pid, sig) }

// signalMost sends a signal to the agent's process group or, where that is as
// easy, to all of its processes.
func (c *child) signalMost(sig unix.Signal) {
	if c.init {
		_ = unix.Kill(-1, sig)
		return
	}
	c.signalGroup(sig)
}

// signalAll sends a signal to every process of the agent.
func (c *child) signalAll(sig unix.Signal) {
	c.signalMost(sig)
	if c.init {
		return
	}
	for pid, p := range c.processes() {
		if p.group != c.pid {
			_ = unix.Kill(pid, sig)
		}
	}
}

// killRest ends what the agent's main process left behind. Killing a process
// hands its children to the shim, so it goes on until there are none.
func (c *child) killRest() {
	poll(killWait, func() bool {
		c.signalAll(unix.SIGKILL)
		left := orphans()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// poll calls done until it returns true, or for as long as wait: nothing tells
// of a change in processes that are not the shim's own children.
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

// orphans are the processes that came to the shim from the agent.
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

// setStopped stops most of the agent's processes or lets all of them go on.
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

// awaitStopped stops what setStopped did not reach, waits until every process of
// the agent stands still, and reports whether it does.
func (c *child) awaitStopped() (still bool) {
	poll(stopWait, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.stopped {
			return true
		}
		all := c.processes()
		moving := movingOf(all)
		for _, pid := range moving {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for _, pid := range heldUp(all) {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		c.others = append(c.others, moving...)
		still = len(moving) == 0
		return still
	})
	return still
}

// movingOf lists the processes that are not stopped.
func movingOf(all map[int]proc) (out []int) {
	for pid, p := range all {
		if !strings.ContainsRune(stoppedStates, p.state) {
			out = append(out, pid)
		}
	}
	return out
}

// stoppedStates are the states of processes that do nothing until they are told to: stopped,
// traced, or ended.
const stoppedStates = "TtZXx"

// heldUp lists the stopped children of processes that wait in the kernel. A shell starts a
// program by vfork, and waits, where no signal reaches it, until the child executes the
// program: a child that was stopped just before that keeps its parent from being stopped.
// It is let go on, and is stopped again a moment later, when it has executed the program.
func heldUp(all map[int]proc) (out []int) {
	for pid, p := range all {
		if parent, ok := all[p.parent]; ok && parent.state == 'D' && p.state == 'T' {
			out = append(out, pid)
		}
	}
	return out
}

// proc is what the kernel says of a process.
type proc struct {
	state         rune
	parent, group int
}

// processes are those of the agent.
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

// descends reports whether p comes from the process top.
func descends(all map[int]proc, p proc, top int) bool {
	for range all { // the numbers may have been given anew: no loop for ever
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

// procStat reads what the kernel says of a process.
func procStat(pid int) (p proc, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	// The second field is the name in parentheses and may hold anything.
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

// withDefault adds a variable to an environment that lacks it.
func withDefault(env []string, name, value string) []string {
	return withDefaultEntry(env, name+"="+value)
}

func withDefaultEntry(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return env
		}
	}
	return append(env[:len(env):len(env)], entry)
}
