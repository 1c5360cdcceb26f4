// Package shim starts the agent in the user's own image and stands between it
// and the daemon. It is process 1 of the agent's container and needs nothing
// of the image: no shell, no library, no token.
//
// It promises:
//
//   - The agent is the same as without it: its output goes through to the
//     container's log, signals reach its process group, its exit code is the
//     container's (128+n for a signal n), and orphans are reaped.
//   - Each line of standard output reaches the daemon once and in order, across
//     restarts of the daemon. Standard error is for people reading the log: it
//     is passed through, and its last lines are told with the agent's end.
//   - A program that is too old to work is not started.
//   - The values of the agent's Secrets are masked in both, before they reach
//     the container's log or the daemon.
//   - An agent of a known kind is started as its adapter says, with the prompt
//     and the session that prepare decided on (package launchplan).
//   - While a checkpoint is taken the agent is stopped (SIGSTOP), so that its
//     files are those of one instant and match what it has said.
//   - While the daemon is away the agent works on until its next line (not at
//     all if one is unrecorded), then it is stopped until the daemon is back: so
//     that little is unknown if the pod is lost meanwhile.
//   - The container ends only when the daemon says that the last checkpoint is
//     safe.
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

// Environment of the agent.
const (
	// ConversationEnv names the file that holds the conversation so far.
	ConversationEnv = "CLEW_CONVERSATION"
	// AttemptEnv holds the number of the attempt.
	AttemptEnv = "CLEW_ATTEMPT"
)

// Exit codes of the shim's own.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

const (
	// defaultWindow bounds the output that is not recorded yet, in bytes.
	defaultWindow = 8 << 20
	// defaultMaxFreeze is how long the agent stays stopped for one checkpoint at most.
	defaultMaxFreeze = 60 * time.Second
	// freezeAtEnd is how long it does so after it was told to end: its pod's time is short.
	freezeAtEnd = 5 * time.Second
	// finishWait is how long an agent that is to finish may take.
	finishWait = 10 * time.Second
	// eofWait is how long output is awaited from processes that outlived the agent.
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
	// RunDir is the folder in which prepare left the plan of the agent's start.
	RunDir string
	// Mask knows the values of the agent's Secrets; nil if there are none.
	Mask *mask.Masker
	// Stdout and Stderr are the container's.
	Stdout, Stderr *os.File
	// Window bounds the output that is not recorded yet, in bytes; 0 means 8 MiB.
	Window int
	// MaxFreeze is how long the agent stays stopped for one checkpoint at most; 0
	// means a minute.
	MaxFreeze time.Duration
	Log       logr.Logger
}

// shim is one run of the agent.
type shim struct {
	cfg  Config
	out  *outbox
	link *link
	log  logr.Logger

	mu          sync.Mutex
	child       *child // nil until started
	terminating bool
	finishing   bool // the daemon has asked for the agent's end
	away        bool // the agent is stopped because the daemon is away
	frozen      int64
	thaw        *time.Timer
}

// Run runs the agent to its end and returns the exit code for the container.
// An error is about the shim itself.
func Run(ctx context.Context, cfg Config, signals <-chan os.Signal) (int, error) {
	if cfg.Window == 0 {
		cfg.Window = defaultWindow
	}
	if cfg.MaxFreeze == 0 {
		cfg.MaxFreeze = defaultMaxFreeze
	}
	// Nobody else of this container may read the session's name out of memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		cfg.Log.Error(err, "the shim's memory stays readable to the agent")
	}
	session := make([]byte, 16)
	if _, err := rand.Read(session); err != nil {
		return 0, fmt.Errorf("name the session: %w", err)
	}
	// A log that is gone must not end the shim. Notify, unlike Ignore, is not
	// inherited by the agent.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	s := &shim{cfg: cfg, out: newOutbox(cfg.Window), log: cfg.Log}
	s.link = newLink(cfg.Socket, hex.EncodeToString(session), s.out, s, cfg.Log)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.link.run(ctx)

	attempt, code, ok := s.awaitDaemon(signals)
	if !ok {
		return code, nil
	}
	return s.run(attempt, signals)
}

