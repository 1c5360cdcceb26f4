// Package socket serves the shim, which runs the agent in a container of its own: it
// takes the agent's output in, stops the agent for checkpoints, holds risky tools back
// and ends the agent.
//
// It promises:
//
//   - A line is acknowledged to the shim only when the recorder has it on disk.
//   - One session is served for an attempt, the first. Whoever else connects, from the
//     agent's container, which is hostile, is turned away and costs a bounded amount.
//   - What a checkpoint says of its consistency is what the shim has said of the agent
//     by the time all files were read.
//   - After Fence each agent that connects is ended.
package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/broadcast"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// Name is the daemon's socket in the run folder.
const Name = "daemon.sock"

const (
	// helloTimeout is how long a connection may stay without a session.
	helloTimeout = 5 * time.Second
	// writeTimeout is how long the shim may leave a frame unread.
	writeTimeout = 10 * time.Second
	// reconnectWait is how long a shim may take to connect again: it tries each
	// second.
	reconnectWait = 3 * time.Second
	// maxStrangers bounds connections without a session.
	maxStrangers = 32
	// MaxAsking bounds the tools that wait for a checkpoint.
	MaxAsking = 32
)

// longestHaste is how long the pod counts as ending after it was told to: as long as
// most have for that. An agent can tell its own pod so, and go on.
const longestHaste = 2 * time.Minute

// Recorder records lines; see record.Recorder.
type Recorder interface {
	// Attach begins a connection, whose lines Add takes with the epoch returned.
	Attach(session string, first int64) (epoch int, recorded int64, err error)
	Add(ctx context.Context, epoch int, l wire.Line) ([]record.Call, error)
	// Full reports whether to Commit before more is added.
	Full() bool
	// Commit, Flush and End put on disk what may go there, all but what is not whole,
	// and all. They return the last line that is recorded.
	Commit(ctx context.Context) (recorded int64, err error)
	Flush(ctx context.Context) (recorded int64, err error)
	End(ctx context.Context, killed bool) (calls []record.Call, recorded int64, err error)
}

// Handler hears of what the agent does.
type Handler interface {
	// Recorded is called after lines went to disk.
	Recorded()
	// Failed is called when nothing can be written to the volume any more.
	Failed(error)
	// BeforeTool returns when a tool may run that waits for it, or ctx ends with the
	// connection of whoever asks.
	BeforeTool(context.Context, wire.BeforeTool)
	// ToolCalled is told of each call in the agent's output, before it is recorded. It
	// does not wait. ctx ends with Serve.
	ToolCalled(context.Context, record.Call)
}

// Server serves the shim. The first session of an attempt is the only one that
// is ever served: nobody else in the agent's container knows its name.
type Server struct {
	recorder Recorder
	journal  *journal.Journal
	pod      daemonapi.Config
	log      logr.Logger
	// asking bounds the tools that wait.
	asking chan struct{}
	// unstopped tells of an agent that does not stop.
	unstopped occasionally

	sharing sync.Mutex
	shared  *Stop // the stop of the agent that calls share; nil for none

	mu          sync.Mutex
	current     *connection
	seen        bool // a session was there
	terminating bool
	haste       time.Time // until when the pod's end is near; zero if it is not known to be
	exit        *wire.Exit
	fenced      bool
	ending      int           // connections that were told to end their agent and are still open
	released    *wire.Release // nil until the shim may end
	freezes     int64
	frozen      map[int64]*Freeze // those under way
	changed     broadcast.Change  // of any of these
}

// connection is one connection of the shim.
type connection struct {
	net.Conn
	writing sync.Mutex
	acked   int64
}

// send writes a frame. A connection that does not take it is closed: half a
// frame cannot be taken back, and a shim that connects again is told how things
// stand.
func (c *connection) send(t wire.Type, v any) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	err := wire.Write(c, t, v)
	if err != nil {
		_ = c.Close()
	}
	return err
}

// tell sends a frame without a body, and does not wait for it.
func (c *connection) tell(t wire.Type) { c.tellOf(t, nil) }

// tellOf sends a frame, and does not wait for it.
func (c *connection) tellOf(t wire.Type, v any) {
	go func() { _ = c.send(t, v) }()
}

// ack says that lines are recorded, once each.
func (c *connection) ack(line int64) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if line <= c.acked {
		return nil
	}
	c.acked = line
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	return wire.Write(c, wire.TypeAck, wire.Ack{Line: line})
}

// New makes the server of an attempt. One that only Fences needs neither recorder nor
// journal.
func New(r Recorder, j *journal.Journal, pod daemonapi.Config, log logr.Logger) *Server {
	return &Server{recorder: r, journal: j, pod: pod, log: log, asking: make(chan struct{}, MaxAsking),
		unstopped: occasionally{every: unstoppedEvery}, frozen: map[int64]*Freeze{}}
}

// Listen makes the socket, in the place of one that a killed daemon left.
func Listen(runDir string) (net.Listener, error) {
	path := filepath.Join(runDir, Name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	// The agent's container may run under another user id.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("open the socket to the agent: %w", err)
	}
	return l, nil
}

