// Package socket serves the shim, which runs the agent in a container of its own: it
// receives the agent's output, stops the agent for checkpoints, holds risky tools back
// and ends the agent.
//
// It promises:
//
//   - A line is acknowledged to the shim only when the recorder has it on disk.
//   - One session is served per attempt, the first. Any other client in the agent's
//     container, which may be hostile, is rejected, at a bounded cost.
//   - A few connections are served at a time to Clew's tools, each for a bounded time and
//     apart from the session, which they do not delay.
//   - The consistency of a checkpoint is what the shim has reported about the agent by the
//     time all files were read.
//   - After Fence every agent whose shim connects is ended.
package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	// helloTimeout is how long a connection may take to name its session.
	helloTimeout = 5 * time.Second
	// writeTimeout is how long the shim may leave a frame unread.
	writeTimeout = 10 * time.Second
	// reconnectWait is how long a shim may take to reconnect: it tries every second.
	reconnectWait = 3 * time.Second
	// maxStrangers bounds the connections that have not named a session.
	maxStrangers = 32
	// MaxAsking bounds the tools that wait for a checkpoint or an answer.
	MaxAsking = 32
)

// maxEnding is how long the pod counts as ending after the shim has reported that the
// container was asked to end. Most pods end within that time. The bound is needed because
// an agent can send that signal to its own shim and keep running.
const maxEnding = 2 * time.Minute

// Recorder records lines; see record.Recorder.
type Recorder interface {
	// Attach begins a connection, whose lines are added with the returned epoch.
	Attach(session string, first int64) (epoch int, recorded int64, err error)
	// Add adds a line and returns the tool calls in it.
	Add(ctx context.Context, epoch int, l wire.Line) ([]record.Call, error)
	// Full reports whether Commit is due before more lines are added.
	Full() bool
	// Commit writes whole records to disk, Flush also output that may still grow, and End
	// everything. They return the last line that is recorded.
	Commit(ctx context.Context) (recorded int64, err error)
	Flush(ctx context.Context) (recorded int64, err error)
	End(ctx context.Context, killed bool) (calls []record.Call, recorded int64, err error)
}

// Handler is notified of what the agent does.
type Handler interface {
	// Recorded is called after lines were written to disk.
	Recorded()
	// Failed is called when the volume can no longer be written.
	Failed(error)
	// BeforeTool returns when the tool that waits may run, or why it must not. ctx ends with the
	// connection of the tool's hook.
	BeforeTool(context.Context, wire.BeforeTool) (refused string)
	// ToolCalled is called for each call in the agent's output, before it is recorded, and
	// must not block. ctx ends with Serve.
	ToolCalled(context.Context, record.Call)
	// ServeTools serves a connection to Clew's tools, which carries MCP, until its peer closes
	// it or ctx ends.
	ServeTools(ctx context.Context, c io.ReadWriteCloser)
	// Delivered is called when a program says that it has written out the answers to calls of
	// tools, whose ids nobody has checked.
	Delivered(ctx context.Context, calls []string) error
}

// Server serves the shim of one attempt. It serves only the attempt's first session,
// whose name no other process in the agent's container knows.
type Server struct {
	recorder Recorder
	journal  *journal.Journal
	pod      daemonapi.Config
	log      logr.Logger
	// asking holds a slot for each tool that may wait.
	asking chan struct{}
	// tools holds a slot for each connection to Clew's tools.
	tools chan struct{}
	// unstopped limits how often an agent that does not stop is logged.
	unstopped throttle

	sharing sync.Mutex
	shared  *Stop // the stop that risky calls share; nil for none

	mu          sync.Mutex
	current     *connection
	seen        bool // a session has been connected
	terminating bool
	endingUntil time.Time // until when the pod counts as ending; zero if it does not
	exiting     bool      // the shim has reported the agent's end, and its last output is being recorded
	exit        *wire.Exit
	fenced      bool
	stopping    int               // open connections that were ordered to end their agent
	released    *wire.Release     // nil until the shim may end
	freezes     int64             // id of the newest Freeze
	frozen      map[int64]*Freeze // those that have not ended, by id
	changed     broadcast.Change  // of Status
}

