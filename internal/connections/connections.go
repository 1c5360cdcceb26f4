// Package connections bounds how much of a server's memory the connections of one
// client can take. Before a caller has authenticated, nothing else bounds it: a
// connection costs a handshake, and what arrives on it has to be buffered.
//
// A connection is a stranger's until the server has identified its caller
// (Identify). Strangers are distinguished by their addresses:
//
//   - New connections from one address are admitted at a bounded rate, and only a
//     bounded number of them may be strangers' at a time. Further ones wait for a slot
//     before they are served; when too many wait, new ones are closed.
//   - The last third of all slots for strangers is reserved for addresses that hold none.
//   - A stranger that has not authenticated within half a minute is disconnected.
//
// Connections of known callers are bounded per caller and per namespace. A namespace may
// have half of all connections, and the last third of all is reserved for namespaces that
// have none; the total is bounded by the memory that connections may take. Connections of
// the API server and of Clew itself count for no namespace and never wait for the
// namespaces' connections, since all namespaces depend on them. So a thousand pods behind
// one address, as with network address translation or on a node's own network, can all be
// served: each is a stranger only for a moment. But they share the bounds for strangers: a
// hostile pod among them makes the others' new connections wait.
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
	// check a token.
	patience = 30 * time.Second
	// maxWaitingPerAddress and maxWaiting are how many connections may wait for a slot, per
	// address and in all. Each costs a file descriptor and the kernel's receive buffer.
	maxWaitingPerAddress = 256
	maxWaiting           = 2048
	// slotTimeout is how long a connection waits for a slot; daemons give up just as soon.
	slotTimeout = 5 * time.Second
)

// Listener is a net.Listener that enforces Limits. Make one with Limit.
type Listener struct {
	net.Listener
	limits    Limits
	strangers *fairshare.Slots // by address
	known     *fairshare.Slots // by namespace
	rates     *fairshare.Rates // by address
	times     times
	ready     chan net.Conn
	failed    chan error
	// ended is done when the listener is closed.
	ended context.Context
	end   context.CancelFunc

	mu sync.Mutex
	// withoutNamespace counts the connections of callers without a namespace, by name.
	withoutNamespace map[string]int
	waiting          map[string]int // by address
	totalWaiting     int
}

// times are how long a connection may be a stranger's, and how long it may wait for a slot
// before that.
type times struct{ patience, slot time.Duration }

// Limit returns a listener that enforces limits on the connections of inner. Zero Limits
// stand for the defaults.
func Limit(inner net.Listener, limits Limits) *Listener {
	if limits == (Limits{}) {
		limits = defaults
	}
	return limit(inner, limits, times{patience, slotTimeout})
}

