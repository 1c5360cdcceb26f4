package server

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/serving"
)

// What one connection may make the server keep. Strangers can open them, and what
// they send is kept before anybody knows who they are: an unfinished header, the
// room for a frame that was announced, a body that nobody reads yet.
const (
	// maxHeaderBytes has room for what the API server tells of somebody who is in
	// hundreds of groups. Each field counts for 32 bytes more than it has.
	maxHeaderBytes = 64 << 10
	// maxStreams is what clients take for granted until they are told. With fewer, a
	// request that comes before would be refused, and could not be sent again if it
	// has a body.
	maxStreams        = 100
	maxFrameBytes     = 16 << 10 // the least that the protocol allows
	maxUnreadOfStream = 64 << 10
	maxUnreadBytes    = 2 * maxUnreadOfStream
)

// newTLSServer serves daemons and the API server's front proxy. The latter
// identifies itself by a client certificate, which the history API verifies;
// daemons have none.
func newTLSServer(handler http.Handler, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), log logr.Logger) *http.Server {
	server := serving.NewServer(handler, log)
	server.MaxHeaderBytes = maxHeaderBytes
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificate, ClientAuth: tls.RequestClientCert,
	}
	server.ConnContext = connections.Context
	server.HTTP2 = &http.HTTP2Config{
		// Daemons that vanish without a word are noticed by pings.
		SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second,
		MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrameBytes,
		MaxReceiveBufferPerStream: maxUnreadOfStream, MaxReceiveBufferPerConnection: maxUnreadBytes,
	}
	return server
}

// frontProxyConnections is how many connections the API servers may have: as many as
// their requests need.
const frontProxyConnections = 1000

// knowFrontProxy finds out which connections are those of the API server's front
// proxy. It asks for more than what people ask it: whether the API is there, say.
func knowFrontProxy(next http.Handler, proxy authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && connections.Stranger(r.Context()) {
			// A copy, as this takes away the headers that say who asks.
			if _, ok, err := proxy.AuthenticateRequest(r.Clone(r.Context())); ok && err == nil {
				connections.Identify(r.Context(), connections.Caller{Name: "the API server", Max: frontProxyConnections}) // closed soon if there are more
			}
		}
		next.ServeHTTP(w, r)
	})
}

// readiness is what must have happened once before the server is ready.
type readiness struct {
	mu sync.Mutex
	// waiting holds a sentence for each thing that has not happened yet.
	waiting []string
	// trouble is a sentence about what does not work at the moment, though the server
	// is ready.
	trouble string
	ending  bool
}

func newReadiness(waiting ...string) *readiness { return &readiness{waiting: waiting} }

// wait says anew what the i-th thing is that has not happened yet.
func (r *readiness) wait(i int, sentence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[i] = sentence
}

// done notes that the i-th thing has happened.
func (r *readiness) done(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[i] = ""
}

// note has /readyz say what does not work at the moment; nothing if empty.
func (r *readiness) note(trouble string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = trouble
}

// noted is what does not work at the moment.
func (r *readiness) noted() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble
}

// end makes the server unready for good.
func (r *readiness) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
}

func (r *readiness) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return errors.New("the server is ending")
	}
	var reasons []string
	for _, reason := range r.waiting {
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}

// handler answers probes. Of a 503 kubectl get --raw does not print the text.
func (r *readiness) handler() http.Handler {
	return serving.Probes(func() (string, error) { return r.noted(), r.check() }, http.StatusInternalServerError)
}
