// Package connections keeps whoever opens connections to a server to a share of
// its memory. Before a caller has shown who they are, nothing bounds them but
// this: a connection costs a handshake, and what comes on it has to be kept.
//
// A connection is a stranger's until the server has found out whose it is
// (Known). Strangers are told apart by their addresses:
//
//   - New connections from one address come at a bounded pace, and so many may be
//     strangers' at a time. The next ones wait until there is room, and only then
//     begin; where too many wait, they are closed.
//   - The last third of all places for strangers is for addresses that have none.
//   - Who has not shown who they are within half a minute is closed.
//
// Connections of those who are known are bounded by whom they are of and by the
// namespace, which gets half of all, and the last third of all is for namespaces that
// have none; all of them are bounded by the memory that they may take. What the API
// server and Clew itself have open counts for no namespace and never waits for the
// namespaces' connections, since all namespaces need what they ask. So a thousand
// pods behind one address, as they are on a network that translates addresses or on
// that of a node, have room: each is a stranger for a moment. But they share that
// moment: a hostile one among them makes the others' new connections wait.
package connections

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/fairshare"
)

const (
	// patience is how long a connection may be a stranger's: longer than it takes to
	// have a token checked.
	patience = 30 * time.Second
	// waitingOfAddress and waitingInAll are how many connections wait. They cost a
	// file descriptor each, and what the kernel takes in.
	waitingOfAddress = 256
	waitingInAll     = 2048
	// turnTimeout is how long one waits; daemons give up as soon.
	turnTimeout = 5 * time.Second
)

// Listener is a net.Listener whose connections keep to Limits. Make one with Limit.
type Listener struct {
	net.Listener
	limits    Limits
	strangers *fairshare.Slots
	known     *fairshare.Slots // of namespaces
	paces     *fairshare.Rates // of addresses
	times     times
	ready     chan net.Conn
	failed    chan error
	// ended is done when the listener is closed.
	ended context.Context
	end   context.CancelFunc

	mu sync.Mutex
	// ofNone counts the connections of callers of no namespace by their names.
	ofNone       map[string]int
	waiting      map[string]int
	waitingInAll int
}

// times are how long a connection may be a stranger's, and wait before.
type times struct{ patience, turn time.Duration }

// Limit bounds the connections that a listener takes. Limits that say nothing are the
// defaults.
func Limit(inner net.Listener, limits Limits) *Listener {
	if limits == (Limits{}) {
		limits = defaults
	}
	return limit(inner, limits, times{patience, turnTimeout})
}

func limit(inner net.Listener, limits Limits, times times) *Listener {
	ended, end := context.WithCancel(context.Background())
	l := &Listener{
		Listener: netutil.LimitListener(inner, limits.InAll), limits: limits, times: times,
		strangers: fairshare.NewSlots(limits.Strangers), known: fairshare.NewSlots(limits.InAll),
		ready: make(chan net.Conn), failed: make(chan error), ended: ended, end: end,
		paces: fairshare.NewRates(rate.Limit(limits.PerSecond), limits.PerSecond*burstSeconds), waiting: map[string]int{}, ofNone: map[string]int{},
	}
	go l.run()
	return l
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.ended.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections that were accepted stay.
func (l *Listener) Close() error {
	l.end()
	return l.Listener.Close()
}

// run takes connections and has each wait for its turn.
func (l *Listener) run() {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // the server waits a little where that may pass
				continue
			case <-l.ended.Done():
				return
			}
		}
		address := addressOf(c)
		if !l.enter(address) {
			c.Close()
			continue
		}
		go l.turn(c, address)
	}
}

// addressOf is by what strangers are told apart.
func addressOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// turn hands a connection to the server when there is room for a stranger's.
func (l *Listener) turn(c net.Conn, address string) {
	ctx, cancel := context.WithTimeout(l.ended, l.times.turn)
	defer cancel()
	err := l.paces.Of(address).Wait(ctx)
	var leave func()
	if err == nil {
		leave, err = l.strangers.Take(ctx, fairshare.Share{Of: address, Slots: l.limits.StrangersOfAddress})
	}
	l.leave(address)
	if err != nil {
		c.Close()
		return
	}
	admitted := &connection{Conn: c, listener: l, leave: leave}
	l.mu.Lock()
	admitted.impatient = time.AfterFunc(l.times.patience, admitted.expire)
	l.mu.Unlock()
	select {
	case l.ready <- admitted:
	case <-l.ended.Done():
		admitted.Close()
	}
}

// enter counts one that waits; false if too many do.
func (l *Listener) enter(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[address] >= waitingOfAddress || l.waitingInAll >= waitingInAll {
		return false
	}
	l.waiting[address]++
	l.waitingInAll++
	return true
}

func (l *Listener) leave(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waitingInAll--
	if l.waiting[address]--; l.waiting[address] == 0 {
		delete(l.waiting, address)
	}
}

// connection is one that was handed to the server.
type connection struct {
	net.Conn
	listener  *Listener
	impatient *time.Timer

	// The listener's lock is held for these. leave gives the connection's place back:
	// a stranger's until it is known whose it is, and one of theirs then.
	known, closed bool
	leave         func()
}

// expire closes a connection that still is a stranger's.
func (c *connection) expire() {
	if c.stranger() {
		c.Close()
	}
}

func (c *connection) stranger() bool {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return !c.known
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.impatient.Stop()
	c.giveBack()
	return c.Conn.Close()
}

func (c *connection) giveBack() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if !c.closed {
		c.leave()
	}
	c.closed = true
}

// know makes a stranger's connection that of somebody, unless they have as many as
// they may.
func (c *connection) know(caller Caller) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.known || c.closed {
		return
	}
	leave, ok := l.place(caller)
	if !ok {
		return
	}
	c.leave()
	c.known, c.leave = true, leave
	c.impatient.Stop()
}

// place takes a place for a connection of somebody's; false if there is none. The lock
// is held, and to give the place back as well.
func (l *Listener) place(caller Caller) (leave func(), ok bool) {
	if caller.Namespace == "" {
		return l.placeOfNone(caller)
	}
	leave, err := l.known.Try(
		fairshare.Share{Of: caller.Name, Slots: caller.Most},
		fairshare.Share{Of: "namespace/" + caller.Namespace, Slots: (l.limits.InAll + 1) / 2})
	return leave, err == nil
}

func (l *Listener) placeOfNone(caller Caller) (leave func(), ok bool) {
	if l.ofNone[caller.Name] >= caller.Most {
		return nil, false
	}
	l.ofNone[caller.Name]++
	return func() {
		if l.ofNone[caller.Name]--; l.ofNone[caller.Name] == 0 {
			delete(l.ofNone, caller.Name)
		}
	}, true
}

type key struct{}

// Context is an http.Server's ConnContext: by it Known finds the connection of a
// request.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, key{}, c)
}

// Stranger says that nobody knows yet whose the connection of a request is.
func Stranger(ctx context.Context) bool {
	c, ok := ctx.Value(key{}).(*connection)
	if !ok {
		return false
	}
	return c.stranger()
}

// Caller is whose a connection is: the Name, unlike any other there is, of somebody
// of a namespace who may have Most of them. Clew's own and the API server are of none.
type Caller struct {
	Namespace, Name string
	Most            int
}

// Known says whose the connection is of the request with that context. It is no
// stranger's from then on, unless they, or their namespace, have as many as they may: it
// is then served all the same, and closed as soon as a stranger's.
func Known(ctx context.Context, caller Caller) {
	if c, ok := ctx.Value(key{}).(*connection); ok { // else of a listener without limits
		c.know(caller)
	}
}
