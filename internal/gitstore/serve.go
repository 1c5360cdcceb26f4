package gitstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/serving"
)

// Options are the gitstore process's settings, one per flag.
type Options struct {
	// Root is the folder on the volume that holds the repositories.
	Root string
	// BindAddress, MetricsBindAddress and HealthProbeBindAddress are
	// host:port; "0" disables the latter two.
	BindAddress            string
	MetricsBindAddress     string
	HealthProbeBindAddress string
	// Connections limit the connections to BindAddress.
	Connections connections.Limits
	// CertFile and KeyFile are PEM files, reread when they change.
	CertFile, KeyFile string
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	KubeQPS    float32
	KubeBurst  int
	// Audiences lists audiences; a token must have one of them.
	Audiences []string
	// ServerServiceAccount is the ServiceAccount of Clew's server, as
	// <namespace>:<name>, which may delete, compare and verify what tasks have stored. Nobody
	// may if it is empty.
	ServerServiceAccount string
	// ManagerServiceAccount is the ServiceAccount of Clew's manager, as <namespace>:<name>, the
	// only one that may make and remove the branches of tasks; if empty, nobody may.
	ManagerServiceAccount string
	Limits                Limits
	// GitMemoryBytes is how much memory one git process may use; 0 for no limit.
	GitMemoryBytes int64
	// NamedMetrics turns on the metrics of NameRepositories.
	NamedMetrics bool
	// MaintenanceInterval and MaxPacks are passed to NewMaintainer.
	MaintenanceInterval time.Duration
	MaxPacks            int
	// ShutdownGracePeriod is how long requests may continue after a signal to end.
	ShutdownGracePeriod time.Duration
	// LogLevel is debug, info, warn or error.
	LogLevel string
}

// AddFlags defines the flags of the options, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Root, "root", "/var/lib/clew-gitstore", "folder for the repositories, on a volume that is not mounted noexec")
	flags.StringVar(&o.BindAddress, "bind-address", ":8443", "address for git clients, over TLS")
	o.Connections.AddFlags(flags)
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM file with the certificate chain; reloaded when it changes")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM file with the certificate's private key; reread when it changes")
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", ":8080", "address for /metrics, plain HTTP; 0 for none")
	flags.BoolVar(&o.NamedMetrics, "metrics-per-repository", false, "include the size of each repository in /metrics, by namespace and name; whoever can read /metrics then sees these names")
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "address for /healthz and /readyz, plain HTTP; 0 for none")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server that checks tokens; empty in a cluster")
	flags.Float32Var(&o.KubeQPS, "kube-api-qps", 50, "sustained rate of requests to the API server, per second")
	flags.IntVar(&o.KubeBurst, "kube-api-burst", 100, "burst of requests to the API server")
	flags.StringSliceVar(&o.Audiences, "audience", []string{daemonapi.GitStoreAudience, daemonapi.FormerAudience}, "audiences of which a token must have at least one; the last default is that of pods created by earlier versions")
	flags.StringVar(&o.ServerServiceAccount, "server-service-account", "", "service account of Clew's server, as <namespace>:<name>, the only one that may delete, compare and verify what tasks have stored; if empty, nobody may")
	flags.StringVar(&o.ManagerServiceAccount, "manager-service-account", "", "service account of Clew's manager, as <namespace>:<name>, the only one that may make and remove the branches of tasks' checkpoints, and beside the server the only one that may give a task those of a former one; if empty, nobody may")
	flags.Int64Var(&o.Limits.NamespaceBytes, "namespace-quota-bytes", 0, "bytes on disk that the repositories of one namespace may take; 0 for no limit")
	flags.Int64Var(&o.Limits.PushBytes, "max-push-bytes", 4<<30, "bytes that one push may contain; 0 for no limit")
	flags.Int64Var(&o.Limits.FreeBytes, "min-free-bytes", 64<<20, "bytes to keep free on the volume; pushes are refused when less is free")
	flags.IntVar(&o.Limits.ConcurrentPushes, "max-concurrent-pushes", defaultConcurrentPushes, "pushes served at once, at most a quarter of them for one namespace; others wait, and are refused as Unavailable if they wait too long")
	flags.IntVar(&o.Limits.ConcurrentFetches, "max-concurrent-fetches", defaultConcurrentFetches, "other git requests served at once, at most a quarter of them for one namespace")
	flags.IntVar(&o.Limits.RequestsPerSecond, "requests-per-second", defaultRequestsPerSecond, fmt.Sprintf("requests per second of one task or reader, in the long run, and %d times as many at once; further ones wait. A push consists of two; 0 for no limit", burstSeconds))
	flags.Int64Var(&o.GitMemoryBytes, "git-memory-bytes", defaultGitMemory, "bytes of memory that one git process may use; the container's memory limit should allow that amount for each concurrent push, and twice that for each concurrent fetch; 0 for no limit")
	flags.DurationVar(&o.Limits.Patience, "client-patience", defaultPatience, "time that a client may stall in the middle of a request")
	flags.DurationVar(&o.Limits.RequestTime, "request-timeout", 6*time.Hour, "time that one request may take even if it makes progress; 0 for no limit")
	flags.DurationVar(&o.MaintenanceInterval, "maintenance-interval", 10*time.Minute, "time between two passes over all repositories that merge packs and remove leftovers")
	flags.IntVar(&o.MaxPacks, "max-packs", defaultMaxPacks, "packs that a repository may have before they are merged; each push adds one")
	flags.DurationVar(&o.ShutdownGracePeriod, "shutdown-grace-period", 30*time.Second, "time that requests in progress may take after a termination signal")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
}

