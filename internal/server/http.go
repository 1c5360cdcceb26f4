package server

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// newTLSServer serves daemons and the API server's front proxy. The latter
// identifies itself by a client certificate, which the history API verifies;
// daemons have none.
func newTLSServer(handler http.Handler, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), logs slog.Handler) *http.Server {
	server := newPlainServer(handler, logs)
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificate, ClientAuth: tls.RequestClientCert,
	}
	// Daemons that vanish without a word are noticed by pings.
	server.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	return server
}

// newPlainServer sets no time limit on whole requests: streams are long.
func newPlainServer(handler http.Handler, logs slog.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logs, slog.LevelDebug),
	}
}

// readiness is what must have happened once before the server is ready.
type readiness struct {
	mu sync.Mutex
	// waiting holds a sentence for each thing that has not happened yet.
	waiting []string
	ending  bool
}

func newReadiness(waiting ...string) *readiness { return &readiness{waiting: waiting} }

// done notes that the i-th thing has happened.
func (r *readiness) done(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[i] = ""
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

// handler answers /healthz while the process runs, and /readyz.
func (r *readiness) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober may be gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // the prober may be gone
	})
	return mux
}
