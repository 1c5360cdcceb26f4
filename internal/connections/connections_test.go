package connections

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// roomy are limits that no test reaches unless it changes them.
var roomy = Limits{Total: 4000, Strangers: 3000, StrangersPerAddress: 2000, PerSecond: 10_000}

// caller opens connections to a server from an address of its own.
type caller struct {
	t      *testing.T
	dialer net.Dialer
	server string
}

func (c caller) from(address string) caller {
	c.dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(address)}
	return c
}

// open opens a connection without sending anything.
func (c caller) open() net.Conn {
	c.t.Helper()
	connection, err := c.dialer.Dial("tcp", c.server)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { connection.Close() })
	return connection
}

// ask sends a request on a connection, and reports whether a response arrived in time.
func ask(connection net.Conn, token string, within time.Duration) (answered bool) {
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: "+token+"\r\n\r\n"); err != nil {
		return false
	}
	_ = connection.SetReadDeadline(time.Now().Add(within))
	n, _ := connection.Read(make([]byte, 4096))
	return n > 0
}

// soon is enough time for any response, moment the time to wait for one that must not come.
const (
	soon   = 20 * time.Second
	moment = 300 * time.Millisecond
)

// closed waits until the other side closes the connection.
func closed(t *testing.T, connection net.Conn) {
	t.Helper()
	_ = connection.SetReadDeadline(time.Now().Add(soon))
	if _, err := connection.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection is still open: %v", err)
	}
}

// serve runs a server that identifies callers by their tokens. Each may have two
// connections.
func serve(t *testing.T, limits Limits, patience time.Duration) caller {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if token := r.Header.Get("Authorization"); token != "" {
			Identify(r.Context(), Caller{Namespace: "team", Name: token, Max: 2})
		}
	}))
	server.Listener.Close()
	server.Listener = limit(listener, limits, times{patience, time.Hour})
	server.Config.ConnContext = Context
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return caller{t: t, server: listener.Addr().String()}
}

func TestStrangersFromOneAddressDelayOnlyEachOther(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.StrangersPerAddress = 3
	server := serve(t, limits, time.Hour)
	var silent []net.Conn
	for range 3 {
		silent = append(silent, server.open())
		g.Expect(ask(silent[len(silent)-1], "", soon)).To(gomega.BeTrue())
	}
	next := server.open()
	g.Expect(ask(next, "", moment)).To(gomega.BeFalse(), "a fourth stranger was served")
	g.Expect(ask(server.from("127.0.0.2").open(), "", soon)).To(gomega.BeTrue(), "another address is served at once")
	silent[0].Close()
	g.Expect(ask(next, "", soon)).To(gomega.BeTrue(), "the waiting connection is served once another is closed")
}

func TestAnIdentifiedCallerIsNoStranger(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.StrangersPerAddress = 1
	server := serve(t, limits, time.Hour)
	for _, token := range []string{"ann", "bob", "ann", "eve"} {
		g.Expect(ask(server.open(), token, soon)).To(gomega.BeTrue(), token)
	}
	// Ann's third connection is served, but remains a stranger's.
	third := server.open()
	g.Expect(ask(third, "ann", soon)).To(gomega.BeTrue())
	g.Expect(ask(server.open(), "bob", moment)).To(gomega.BeFalse())
	third.Close()
}

// A thousand pods may share an address, behind network address translation for example.
func TestAThousandCallersBehindOneAddressAreServed(t *testing.T) {
	limits := Limits{Total: 8000, Strangers: 1000, StrangersPerAddress: 64, PerSecond: 500}
	server := serve(t, limits, time.Hour)
	g := gomega.NewWithT(t)
	var all sync.WaitGroup
	answered := make(chan bool, 1000)
	work := make(chan string)
	for range 100 {
		all.Go(func() {
			for name := range work {
				connection, err := server.dialer.Dial("tcp", server.server)
				answered <- err == nil && ask(connection, name, soon)
				if err == nil {
					t.Cleanup(func() { connection.Close() })
				}
			}
		})
	}
	for n := range 1000 {
		work <- fmt.Sprint("pod-", n)
	}
	close(work)
	all.Wait()
	for range 1000 {
		g.Expect(<-answered).To(gomega.BeTrue())
	}
}