// minGitMemory is the memory that git needs for the smallest push.
const minGitMemory = 32 << 20

// validate returns an error for the first flag with an invalid value.
func (o *Options) validate() error {
	if o.CertFile == "" || o.KeyFile == "" {
		return errors.New("--tls-cert-file and --tls-private-key-file are needed: tokens must not travel in the clear")
	}
	if o.MetricsBindAddress == o.HealthProbeBindAddress && o.MetricsBindAddress != "0" {
		return errors.New("--metrics-bind-address and --health-probe-bind-address must differ")
	}
	if len(o.Audiences) == 0 {
		return errors.New("--audience must name at least one audience, such as " + daemonapi.GitStoreAudience)
	}
	if err := o.Connections.Validate(); err != nil {
		return err
	}
	if o.GitMemoryBytes != 0 && o.GitMemoryBytes < minGitMemory {
		return fmt.Errorf("--git-memory-bytes must be 0, for no limit, or at least %d, not %d", minGitMemory, o.GitMemoryBytes)
	}
	for _, amount := range []struct {
		flag         string
		given, least int64
	}{
		{"--namespace-quota-bytes", o.Limits.NamespaceBytes, 0},
		{"--max-push-bytes", o.Limits.PushBytes, 0},
		{"--min-free-bytes", o.Limits.FreeBytes, 0},
		{"--max-concurrent-pushes", int64(o.Limits.ConcurrentPushes), 1},
		{"--max-concurrent-fetches", int64(o.Limits.ConcurrentFetches), 1},
		{"--requests-per-second", int64(o.Limits.RequestsPerSecond), 0},
		{"--max-packs", int64(o.MaxPacks), 1},
	} {
		if amount.given < amount.least {
			return fmt.Errorf("%s must be at least %d, not %d", amount.flag, amount.least, amount.given)
		}
	}
	for _, duration := range []struct {
		flag         string
		given, least time.Duration
	}{
		{"--client-patience", o.Limits.Patience, time.Second},
		{"--request-timeout", o.Limits.RequestTime, 0},
		{"--maintenance-interval", o.MaintenanceInterval, time.Second},
	} {
		if duration.given < duration.least {
			return fmt.Errorf("%s must be at least %s, not %s", duration.flag, duration.least, duration.given)
		}
	}
	return nil
}