// connection is one connection of the shim.
type connection struct {
	net.Conn
	writing sync.Mutex
	acked   int64
}

// send writes a frame. If that fails it closes the connection: part of a frame cannot be
// taken back, and a shim that reconnects is sent the current state.
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

// sendAsync sends a frame in the background.
func (c *connection) sendAsync(t wire.Type, v any) {
	go func() { _ = c.send(t, v) }()
}

// ack acknowledges the lines up to line, each once.
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

// New returns the server of an attempt. A server that is only used after Fence needs
// neither recorder nor journal.
func New(r Recorder, j *journal.Journal, pod daemonapi.Config, log logr.Logger) *Server {
	return &Server{recorder: r, journal: j, pod: pod, log: log, asking: make(chan struct{}, MaxAsking), tools: make(chan struct{}, MaxTools),
		unstopped: throttle{every: unstoppedEvery}, frozen: map[int64]*Freeze{}}
}

// Listen creates the socket in runDir, replacing one that a killed daemon left.
func Listen(runDir string) (net.Listener, error) {
	path := filepath.Join(runDir, Name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("create the socket: %w", err)
	}
	// The agent's container may run under another user id.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("make the socket accessible to the agent's container: %w", err)
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
				s.log.V(1).Info("connection closed", "error", err.Error())
			}
		}()
	}
}

// handle serves one connection. It calls known once the connection no longer counts
// against maxStrangers.
func (s *Server) handle(serving context.Context, c *connection, h Handler, known func()) error {
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	// The buffer is small because any process in the agent's container can open many
	// connections.
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
	case wire.TypeTools:
		return s.openTools(serving, c, first, h, known)
	case wire.TypeDelivered:
		return s.delivered(serving, c, f, h)
	case wire.TypeHello:
	default:
		return fmt.Errorf("unexpected first frame of type %d", f.Type)
	}
	hello, err := f.Hello()
	if err != nil {
		return err
	}
	if s.isFenced() {
		known()
		return s.endAgent(c, first)
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

// ask answers the hook of a tool when the tool may run, or must not. The hook sends nothing further,
// so that a read returns only when its connection is closed.
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
		return errors.New("too many tools are waiting")
	}
	known()
	_ = c.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = c.Read(make([]byte, 1))
	}()
	refused := h.BeforeTool(ctx, b)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.send(wire.TypeProceed, wire.Proceed{Refused: refused})
}

// admit accepts the attempt's first session and rejects any other.
func (s *Server) admit(session string) error {
	return s.journal.Update(func(j *journal.State) error {
		if !j.Session.BelongsTo(s.pod.Attempt, s.pod.PodUID) {
			j.Session = &journal.Session{Attempt: s.pod.Attempt, PodUID: s.pod.PodUID, ID: session}
		}
		if j.Session.ID != session {
			return errors.New("the session is not the one of this attempt")
		}
		return nil
	})
}

// open makes c the session's only connection.
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
		c.sendAsync(wire.TypeRelease, s.released)
	}
	s.log.Info("the shim is connected", "recordedLines", line)
	return epoch, line, nil
}

func (s *Server) close(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frozen {
		if f.c == c {
			f.thawed = true // a shim that lost its daemon continues the agent
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
	return time.Now().Before(s.endingUntil)
}

// Status is the known state of the agent.
type Status struct {
	// Connected is set while a shim is connected, including one that was ordered to end
	// its agent.
	Connected bool
	// Seen is set once a shim has connected.
	Seen bool
	// Terminating is set once the container was asked to end.
	Terminating bool
	// Exiting is set once the agent has ended, before its last output is recorded.
	Exiting bool
	// Exit is how the agent ended; nil while that is not known.
	Exit *wire.Exit
}

// Status returns the current status and a channel that is closed when it changes.
func (s *Server) Status() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{Connected: s.current != nil || s.stopping > 0, Seen: s.seen, Terminating: s.terminating, Exiting: s.exiting, Exit: s.exit}, s.changed.Next()
}

// Until waits until wanted accepts the agent's status, or ctx ends.
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