func TestAStrangersConnectionIsClosed(t *testing.T) {
	server := serve(t, roomy, time.Second)
	silent, served := server.open(), server.open()
	_ = ask(served, "", soon) // the connection may already be closed on a slow machine
	closed(t, silent)
	closed(t, served)
}

func TestAnIdentifiedCallersConnectionStaysOpen(t *testing.T) {
	g := gomega.NewWithT(t)
	_, accepted := pair(t, roomy)
	g.Expect(Stranger(Context(t.Context(), accepted))).To(gomega.BeTrue())
	g.Expect(known(Context(t.Context(), accepted), ann)).To(gomega.BeTrue())
	g.Expect(Stranger(Context(t.Context(), accepted))).To(gomega.BeFalse())
	accepted.(*connection).expire()
	_, err := accepted.Write([]byte("still there"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
}

func TestNewConnectionsAreRateLimited(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.PerSecond = 2
	server := serve(t, limits, time.Hour)
	began := time.Now()
	for range limits.PerSecond*burstSeconds + 4 {
		g.Expect(ask(server.open(), "", soon)).To(gomega.BeTrue())
	}
	g.Expect(time.Since(began)).To(gomega.BeNumerically(">", 1900*time.Millisecond), "four more than a burst take two seconds")
}

func TestAConnectionIsClosedWhenTooManyWait(t *testing.T) {
	g := gomega.NewWithT(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	l := Limit(inner, roomy)
	defer l.Close()
	for range maxWaitingPerAddress {
		g.Expect(l.enter("127.0.0.1")).To(gomega.BeTrue())
	}
	g.Expect(l.enter("127.0.0.2")).To(gomega.BeTrue(), "another address may wait")
	client, err := net.Dial("tcp", inner.Addr().String())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer client.Close()
	closed(t, client)
}

// The state kept for an address or a caller is removed with its last connection.
func TestClosedConnectionsLeaveNoState(t *testing.T) {
	g := gomega.NewWithT(t)
	l, accepted := pair(t, roomy)
	g.Expect(known(Context(t.Context(), accepted), ann)).To(gomega.BeTrue())
	g.Expect(known(Context(t.Context(), accepted), ann)).To(gomega.BeTrue())
	g.Expect(known(Context(t.Context(), another(t, l)), ann)).To(gomega.BeFalse())
	accepted.Close()
	_ = accepted.Close() // closed already
	g.Expect(known(Context(t.Context(), another(t, l)), ann)).To(gomega.BeTrue())
	g.Expect(l.waiting).To(gomega.BeEmpty())
	g.Expect(l.totalWaiting).To(gomega.BeZero())
	g.Expect(l.Close()).To(gomega.Succeed())
	_, err := l.Accept()
	g.Expect(err).To(gomega.MatchError(net.ErrClosed))
}

// pair returns a listener and a connection that it has accepted.
func pair(t *testing.T, limits Limits) (*Listener, net.Conn) {
	t.Helper()
	g := gomega.NewWithT(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	l := Limit(inner, limits)
	t.Cleanup(func() { l.Close() })
	return l, another(t, l)
}

// another returns one more connection that a listener has accepted.
func another(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	caller{t: t, server: l.Addr().String()}.open()
	accepted, err := l.Accept()
	gomega.NewWithT(t).Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { accepted.Close() })
	return accepted
}

// known identifies a connection's caller, and reports whether the connection has become
// the caller's.
func known(ctx context.Context, caller Caller) bool {
	Identify(ctx, caller)
	return !Stranger(ctx)
}

// ann may have one connection.
var ann = Caller{Namespace: "team", Name: "ann", Max: 1}

// account returns a service account of a namespace that reads code, with a token of its
// own. There may be any number of them.
func account(namespace string, n int) Caller {
	return Caller{Namespace: namespace, Name: fmt.Sprint("reader/", namespace, "/", n), Max: 32}
}

// crowd opens connections of a namespace until one remains a stranger's, and returns how
// many did not: at most one more than expected.
func crowd(t *testing.T, l *Listener, namespace string, expected int) (n int) {
	t.Helper()
	for n <= expected && known(Context(t.Context(), another(t, l)), account(namespace, n)) {
		n++
	}
	return n
}

func TestANamespaceMayHaveHalfOfTheConnections(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.Total = 24
	l, first := pair(t, limits)
	g.Expect(known(Context(t.Context(), first), account("crowd", 100))).To(gomega.BeTrue())
	g.Expect(crowd(t, l, "crowd", 11)).To(gomega.Equal(11), "half of them")
	next := another(t, l)
	g.Expect(known(Context(t.Context(), next), account("crowd", 101))).To(gomega.BeFalse())
	first.Close()
	g.Expect(known(Context(t.Context(), next), account("crowd", 101))).To(gomega.BeTrue())
}

func TestTheLastThirdIsReservedForNamespacesThatHaveNone(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.Total = 24
	l, first := pair(t, limits)
	g.Expect(known(Context(t.Context(), first), account("crowd", 100))).To(gomega.BeTrue())
	g.Expect(crowd(t, l, "crowd", 11)).To(gomega.Equal(11))
	g.Expect(crowd(t, l, "another crowd", 4)).To(gomega.Equal(4), "two thirds have been taken")
	for n := range 3 {
		quiet := fmt.Sprint("quiet-", n)
		g.Expect(crowd(t, l, quiet, 1)).To(gomega.Equal(1), quiet)
	}
}

// The API server's requests serve all namespaces: no tenant may delay them.
func TestCallersOfNoNamespaceDoNotWaitForTenants(t *testing.T) {
	g := gomega.NewWithT(t)
	limits := roomy
	limits.Total = 24
	l, first := pair(t, limits)
	api := Caller{Name: "the API server", Max: 3}
	g.Expect(known(Context(t.Context(), first), api)).To(gomega.BeTrue())
	g.Expect(crowd(t, l, "crowd", 12)).To(gomega.Equal(12), "half of them")
	g.Expect(crowd(t, l, "another crowd", 4)).To(gomega.Equal(4), "two thirds, not counting the API server's")
	for range 2 {
		g.Expect(known(Context(t.Context(), another(t, l)), api)).To(gomega.BeTrue())
	}
	more := another(t, l)
	g.Expect(known(Context(t.Context(), more), api)).To(gomega.BeFalse(), "it already has as many as allowed")
	first.Close()
	_ = first.Close() // a second time, without effect
	g.Expect(known(Context(t.Context(), more), api)).To(gomega.BeTrue())
	g.Expect(known(Context(t.Context(), another(t, l)), api)).To(gomega.BeFalse())
	l.mu.Lock()
	defer l.mu.Unlock()
	g.Expect(l.withoutNamespace).To(gomega.Equal(map[string]int{api.Name: 3}))
}

func TestInvalidLimitsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Limits){
		"--max-connections":                     func(l *Limits) { l.Total = 0 },
		"--max-unknown-connections":             func(l *Limits) { l.Strangers = l.Total + 1 },
		"--max-unknown-connections-per-address": func(l *Limits) { l.StrangersPerAddress = -1 },
		"--new-connections-per-second":          func(l *Limits) { l.PerSecond = 0 },
	} {
		l := roomy
		change(&l)
		gomega.NewWithT(t).Expect(l.Validate()).To(gomega.MatchError(gomega.ContainSubstring(name + " must")))
	}
}
