// Package shim starts the agent in the user's own image and connects it to the daemon.
// The shim is process 1 of the agent's container and depends on nothing in the image:
// no shell, no library, no token.
//
// It promises:
//
//   - The agent runs as it would without the shim: its output goes to the container's
//     log, signals reach its process group, its exit code is the container's (128+n for
//     a signal n), and orphans are reaped.
//   - Each line of standard output reaches the daemon once and in order, across
//     restarts of the daemon. Standard error is for people reading the log: it is
//     copied there, and its last lines are reported with the agent's end.
//   - A program that is too old to work is not started.
//   - The values of the agent's Secrets are masked in both, before they reach
//     the container's log or the daemon.
//   - An agent of a known kind is started as its adapter says, with the prompt
//     and the session that prepare decided on (package launchplan).
//   - While a checkpoint is taken the agent is stopped (SIGSTOP), so that its files are
//     those of one instant and match its recorded output.
//   - While the daemon is disconnected the agent runs until its next line, or not at all
//     if a line is unrecorded, and is then stopped until the daemon is back: so that
//     little is unrecorded if the pod is lost meanwhile.
//   - The container ends only when the daemon confirms that the last checkpoint is safe,
//     or that the attempt is over.
package shim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// Variables in the agent's environment.
const (
	// ConversationEnv names the file that holds the conversation so far.
	ConversationEnv = "CLEW_CONVERSATION"
	// ProgramEnv names the command line of Clew's tools, whose folder is also the last one in
	// PATH.
	ProgramEnv = "CLEW_BIN"
	// AttemptEnv holds the number of the attempt.
	AttemptEnv = "CLEW_ATTEMPT"
)

// Exit codes when the agent cannot be started, the same as a shell's.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

const (
	// defaultWindow bounds the output that is not recorded yet, in bytes.
	defaultWindow = 8 << 20
	// defaultMaxFreeze bounds how long the agent stays stopped for one checkpoint.
	defaultMaxFreeze = 60 * time.Second
	// freezeAtEnd is that bound once the container was asked to end, since its pod's
	// grace period is short.
	freezeAtEnd = 5 * time.Second
	// finishWait is how long an agent that was asked to finish may take before it is killed.
	finishWait = 10 * time.Second
	// eofWait bounds the wait for output of processes that outlived the agent.
	eofWait = 2 * time.Second
)

// Config says what to run and where the daemon is.
type Config struct {
	// Socket is the daemon's unix socket.
	Socket string
	// Command is the agent's command and its arguments.
	Command []string
	// ProgramWords is how many words of Command are the program, before its
	// arguments; 0 if that is not known.
	ProgramWords int
	// Env is the agent's environment.
	Env []string
	// Conversation is the file that holds the conversation so far.
	Conversation string
	// RunDir is the folder in which prepare left the launch plan.
	RunDir string
	// Mask masks the values of the agent's Secrets; nil if there are none.
	Mask *mask.Masker
	// Stdout and Stderr are the container's.
	Stdout, Stderr *os.File
	// Window bounds the output that is not recorded yet, in bytes; 0 means 8 MiB.
	Window int
	// MaxFreeze bounds how long the agent stays stopped for one checkpoint; 0 means a
	// minute.
	MaxFreeze time.Duration
	// Log is the shim's own log.
	Log logr.Logger
}

// shim is one run of the agent.
type shim struct {
	cfg  Config
	out  *outbox
	link *link
	log  logr.Logger

	mu          sync.Mutex
	child       *child      // nil until started
	terminating bool        // the container was asked to end
	finishing   bool        // the daemon has asked for the agent's end
	away        bool        // the agent is stopped because the daemon is disconnected
	frozen      int64       // id of the checkpoint that the agent is stopped for; 0 for none
	thaw        *time.Timer // ends the current freeze
}

