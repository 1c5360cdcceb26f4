package sidecar

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

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// SocketName is the daemon's socket in the run folder.
const SocketName = "daemon.sock"

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
	// maxAsking bounds tools that wait for a checkpoint.
	maxAsking = 32
)

// socket serves the shim. The first session of an attempt is the only one that
// is ever served: nobody else in the agent's container knows its name.
type socket struct {
	recorder *recorder
	journal  *journal.Journal
	pod      daemonapi.Config
	log      logr.Logger
	// recorded is called after lines went to disk.
	recorded func()
	// failed is called when the spool can no longer be written.
	failed func(error)
	// beforeTool returns when a tool may run that waits for it.
	beforeTool func(context.Context, wire.BeforeTool)
	// asking bounds the tools that wait.
	asking chan struct{}
	// unstopped tells of an agent that does not stop.
	unstopped occasionally

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
	frozen      map[int64]*freeze // those under way
	changed     chan struct{}     // closed and replaced when any of these changes
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

func newSocket(r *recorder, j *journal.Journal, pod daemonapi.Config, log logr.Logger) *socket {
	return &socket{recorder: r, journal: j, pod: pod, log: log, recorded: func() {}, failed: func(error) {},
		beforeTool: func(context.Context, wire.BeforeTool) {}, asking: make(chan struct{}, maxAsking), unstopped: occasionally{every: unstoppedEvery},
		frozen: map[int64]*freeze{}, changed: make(chan struct{})}
}

// listen makes the socket, in the place of one that a killed daemon left.
func listen(runDir string) (net.Listener, error) {
	path := filepath.Join(runDir, SocketName)
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

// serve serves connections until ctx ends.
func (s *socket) serve(ctx context.Context, l net.Listener) error {
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
			if err := s.handle(ctx, &connection{Conn: c}, known); err != nil && ctx.Err() == nil {
				s.log.V(1).Info("a connection ended", "reason", err.Error())
			}
		}()
	}
}

// handle serves one connection. It calls known when it is one of the shim.
func (s *socket) handle(ctx context.Context, c *connection, known func()) error {
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
		return s.ask(ctx, c, f, known)
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.commitOutput(ctx, c)
	return s.read(ctx, c, r, epoch)
}

// ask answers a tool that waits. Whoever asks says nothing more.
func (s *socket) ask(ctx context.Context, c *connection, f wire.Frame, known func()) error {
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
	s.beforeTool(ctx, b)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.send(wire.TypeProceed, nil)
}

// admit takes the first session of the attempt and no other.
func (s *socket) admit(session string) error {
	return s.journal.Update(func(j *journal.State) error {
		if !j.Session.Of(s.pod.Attempt, s.pod.PodUID) {
			j.Session = &journal.Session{Attempt: s.pod.Attempt, PodUID: s.pod.PodUID, ID: session}
		}
		if j.Session.ID != session {
			return errors.New("a session that is not this attempt's")
		}
		return nil
	})
}

// open makes c the connection of the session.
func (s *socket) open(c *connection, hello wire.Hello) (epoch int, line int64, err error) {
	epoch, line, err = s.recorder.attach(hello.Session, hello.First)
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
	s.announce()
	if s.released != nil {
		c.tellOf(wire.TypeRelease, s.released)
	}
	s.log.Info("the shim is connected", "recordedLines", line)
	return epoch, line, nil
}

func (s *socket) close(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frozen {
		if f.c == c {
			f.thawed = true // a shim without a daemon lets its agent go on
		}
	}
	if s.current == c {
		s.current = nil
		s.announce()
	}
}

// announce wakes whoever waits for a change. Under mu.
func (s *socket) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// read takes what the shim says, until the connection is lost.
func (s *socket) read(ctx context.Context, c *connection, r *bufio.Reader, epoch int) error {
	for {
		f, err := wire.Read(r)
		if err != nil {
			return err
		}
		if f.Type == wire.TypeLine {
			if err := s.line(ctx, c, r, f, epoch); err != nil {
				return err
			}
			continue
		}
		if err := s.said(ctx, c, f); err != nil {
			return err
		}
	}
}

// line takes a line in, and puts lines on disk when no more are under way.
func (s *socket) line(ctx context.Context, c *connection, r *bufio.Reader, f wire.Frame, epoch int) error {
	l, err := f.Line()
	if err != nil {
		return err
	}
	if err := s.recorder.add(ctx, epoch, l); err != nil {
		return err
	}
	if r.Buffered() > 0 && !s.recorder.full() {
		return nil
	}
	line, err := s.recorder.commit(ctx)
	return s.committed(c, line, err)
}

func (s *socket) committed(c *connection, line int64, err error) error {
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			s.failed(err)
		}
		return err
	}
	s.recorded()
	return c.ack(line)
}

// commitOutput puts plain output on disk that has waited long enough.
func (s *socket) commitOutput(ctx context.Context, c *connection) {
	tick := time.NewTicker(outputDelay / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		line, err := s.recorder.commit(ctx)
		if s.committed(c, line, err) != nil {
			return
		}
	}
}

// said takes a frame other than a line.
func (s *socket) said(ctx context.Context, c *connection, f wire.Frame) error {
	switch f.Type {
	case wire.TypeFrozen, wire.TypeExit:
		line, err := s.put(ctx, f)
		if err := s.committed(c, line, err); err != nil {
			return err
		}
	case wire.TypeTerminating, wire.TypeThawed:
	default:
		return fmt.Errorf("a frame of type %d", f.Type)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.announce()
	switch f.Type {
	case wire.TypeTerminating:
		if !s.terminating {
			s.terminating, s.haste = true, time.Now().Add(longestHaste)
		}
	case wire.TypeFrozen:
		var z wire.Freeze
		if err := f.Decode(&z); err != nil {
			return err
		}
		if f := s.frozen[z.ID]; f != nil && f.c == c && !f.stopped {
			f.stopped, f.running = true, z.Running
			close(f.answered)
		}
	case wire.TypeThawed:
		var z wire.Freeze
		if err := f.Decode(&z); err != nil {
			return err
		}
		for _, f := range s.frozen {
			if f.c == c && f.id <= z.ID {
				f.thawed = true
			}
		}
	case wire.TypeExit:
		var e wire.Exit
		if err := f.Decode(&e); err != nil {
			return err
		}
		if e.Code < 0 || e.Code > 255 {
			return errors.New("an exit code out of range")
		}
		s.exit = &e
		s.terminating = s.terminating || e.Terminating
	}
	return nil
}

// put puts on disk what came before a Frozen or an Exit.
func (s *socket) put(ctx context.Context, f wire.Frame) (line int64, err error) {
	if f.Type == wire.TypeFrozen {
		return s.recorder.flush(ctx)
	}
	var e wire.Exit
	if err := f.Decode(&e); err != nil {
		return 0, err
	}
	return s.recorder.end(ctx, e.Terminating || e.Code != 0)
}

// status is what is known of the agent.
type status struct {
	connected, seen, terminating bool
	exit                         *wire.Exit
}

// status returns what is known and a channel that is closed when it changes.
func (s *socket) status() (status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return status{connected: s.current != nil || s.ending > 0, seen: s.seen, terminating: s.terminating, exit: s.exit}, s.changed
}

// until waits until the agent's status is as wanted, or ctx ends.
func (s *socket) until(ctx context.Context, wanted func(status) bool) error {
	for {
		st, changed := s.status()
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
	c, err := net.DialTimeout("unix", filepath.Join(runDir, SocketName), 2*time.Second)
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