// Serve serves connections until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener, h Handler) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, maxStrangers)
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("accept a connection of the shim: %w", err)
		}
		slots <- struct{}{}
		go func() {
			var once sync.Once
			known := func() { once.Do(func() { <-slots }) }
			defer known()
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			if err := s.handle(ctx, &connection{Conn: c}, h, known); err != nil && ctx.Err() == nil {
				s.log.V(1).Info("a connection ended", "error", err.Error())
			}
		}()
	}
}

// handle serves one connection. It calls known when it is one of the shim.
func (s *Server) handle(serving context.Context, c *connection, h Handler, known func()) error {
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	// A small one: whoever is in the agent's container can open many connections.
	first := bufio.NewReaderSize(c, 1<<10)
	f, err := wire.Read(first)
	if err != nil {
		return err
	}
	switch f.Type {
	case wire.TypePing:
		return c.send(wire.TypePong, nil)
	case wire.TypeBeforeTool:
		return s.ask(serving, c, f, h, known)
	case wire.TypeHello:
	default:
		return errors.New("the first frame is no Hello")
	}
	hello, err := f.Hello()
	if err != nil {
		return err
	}
	if s.isFenced() {
		known()
		return s.end(c, first)
	}
	if err := s.admit(hello.Session); err != nil {
		return err
	}
	known()
	r := bufio.NewReaderSize(first, 128<<10)
	_ = c.SetReadDeadline(time.Time{})
	epoch, line, err := s.open(c, hello)
	if err != nil {
		return err
	}
	defer s.close(c)
	if err := c.send(wire.TypeWelcome, wire.Welcome{Line: line, Attempt: s.pod.Attempt}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(serving)
	defer cancel()
	t := &stream{s: s, c: c, in: r, epoch: epoch, handler: h, serving: serving}
	go t.commitOutput(ctx)
	return t.read(ctx)
}

// ask answers a tool that waits. Whoever asks says nothing more.
func (s *Server) ask(ctx context.Context, c *connection, f wire.Frame, h Handler, known func()) error {
	var b wire.BeforeTool
	if err := f.Decode(&b); err != nil {
		return err
	}
	b.ID, b.Name = conversation.ShortID(b.ID), conversation.ShortID(b.Name) // as they are recorded
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	default:
		return errors.New("too many tools wait at once")
	}
	known()
	_ = c.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = c.Read(make([]byte, 1))
	}()
	h.BeforeTool(ctx, b)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.send(wire.TypeProceed, nil)
}

// admit takes the first session of the attempt and no other.
func (s *Server) admit(session string) error {
	return s.journal.Update(func(j *journal.State) error {
		if !j.Session.BelongsTo(s.pod.Attempt, s.pod.PodUID) {
			j.Session = &journal.Session{Attempt: s.pod.Attempt, PodUID: s.pod.PodUID, ID: session}
		}
		if j.Session.ID != session {
			return errors.New("a session that is not this attempt's")
		}
		return nil
	})
}

// open makes c the connection of the session.
func (s *Server) open(c *connection, hello wire.Hello) (epoch int, line int64, err error) {
	epoch, line, err = s.recorder.Attach(hello.Session, hello.First)
	if err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.Close()
	}
	c.acked = line
	s.current, s.seen = c, true
	s.changed.Announce()
	if s.released != nil {
		c.tellOf(wire.TypeRelease, s.released)
	}
	s.log.Info("the shim is connected", "recordedLines", line)
	return epoch, line, nil
}

func (s *Server) close(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frozen {
		if f.c == c {
			f.thawed = true // a shim without a daemon lets its agent go on
		}
	}
	if s.current == c {
		s.current = nil
		s.changed.Announce()
	}
}

// Ending reports whether the pod is about to end.
func (s *Server) Ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.haste)
}

// Status is what is known of the agent.
type Status struct {
	Connected   bool // the shim is, or one is that was told to end its agent
	Seen        bool // a shim has been connected
	Terminating bool // the pod was told to end
	Exit        *wire.Exit
}

// Status returns what is known and a channel that is closed when it changes.
func (s *Server) Status() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{Connected: s.current != nil || s.ending > 0, Seen: s.seen, Terminating: s.terminating, Exit: s.exit}, s.changed.Next()
}

// Until waits until the agent's status is as wanted, or ctx ends.
func (s *Server) Until(ctx context.Context, wanted func(Status) bool) error {
	for {
		st, changed := s.Status()
		if wanted(st) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Ready asks the daemon whether it is up.
func Ready(runDir string) error {
	c, err := net.DialTimeout("unix", filepath.Join(runDir, Name), 2*time.Second)
	if err != nil {
		return fmt.Errorf("the daemon does not listen: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if err := wire.Write(c, wire.TypePing, nil); err != nil {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	if f, err := wire.Read(c); err != nil || f.Type != wire.TypePong {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	return nil
}