// Run serves until ctx is done. hook is the command line of the pre-receive
// hook, an absolute path first.
func Run(ctx context.Context, options Options, hook []string) error {
	log, err := serving.Log(logging.Options{Level: options.LogLevel, Format: logging.JSON})
	if err != nil {
		return err
	}
	if err := options.validate(); err != nil {
		return err
	}
	// Leave the memory that all git processes may use together to them.
	capacity.SetGoMemoryLimit(capacity.Beside(capacity.MemoryLimit(), options.GitMemoryBytes*int64(options.Limits.ConcurrentPushes+2*options.Limits.ConcurrentFetches)))
	account, err := ParseServiceAccount(options.ServerServiceAccount)
	if err != nil {
		return fmt.Errorf("--server-service-account: %w", err)
	}
	manager, err := ParseServiceAccount(options.ManagerServiceAccount)
	if err != nil {
		return fmt.Errorf("--manager-service-account: %w", err)
	}
	config, err := serving.KubeOptions{Kubeconfig: options.Kubeconfig, QPS: options.KubeQPS, Burst: options.KubeBurst, UserAgent: "clew-gitstore"}.Config()
	if err != nil {
		return fmt.Errorf("the Kubernetes API server is needed to check tokens: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	tasks, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	certificate, err := certwatcher.New(options.CertFile, options.KeyFile)
	if err != nil {
		return fmt.Errorf("the TLS certificate cannot be loaded: %w", err)
	}
	listener, err := net.Listen("tcp", options.BindAddress)
	if err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	names, err := namespaceid.New(config)
	if err != nil {
		return err
	}
	verifier := podidentity.New(client, names, podidentity.Options{Audiences: options.Audiences, Tasks: podidentity.NewLiveTasks(tasks)})
	return serve(ctx, options, PodAuthenticator{Verifier: verifier, Names: names, Tasks: NewLiveTasks(tasks), Server: account, Manager: manager}, hook, listener, certificate, log)
}

// certificates is the source of the TLS certificate.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Start follows changes of the certificate until ctx is done.
	Start(ctx context.Context) error
}

// serve is Run with all external dependencies passed in.
func serve(ctx context.Context, options Options, authenticator Authenticator, hook []string, listener net.Listener, certificate certificates, log logr.Logger) error {
	listener = connections.Limit(listener, options.Connections)
	defer listener.Close()
	store, err := Open(ctx, options.Root, options.GitMemoryBytes, hook)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	handler, maintainer, err := assemble(ctx, options, store, authenticator, registry, log)
	if err != nil {
		return err
	}
	metrics, err := serving.Listen("--metrics-bind-address", options.MetricsBindAddress)
	if err != nil {
		return err
	}
	health, err := serving.Listen("--health-probe-bind-address", options.HealthProbeBindAddress)
	if err != nil {
		return err
	}
	var ending atomic.Bool
	probes := probeHandler(store, &ending)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	defer handler.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	background.Go(func() { maintainer.Run(ctx) })
	background.Go(func() { store.git.effort.watch(ctx) })
	go func() {
		if err := certificate.Start(ctx); err != nil {
			log.Error(err, "no longer following changes of the TLS certificate")
		}
	}()
	servers := serving.NewServers(log)
	servers.ServeTLS(newServer(work, withProbes(handler, probes), certificate, log), listener)
	servers.ServeMetrics(registry, metrics)
	servers.ServePlain(probes, health)
	log.Info("serving", "address", listener.Addr().String(), "root", options.Root)
	select {
	case err := <-servers.Failed():
		return errors.Join(err, servers.Shutdown(0))
	case <-ctx.Done():
	}
	ending.Store(true)
	log.Info("shutting down; requests in progress may finish", "gracePeriod", options.ShutdownGracePeriod.String())
	// Git processes then get a signal.
	defer time.AfterFunc(options.ShutdownGracePeriod, cancel).Stop()
	return servers.Shutdown(options.ShutdownGracePeriod)
}

// assemble makes the handler and the maintainer of a store, registers their metrics, and
// removes what an earlier process left behind.
func assemble(ctx context.Context, options Options, store *Store, authenticator Authenticator, registry *prometheus.Registry, log logr.Logger) (*Handler, *Maintainer, error) {
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler, err := NewHandler(store, authenticator, options.Limits, log.WithName("http"), registry)
	if err != nil {
		return nil, nil, err
	}
	if options.NamedMetrics {
		if err := handler.NameRepositories(registry); err != nil {
			return nil, nil, err
		}
	}
	maintainer := NewMaintainer(handler, options.MaintenanceInterval, options.MaxPacks, log.WithName("maintenance"))
	if err := maintainer.Start(ctx); err != nil {
		return nil, nil, fmt.Errorf("remove leftovers of an earlier process: %w", err)
	}
	return handler, maintainer, nil
}

// maxHeaderBytes has room for a token and git's own headers. It is small because the
// headers of unauthenticated callers are kept in memory too.
const maxHeaderBytes = 16 << 10

// newServer returns the server for git clients. The contexts of its requests end with ctx.
func newServer(ctx context.Context, handler http.Handler, certificate certificates, log logr.Logger) *http.Server {
	server := serving.NewServer(handler, log)
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.ConnContext = connections.Context
	server.MaxHeaderBytes = maxHeaderBytes
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.GetCertificate}
	// HTTP/1.1 only: git uses one connection at a time, and with HTTP/2 a response before
	// the end of a push would reset its stream.
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	return server
}

// withProbes also serves the probes on the address for git clients.
func withProbes(handler, probes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			probes.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// probeHandler serves the probes: the process is ready while it can serve pushes.
func probeHandler(store *Store, ending *atomic.Bool) http.Handler {
	return serving.Probes(func() (string, error) {
		if ending.Load() {
			return "", errors.New("the gitstore is shutting down")
		}
		return "", store.hookReady()
	}, http.StatusServiceUnavailable)
}
