// Package serving runs the HTTP servers of a process: its own over TLS, and beside it
// probes and metrics. Each process says what it serves; how that begins, fails and ends
// is the same.
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

// Off reports whether an address of a flag stands for no listener.
func Off(address string) bool { return address == "" || address == "0" }

// Listen opens the address of a flag; nil for one that is Off.
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

// NewServer sets no time limit on whole requests: some are long. What strangers do to
// its connections is logged for debugging.
func NewServer(handler http.Handler, log logr.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          logging.Debug(log),
	}
}

// maxShortHeader is enough for who reads probes and metrics.
const maxShortHeader = 16 << 10

// Servers are those of a process.
type Servers struct {
	log     logr.Logger
	servers []*http.Server
	failed  chan error
}

// NewServers returns none.
func NewServers(log logr.Logger) *Servers { return &Servers{log: log, failed: make(chan error, 8)} }

// ServeTLS serves with the certificate that the server's TLSConfig gives.
func (s *Servers) ServeTLS(server *http.Server, listener net.Listener) {
	s.start(server, func() error { return server.ServeTLS(listener, "", "") })
}

// ServePlain serves short requests without TLS; none on no listener.
func (s *Servers) ServePlain(handler http.Handler, listener net.Listener) {
	if listener == nil {
		return
	}
	server := NewServer(handler, s.log)
	server.ReadTimeout, server.MaxHeaderBytes = 10*time.Second, maxShortHeader
	s.start(server, func() error { return server.Serve(listener) })
}

// ServeMetrics serves the metrics of a registry.
func (s *Servers) ServeMetrics(registry prometheus.Gatherer, listener net.Listener) {
	s.ServePlain(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), listener)
}

func (s *Servers) start(server *http.Server, serve func() error) {
	s.servers = append(s.servers, server)
	go func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	}()
}

// Failed tells of a server that ended by itself.
func (s *Servers) Failed() <-chan error { return s.failed }

// Shutdown lets the requests of each server finish, in the order in which they were
// begun, for the grace period in all, and then ends them.
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

// Probes answers /healthz while the process runs, and /readyz with what ready returns:
// what does not work although the process is ready, or, with the given status, why it
// is not.
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
		said := "ok\n"
		if trouble != "" {
			said = "ok, but " + trouble + "\n"
		}
		_, _ = w.Write([]byte(said)) // the prober may be gone
	})
	return mux
}

// KubeOptions say how a process reaches the API server.
type KubeOptions struct {
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	// QPS and Burst bound its requests.
	QPS   float32
	Burst int
	// UserAgent names it to the API server.
	UserAgent string
}

// Config makes the configuration of its clients.
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

// Log makes the process's log, and has the libraries log there, too.
func Log(level string) (logr.Logger, error) {
	log, err := logging.New(level, logging.JSON)
	if err != nil {
		return log, err
	}
	crlog.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}