// Run runs the agent to its end and returns the exit code for the container. It returns
// an error only if the shim itself fails.
func Run(ctx context.Context, cfg Config, signals <-chan os.Signal) (int, error) {
	if cfg.Window == 0 {
		cfg.Window = defaultWindow
	}
	if cfg.MaxFreeze == 0 {
		cfg.MaxFreeze = defaultMaxFreeze
	}
	// No other process of this container may read the session's name from the shim's memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		cfg.Log.Error(err, "the shim's memory remains readable to the agent")
	}
	session := make([]byte, 16)
	if _, err := rand.Read(session); err != nil {
		return 0, fmt.Errorf("name the session: %w", err)
	}
	// A closed log must not end the shim. The agent does not inherit Notify, as it would
	// inherit Ignore.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	s := &shim{cfg: cfg, log: cfg.Log}
	s.link = newLink(cfg.Socket, hex.EncodeToString(session), cfg.Window, s, cfg.Log)
	s.out = s.link.out
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.link.run(ctx)

	attempt, code, ok := s.awaitDaemon(signals)
	if !ok {
		return code, nil
	}
	return s.run(attempt, signals)
}

// awaitDaemon waits for the daemon's welcome. ok is false, and code the exit code, if the
// container was asked to end or the attempt is over.
func (s *shim) awaitDaemon(signals <-chan os.Signal) (attempt int64, code int, ok bool) {
	for {
		select {
		case welcome := <-s.link.welcomed:
			return welcome.Attempt, 0, true
		case <-s.link.stopped:
			return 0, 128 + int(unix.SIGKILL), false
		case sig := <-signals:
			if endsContainer(sig) {
				return 0, 128 + int(sig.(unix.Signal)), false
			}
		}
	}
}

func (s *shim) run(attempt int64, signals <-chan os.Signal) (int, error) {
	launch, err := s.launch(attempt)
	if err != nil {
		return s.cannotStart(err, signals)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make the pipe for the agent's output: %w", err)
	}
	defer read.Close()
	stderr, err := newStderrPipe(s.cfg.Stderr, s.cfg.Mask)
	if err != nil {
		return 0, err
	}
	c, err := startChild(launch, write, stderr.file, s.log)
	write.Close()
	stderr.started()
	if err != nil {
		return s.cannotStart(err, signals)
	}
	s.mu.Lock()
	s.child = c
	s.mu.Unlock()
	lines := newReader(read, s.cfg.Stdout, s, s.cfg.Mask)
	s.link.setReader(lines)
	go lines.run()

	for {
		select {
		case code := <-c.exited:
			c.killRest()
			lines.finish(eofWait)
			stderr.finish(eofWait)
			return s.end(wire.Exit{Code: code, LastErrors: stderr.last()}, signals)
		case sig := <-signals:
			s.forward(c, sig)
		case <-s.link.stopped:
			s.log.Info("this attempt is over; killing the agent")
			c.killAll()
			code := <-c.exited
			// The closed connection tells the daemon that no process of the agent is
			// left to write to the volume.
			c.killRest()
			return code, nil
		}
	}
}

// cannotStart reports an agent that could not be started as one that ended at once.
func (s *shim) cannotStart(err error, signals <-chan os.Signal) (int, error) {
	exit := wire.Exit{Code: exitCodeOf(err), Message: s.cfg.Mask.Text("the agent cannot be started: " + err.Error())}
	exit.Cause = string(causeOf(err))
	fmt.Fprintln(s.cfg.Stderr, "clew:", exit.Message)
	return s.end(exit, signals)
}

func (s *shim) forward(c *child, sig os.Signal) {
	if endsContainer(sig) {
		s.terminate()
	}
	c.signalGroup(sig.(unix.Signal))
}

// terminate notes that the container was asked to end, and continues a stopped agent so
// that it can end. The daemon is notified, so that a checkpoint in progress does not count as
// one of a stopped agent.
func (s *shim) terminate() {
	s.mu.Lock()
	s.terminating = true
	s.away = false
	frozen := s.frozen
	s.setFrozenLocked(0)
	s.mu.Unlock()
	if frozen != 0 {
		s.link.expired(frozen)
	}
	s.link.terminating()
}