// limit is Limit with the times as parameters, for tests.
func limit(inner net.Listener, limits Limits, times times) *Listener {
	ended, end := context.WithCancel(context.Background())
	l := &Listener{
		Listener: netutil.LimitListener(inner, limits.Total), limits: limits, times: times,
		strangers: fairshare.NewSlots(limits.Strangers), known: fairshare.NewSlots(limits.Total),
		ready: make(chan net.Conn), failed: make(chan error), ended: ended, end: end,
		rates: fairshare.NewRates(rate.Limit(limits.PerSecond), limits.PerSecond*burstSeconds), waiting: map[string]int{}, withoutNamespace: map[string]int{},
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

// Close implements net.Listener. Connections that were accepted stay open.
func (l *Listener) Close() error {
	l.end()
	return l.Listener.Close()
}

// run accepts connections and makes each wait for a slot.
func (l *Listener) run() {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // the server retries temporary errors after a pause
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
		go l.admit(c, address)
	}
}

// addressOf returns the address by which strangers are distinguished.
func addressOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// admit hands a connection to the server once there is a slot for a stranger's, and closes
// it if there is none in time.
func (l *Listener) admit(c net.Conn, address string) {
	ctx, cancel := context.WithTimeout(l.ended, l.times.slot)
	defer cancel()
	err := l.rates.Of(address).Wait(ctx)
	var leave func()
	if err == nil {
		leave, err = l.strangers.Take(ctx, fairshare.Share{Of: address, Slots: l.limits.StrangersPerAddress})
	}
	l.leave(address)
	if err != nil {
		c.Close()
		return
	}
	admitted := &connection{Conn: c, listener: l, leave: leave}
	l.mu.Lock()
	admitted.expiry = time.AfterFunc(l.times.patience, admitted.expire)
	l.mu.Unlock()
	select {
	case l.ready <- admitted:
	case <-l.ended.Done():
		admitted.Close()
	}
}

// enter counts a waiting connection. It returns false if too many wait already.
func (l *Listener) enter(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[address] >= maxWaitingPerAddress || l.totalWaiting >= maxWaiting {
		return false
	}
	l.waiting[address]++
	l.totalWaiting++
	return true
}

// leave ends the count of a waiting connection.
func (l *Listener) leave(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.totalWaiting--
	if l.waiting[address]--; l.waiting[address] == 0 {
		delete(l.waiting, address)
	}
}

// connection is a connection that was handed to the server.
type connection struct {
	net.Conn
	listener *Listener
	expiry   *time.Timer

	// The listener's lock guards these. leave releases the connection's slot: a stranger's
	// slot until its caller is known, and then one of the caller's.
	known, closed bool
	leave         func()
}

// expire closes a connection that is still a stranger's.
func (c *connection) expire() {
	if c.stranger() {
		c.Close()
	}
}

// stranger reports whether the connection's caller is still unknown.
func (c *connection) stranger() bool {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return !c.known
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.expiry.Stop()
	c.release()
	return c.Conn.Close()
}

// release releases the connection's slot, once.
func (c *connection) release() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if !c.closed {
		c.leave()
	}
	c.closed = true
}

// identify makes a stranger's connection the caller's, unless the caller or its namespace
// already has as many as allowed.
func (c *connection) identify(caller Caller) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.known || c.closed {
		return
	}
	leave, ok := l.takeSlot(caller)
	if !ok {
		return
	}
	c.leave()
	c.known, c.leave = true, leave
	c.expiry.Stop()
}

// takeSlot takes a slot for a known caller's connection. It returns false if there is none.
// The caller holds the lock, both for takeSlot and for leave.
func (l *Listener) takeSlot(caller Caller) (leave func(), ok bool) {
	if caller.Namespace == "" {
		return l.takeSlotWithoutNamespace(caller)
	}
	leave, err := l.known.Try(
		fairshare.Share{Of: caller.Name, Slots: caller.Max},
		fairshare.Share{Of: "namespace/" + caller.Namespace, Slots: (l.limits.Total + 1) / 2})
	return leave, err == nil
}

// takeSlotWithoutNamespace is takeSlot for a caller without a namespace.
func (l *Listener) takeSlotWithoutNamespace(caller Caller) (leave func(), ok bool) {
	if l.withoutNamespace[caller.Name] >= caller.Max {
		return nil, false
	}
	l.withoutNamespace[caller.Name]++
	return func() {
		if l.withoutNamespace[caller.Name]--; l.withoutNamespace[caller.Name] == 0 {
			delete(l.withoutNamespace, caller.Name)
		}
	}, true
}

type key struct{}

// Context is for an http.Server's ConnContext: through it Identify finds a request's
// connection.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, key{}, c)
}

// Stranger reports whether the caller of a request's connection is still unknown. It is
// false for a connection of any other listener.
func Stranger(ctx context.Context) bool {
	c, ok := ctx.Value(key{}).(*connection)
	if !ok {
		return false
	}
	return c.stranger()
}

// Caller is the owner of connections.
type Caller struct {
	// Namespace is empty for the API server and for Clew's own programs. Name is unique
	// among all callers.
	Namespace, Name string
	// Max is how many connections the caller may have.
	Max int
}

// Identify records the caller of the connection that a request came on, so that it is no
// longer a stranger's. If the caller or its namespace already has as many as allowed, the
// connection is still served, but closed as soon as a stranger's would be.
func Identify(ctx context.Context, caller Caller) {
	if c, ok := ctx.Value(key{}).(*connection); ok { // otherwise the listener has no limits
		c.identify(caller)
	}
}
