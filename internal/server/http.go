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

// Limits of what one connection may make the server hold. Strangers can open connections,
// and what they send is held before they are identified: an unfinished header, the buffer
// for an announced frame, a body that has not been read yet.
const (
	// maxHeaderBytes has room for what the API server sends about a user in hundreds of
	// groups. Each field counts for 32 bytes more than its length.
	maxHeaderBytes = 64 << 10
	// maxStreams is the number that clients assume until they are told. With fewer, an
	// early request would be refused, and could not be sent again if it has a body.
	maxStreams        = 100
	maxFrameBytes     = 16 << 10 // the minimum of the protocol
	maxUnreadOfStream = 64 << 10
	maxUnreadBytes    = 2 * maxUnreadOfStream
)

// newTLSServer returns a server for daemons and the API server's front proxy. The latter
// identifies itself by a client certificate, which the history API verifies; daemons have
// none.
func newTLSServer(handler http.Handler, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), log logr.Logger) *http.Server {
	server := serving.NewServer(handler, log)
	server.MaxHeaderBytes = maxHeaderBytes
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificate, ClientAuth: tls.RequestClientCert,
	}
	server.ConnContext = connections.Context
	server.HTTP2 = &http.HTTP2Config{
		// Daemons that vanish silently are detected by pings.
		SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second,
		MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrameBytes,
		MaxReceiveBufferPerStream: maxUnreadOfStream, MaxReceiveBufferPerConnection: maxUnreadBytes,
	}
	return server
}

// frontProxyConnections is the number of connections the API servers may have: as many as
// their requests need.
const frontProxyConnections = 1000

// recognizeFrontProxy identifies connections of the API server's front proxy. The API
// server sends more than users' requests over them, such as availability checks.
func recognizeFrontProxy(next http.Handler, proxy authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && connections.Stranger(r.Context()) {
			// On a clone, since this removes the headers that identify the user.
			if _, ok, err := proxy.AuthenticateRequest(r.Clone(r.Context())); ok && err == nil {
				connections.Identify(r.Context(), connections.Caller{Name: "the API server", Max: frontProxyConnections}) // closed soon if there are more
			}
		}
		next.ServeHTTP(w, r)
	})
}

// readiness tracks what must have happened once before the server is ready.
type readiness struct {
	mu sync.Mutex
	// waiting has a sentence for each thing that has not happened yet.
	waiting []string
	// problem is a sentence about what currently does not work although the server is
	// ready.
	problem string
	ending  bool
}

func newReadiness(waiting ...string) *readiness { return &readiness{waiting: waiting} }

// wait replaces the sentence about the i-th thing that has not happened yet.
func (r *readiness) wait(i int, sentence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[i] = sentence
}

// done records that the i-th thing has happened.
func (r *readiness) done(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[i] = ""
}

// warn sets what /readyz reports as currently not working; nothing if empty.
func (r *readiness) warn(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = problem
}

// warning returns what currently does not work.
func (r *readiness) warning() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
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
		return errors.New("the server is shutting down")
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

// handler answers probes. It uses 500, since kubectl get --raw does not print the text of
// a 503.
func (r *readiness) handler() http.Handler {
	return serving.Probes(func() (string, error) { return r.warning(), r.check() }, http.StatusInternalServerError)
}
