// Package serving runs the HTTP servers of a process: its main server over TLS, and beside
// it probes and metrics. Each process decides what it serves; starting, failing and shutting
// down work the same everywhere.
package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/internal/logging"
)

// Off reports whether the address in a flag turns its listener off.
func Off(address string) bool { return address == "" || address == "0" }

// Listen listens on the address in a flag. It returns nil for an address that is Off.
func Listen(flag, address string) (net.Listener, error) {
	if Off(address) {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return listener, nil
}

// NewServer returns a server without a time limit on whole requests, since some are long.
// Connection errors, which strangers can cause, are logged at debug level.
func NewServer(handler http.Handler, log logr.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          logging.Debug(log),
	}
}

// maxShortHeader suffices for clients that read probes and metrics.
const maxShortHeader = 16 << 10

// Servers are the HTTP servers of a process.
type Servers struct {
	log     logr.Logger
	servers []*http.Server
	failed  chan error
}

// NewServers returns Servers without a server yet.
func NewServers(log logr.Logger) *Servers { return &Servers{log: log, failed: make(chan error, 8)} }

// ServeTLS starts a server with the certificate from its TLSConfig.
func (s *Servers) ServeTLS(server *http.Server, listener net.Listener) {
	s.start(server, func() error { return server.ServeTLS(listener, "", "") })
}

// ServePlain starts a server for short requests without TLS. It does nothing if the
// listener is nil.
func (s *Servers) ServePlain(handler http.Handler, listener net.Listener) {
	if listener == nil {
		return
	}
	server := NewServer(handler, s.log)
	server.ReadTimeout, server.MaxHeaderBytes = 10*time.Second, maxShortHeader
	s.start(server, func() error { return server.Serve(listener) })
}

// ServeMetrics starts a server for the metrics of a registry, unless the listener is nil.
func (s *Servers) ServeMetrics(registry prometheus.Gatherer, listener net.Listener) {
	s.ServePlain(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), listener)
}

// start adds a server and runs serve, which returns when the server ends.
func (s *Servers) start(server *http.Server, serve func() error) {
	s.servers = append(s.servers, server)
	go func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	}()
}

// Failed receives the error of a server that ended without Shutdown.
func (s *Servers) Failed() <-chan error { return s.failed }

// Shutdown shuts the servers down in the order in which they were started. Requests in
// progress may finish within the grace period, which is for all servers together, and are
// then aborted.
func (s *Servers) Shutdown(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var errs []error
	for _, server := range s.servers {
		if server.Shutdown(ctx) != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(errs...)
}

// Probes serves /healthz, which always succeeds, and /readyz, which answers with what ready
// returns: trouble that does not make the process unready, or, with the given status, why it
// is not ready.
func Probes(ready func() (trouble string, err error), unready int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober may be gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		trouble, err := ready()
		if err != nil {
			http.Error(w, err.Error(), unready)
			return
		}
		answer := "ok\n"
		if trouble != "" {
			answer = "ok, but " + trouble + "\n"
		}
		_, _ = w.Write([]byte(answer)) // the prober may be gone
	})
	return mux
}

// KubeOptions configure how a process connects to the API server.
type KubeOptions struct {
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	// QPS and Burst bound the process's requests.
	QPS   float32
	Burst int
	// UserAgent identifies the process to the API server.
	UserAgent string
}

// Config returns the configuration for the process's clients.
func (o KubeOptions) Config() (config *rest.Config, err error) {
	if o.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = o.QPS, o.Burst, o.UserAgent
	return config, nil
}

// Log returns the process's logger, and makes the Kubernetes libraries log to it too.
func Log(o logging.Options) (logr.Logger, error) {
	log, err := logging.New(o)
	if err != nil {
		return log, err
	}
	crlog.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}