// end reports the agent's end to the daemon and returns when the daemon releases the
// shim.
func (s *shim) end(exit wire.Exit, signals <-chan os.Signal) (int, error) {
	s.mu.Lock()
	s.child = nil
	exit.Terminating = s.terminating
	s.mu.Unlock()
	s.link.exit(exit)
	for {
		select {
		case release := <-s.link.released:
			if release.Code != nil {
				return *release.Code, nil
			}
			return exit.Code, nil
		case <-s.link.stopped:
			return exit.Code, nil
		case sig := <-signals:
			if endsContainer(sig) {
				s.terminate()
			}
		}
	}
}

// line is called by the reader with each piece of output, in order. It stops the agent
// if the daemon is disconnected.
func (s *shim) line(data []byte, more bool) {
	s.out.put(data, more)
	if s.link.connected() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminating && !s.away && s.child != nil && !s.link.connected() {
		s.away = true
		s.applyLocked()
	}
}

// daemonConnected is called each time the daemon has welcomed the session.
func (s *shim) daemonConnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	s.applyLocked()
}

// daemonLost is called when the connection is lost, which ends a checkpoint in progress.
// An agent whose output is not fully recorded is stopped.
func (s *shim) daemonLost() {
	unrecorded := s.out.pending()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = unrecorded && !s.terminating && s.child != nil
	s.setFrozenLocked(0)
}

// freeze stops the agent for a checkpoint. The freeze with the highest id counts, in
// whatever order they arrive.
func (s *shim) freeze(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id > s.frozen {
		s.setFrozenLocked(id)
	}
}

// awaitFrozen waits until the agent is stopped, and reports whether all its processes
// are.
func (s *shim) awaitFrozen() bool {
	s.mu.Lock()
	c := s.child
	s.mu.Unlock()
	if c != nil && !c.awaitStopped() {
		s.log.Info("a process of the agent does not stop for the checkpoint")
		return false
	}
	return true
}

// expire continues an agent that has been stopped for too long, and reports it to the
// daemon.
func (s *shim) expire(id int64) {
	if s.unfreeze(id) {
		s.log.Info("the checkpoint takes too long; the agent continues before it is complete")
		s.link.expired(id)
	}
}

// unfreeze continues the agent after the checkpoint id, and reports whether it was
// stopped for that one.
func (s *shim) unfreeze(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != id {
		return false
	}
	s.setFrozenLocked(0)
	return true
}

func (s *shim) setFrozenLocked(id int64) {
	if s.thaw != nil {
		s.thaw.Stop()
		s.thaw = nil
	}
	s.frozen = id
	if id != 0 {
		longest := s.cfg.MaxFreeze
		if s.terminating {
			longest = min(longest, freezeAtEnd)
		}
		s.thaw = time.AfterFunc(longest, func() { s.expire(id) })
	}
	s.applyLocked()
}

// finish ends the agent's processes with SIGTERM and, after finishWait or now, with SIGKILL,
// which no process survives that is stopped for a checkpoint. The shim still waits for its release.
func (s *shim) finish(now bool) {
	s.mu.Lock()
	c := s.child
	if c != nil && now {
		s.finishing = true
		s.mu.Unlock()
		c.killAll()
		return
	}
	if c == nil || s.finishing {
		s.mu.Unlock()
		return
	}
	s.finishing = true
	s.mu.Unlock()
	c.signalMost(unix.SIGTERM)
	time.AfterFunc(finishWait, func() {
		s.mu.Lock()
		left := s.child
		s.mu.Unlock()
		if left != nil {
			left.killAll()
		}
	})
}

// applyLocked stops the agent if there is a reason to, and continues it otherwise.
func (s *shim) applyLocked() {
	if s.child == nil {
		return
	}
	s.child.setStopped(s.away || s.frozen != 0)
	if s.away {
		go s.child.awaitStopped()
	}
}

// endsContainer reports whether a signal asks the container to end. Images choose the
// signal by STOPSIGNAL.
func endsContainer(sig os.Signal) bool {
	return sig == unix.SIGTERM || sig == unix.SIGINT || sig == unix.SIGQUIT
}

// Signals returns the signals that the shim forwards to the agent.
func Signals() []os.Signal {
	return []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH}
}