// awaitDaemon waits for the daemon's welcome. It gives up if it is told to end.
func (s *shim) awaitDaemon(signals <-chan os.Signal) (attempt int64, code int, ok bool) {
	for {
		select {
		case welcome := <-s.link.welcomed:
			return welcome.Attempt, 0, true
		case <-s.link.stopped:
			return 0, 128 + int(unix.SIGKILL), false
		case sig := <-signals:
			if ends(sig) {
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
	stderr, err := newErrors(s.cfg.Stderr, s.cfg.Mask)
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
			s.log.Info("this attempt is over: ending the agent")
			c.signalAll(unix.SIGKILL)
			code := <-c.exited
			// The end of the connection tells the daemon that nothing of the agent
			// is left to write to the volume.
			c.killRest()
			return code, nil
		}
	}
}

// cannotStart ends as if the agent had ended at once.
func (s *shim) cannotStart(err error, signals <-chan os.Signal) (int, error) {
	exit := wire.Exit{Code: exitCodeOf(err), Message: s.cfg.Mask.Text("the agent cannot be started: " + err.Error())}
	exit.Cause = string(causeOf(err))
	fmt.Fprintln(s.cfg.Stderr, "clew:", exit.Message)
	return s.end(exit, signals)
}

func (s *shim) forward(c *child, sig os.Signal) {
	if ends(sig) {
		s.terminate()
	}
	c.signalGroup(sig.(unix.Signal))
}

// terminate notes that the shim was told to end, and lets a stopped agent go on
// so that it can end. A checkpoint that is being taken is told of that.
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

// end tells the daemon that the agent has ended and holds the exit until the
// daemon lets it go.
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
			if ends(sig) {
				s.terminate()
			}
		}
	}
}

// line is called by the reader with each piece of output, in order.
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

// daemonBack is called when the daemon has welcomed the session (again).
func (s *shim) daemonBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	s.applyLocked()
}

// daemonGone is called when the connection is lost: a checkpoint that was being
// taken is lost with it. An agent that has already said what is not recorded
// goes no further.
func (s *shim) daemonGone() {
	unrecorded := s.out.pending()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = unrecorded && !s.terminating && s.child != nil
	s.setFrozenLocked(0)
}

// freeze stops the agent. Of several freezes the newest counts, in whatever order
// they come.
func (s *shim) freeze(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id > s.frozen {
		s.setFrozenLocked(id)
	}
}

// awaitFrozen waits until the agent stands still, and reports whether every process
// of it does.
func (s *shim) awaitFrozen() bool {
	s.mu.Lock()
	c := s.child
	s.mu.Unlock()
	if c != nil && !c.awaitStopped() {
		s.log.Info("some process of the agent does not stop for the checkpoint")
		return false
	}
	return true
}

// expire lets an agent go on that has been stopped for too long, and says so.
func (s *shim) expire(id int64) {
	if s.unfreeze(id) {
		s.log.Info("the checkpoint takes too long: the agent goes on before it is taken")
		s.link.expired(id)
	}
}

// unfreeze lets the agent go on after the checkpoint id, and reports whether it
// was stopped for that one.
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

// finish ends the agent's processes: with SIGTERM, and when that has no effect
// with SIGKILL. The exit is held as always.
func (s *shim) finish() {
	s.mu.Lock()
	c := s.child
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
			left.signalAll(unix.SIGKILL)
		}
	})
}

// applyLocked stops the agent or lets it go on, as the reasons for it say.
func (s *shim) applyLocked() {
	if s.child == nil {
		return
	}
	s.child.setStopped(s.away || s.frozen != 0)
	if s.away {
		go s.child.awaitStopped()
	}
}

// ends reports whether a signal tells the container to end. Images choose
// theirs by STOPSIGNAL.
func ends(sig os.Signal) bool {
	return sig == unix.SIGTERM || sig == unix.SIGINT || sig == unix.SIGQUIT
}

// Signals are those that the shim passes on to the agent.
func Signals() []os.Signal {
	return []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH}
}
