package shim

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// agentProcess is the part of the agent that the daemon controls.
type agentProcess interface {
	daemonConnected()
	daemonLost()
	freeze(id int64)
	awaitFrozen() (stopped bool)
	unfreeze(id int64) (wasFrozen bool)
	finish(now bool)
}

// link maintains the connection to the daemon: after each loss it reconnects, names its
// session and continues where the daemon's records end.
type link struct {
	socket  string
	session string
	out     *outbox
	agent   agentProcess
	log     logr.Logger

	welcomed chan wire.Welcome // the first welcome
	released chan wire.Release // receives the permission to end, once
	stopped  chan struct{}     // closed when the agent must end at once
	once     struct{ welcome, release, stop sync.Once }

	mu     sync.Mutex
	wake   sync.Cond
	up     bool
	lost   bool                      // the connection that write uses is lost
	sent   int64                     // last line sent on this connection
	frozen []wire.Freeze             // Frozen frames to send after all lines
	thawed int64                     // id of a Thawed frame to send; 0 for none
	term   bool                      // Terminating has to be sent on each connection
	ended  *wire.Exit                // Exit, to be sent on each connection after all lines
	done   struct{ term, exit bool } // sent on this connection
	reader *reader
}

// newLink returns a link with an empty outbox that holds up to window bytes.
func newLink(socket, session string, window int, a agentProcess, log logr.Logger) *link {
	l := &link{socket: socket, session: session, agent: a, log: log,
		welcomed: make(chan wire.Welcome, 1), released: make(chan wire.Release, 1), stopped: make(chan struct{})}
	l.wake.L = &l.mu
	l.out = newOutbox(window, l.nudge)
	return l
}

func (l *link) nudge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake.Broadcast()
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

func (l *link) setReader(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reader = r
}

// terminating reports to the daemon that the container was asked to end.
func (l *link) terminating() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = true
	l.wake.Broadcast()
}

// exit reports to the daemon, after all lines, how the agent ended.
func (l *link) exit(e wire.Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = &e
	l.wake.Broadcast()
}

// run connects, and reconnects after each loss, until ctx ends.
func (l *link) run(ctx context.Context) {
	wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for ctx.Err() == nil {
		if conn, err := l.open(ctx); err == nil {
			wait.Reset()
			l.serve(ctx, conn)
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// open connects and waits for the daemon's welcome.
func (l *link) open(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", l.socket)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var welcome wire.Welcome
	err = wire.Write(conn, wire.TypeHello, wire.Hello{Session: l.session, First: l.out.first()})
	if err == nil {
		var f wire.Frame
		if f, err = wire.Read(conn); err == nil {
			if f.Type == wire.TypeStop {
				l.once.stop.Do(func() { close(l.stopped) })
			}
			err = f.Decode(&welcome)
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	line := min(welcome.Line, l.out.end())
	l.out.ack(line)
	l.mu.Lock()
	l.up, l.lost, l.sent, l.frozen, l.thawed = true, false, line, nil, 0
	l.done.term, l.done.exit = false, false
	l.mu.Unlock()
	l.once.welcome.Do(func() { l.welcomed <- welcome })
	l.agent.daemonConnected()
	return conn, nil
}

// serve uses one connection until it is lost.
func (l *link) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		l.write(conn)
		conn.Close()
	}()
	err := l.read(conn)
	conn.Close()
	l.mu.Lock()
	l.up, l.lost = false, true
	l.wake.Broadcast()
	l.mu.Unlock()
	<-wrote
	l.agent.daemonLost()
	if ctx.Err() == nil {
		l.log.Info("lost the connection to the daemon; reconnecting", "error", err.Error())
	}
}

func (l *link) read(conn net.Conn) error {
	r := bufio.NewReader(conn)
	for {
		f, err := wire.Read(r)
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.TypeAck:
			var a wire.Ack
			if err := f.Decode(&a); err != nil {
				return err
			}
			l.out.ack(a.Line)
		case wire.TypeFreeze:
			var z wire.Freeze
			if err := f.Decode(&z); err != nil {
				return err
			}
			l.agent.freeze(z.ID) // before the next frame is handled
			go l.awaitFrozen(z.ID)
		case wire.TypeThaw:
			var z wire.Freeze
			if err := f.Decode(&z); err != nil {
				return err
			}
			l.agent.unfreeze(z.ID)
		case wire.TypeRelease:
			var release wire.Release
			_ = f.Decode(&release) // an empty one means the agent's own exit code
			l.once.release.Do(func() { l.released <- release })
		case wire.TypeFinish:
			var finish wire.Finish
			_ = f.Decode(&finish) // an empty one asks the agent to end
			l.agent.finish(finish.Now)
		case wire.TypeStop:
			l.once.stop.Do(func() { close(l.stopped) })
		}
	}
}

// awaitFrozen waits until the agent is stopped and all its output is queued, and then
// queues the Frozen frame behind it.
func (l *link) awaitFrozen(id int64) {
	l.mu.Lock()
	r := l.reader
	l.mu.Unlock()
	stopped := l.agent.awaitFrozen()
	if r != nil {
		r.drain()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = append(l.frozen, wire.Freeze{ID: id, Running: !stopped})
	l.wake.Broadcast()
}

// expired reports to the daemon that the agent runs again before the checkpoint is
// complete, because it was stopped for too long or has to end.
func (l *link) expired(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thawed = id
	l.wake.Broadcast()
}

// write sends what next returns until the connection is lost.
func (l *link) write(conn net.Conn) {
	for {
		send, ok := l.next()
		if !ok {
			return
		}
		if err := send(conn); err != nil {
			return
		}
	}
}

// next waits for the next frame to send. Lines precede Frozen and Exit. Thawed precedes
// lines, since the agent may have written them after it was continued, and Terminating,
// which may be why it was continued.
func (l *link) next() (send func(net.Conn) error, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.lost {
			return nil, false
		}
		if id := l.thawed; id != 0 {
			l.thawed = 0
			return func(c net.Conn) error { return wire.Write(c, wire.TypeThawed, wire.Freeze{ID: id}) }, true
		}
		if l.term && !l.done.term {
			l.done.term = true
			return func(c net.Conn) error { return wire.Write(c, wire.TypeTerminating, nil) }, true
		}
		if line, ok := l.out.after(l.sent); ok {
			l.sent = line.Number
			return func(c net.Conn) error { return wire.WriteLine(c, line) }, true
		}
		if len(l.frozen) > 0 {
			z := l.frozen[0]
			l.frozen = l.frozen[1:]
			return func(c net.Conn) error { return wire.Write(c, wire.TypeFrozen, z) }, true
		}
		if e := l.ended; e != nil && !l.done.exit {
			l.done.exit = true
			return func(c net.Conn) error { return wire.Write(c, wire.TypeExit, *e) }, true
		}
		l.wake.Wait()
	}
}
