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
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/serving"
)

// Options of the gitstore's process.
type Options struct {
	// Root is the folder on the volume.
	Root string
	// BindAddress, MetricsBindAddress and HealthProbeBindAddress are
	// host:port; "0" turns the latter two off.
	BindAddress            string
	MetricsBindAddress     string
	HealthProbeBindAddress string
	// Connections bound those to BindAddress.
	Connections connections.Limits
	// CertFile and KeyFile are PEM files, read again when they change.
	CertFile, KeyFile string
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	KubeQPS    float32
	KubeBurst  int
	// Audiences of which tokens must have one.
	Audiences []string
	// ServerServiceAccount is the ServiceAccount of Clew's server, as
	// <namespace>:<name>; it may delete what tasks have stored. Nobody may if
	// it is empty.
	ServerServiceAccount string
	Limits               Limits
	// GitMemoryBytes is how much memory one git process may use; 0 for no limit.
	GitMemoryBytes int64
	// NamedMetrics: see NameRepositories.
	NamedMetrics bool
	// MaintenanceInterval and MaxPacks: see NewMaintainer.
	MaintenanceInterval time.Duration
	MaxPacks            int
	// ShutdownGracePeriod is how long requests may go on after a signal to end.
	ShutdownGracePeriod time.Duration
	// LogLevel is debug, info, warn or error.
	LogLevel string
}

// AddFlags defines the flags of the options, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Root, "root", "/var/lib/clew-gitstore", "folder for the repositories, on a volume that is not mounted noexec")
	flags.StringVar(&o.BindAddress, "bind-address", ":8443", "address for git clients, over TLS")
	o.Connections.AddFlags(flags)
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM file with the certificate chain; read again when it changes")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM file with the certificate's private key; read again when it changes")
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", ":8080", "address for /metrics, plain HTTP; 0 for none")
	flags.BoolVar(&o.NamedMetrics, "metrics-per-repository", false, "tell the size of each repository in /metrics, by namespace and name, to whoever reads them")
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "address for /healthz and /readyz, plain HTTP; 0 for none")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server that checks tokens; empty in a cluster")
	flags.Float32Var(&o.KubeQPS, "kube-api-qps", 50, "requests to the API server in a second, in the long run")
	flags.IntVar(&o.KubeBurst, "kube-api-burst", 100, "requests to the API server at once")
	flags.StringSliceVar(&o.Audiences, "audience", []string{daemonapi.GitStoreAudience, daemonapi.FormerAudience}, "audiences of which tokens must have one; the last of the defaults is that of pods made by former versions")
	flags.StringVar(&o.ServerServiceAccount, "server-service-account", "", "service account of Clew's server, as <namespace>:<name>, which may delete what tasks have stored; nobody may if empty")
	flags.Int64Var(&o.Limits.NamespaceBytes, "namespace-quota-bytes", 0, "bytes on disk that the repositories of one namespace may take; 0 for no limit")
	flags.Int64Var(&o.Limits.PushBytes, "max-push-bytes", 4<<30, "bytes that one push may bring; 0 for no limit")
	flags.Int64Var(&o.Limits.FreeBytes, "min-free-bytes", 64<<20, "bytes to keep free on the volume; pushes are refused below")
	flags.IntVar(&o.Limits.ConcurrentPushes, "max-concurrent-pushes", defaultConcurrentPushes, "pushes that git works on at once, a quarter of them for one namespace; others wait, then are asked to try again")
	flags.IntVar(&o.Limits.ConcurrentFetches, "max-concurrent-fetches", defaultConcurrentFetches, "other git requests served at once, at most a quarter of them for one namespace")
	flags.IntVar(&o.Limits.RequestsPerSecond, "requests-per-second", defaultRequestsPerSecond, fmt.Sprintf("requests of one task or reader in a second, in the long run, and %d times as many at once; further ones wait. A push is two of them; 0 for no limit", burstSeconds))
	flags.Int64Var(&o.GitMemoryBytes, "git-memory-bytes", defaultGitMemory, "memory that one git process may use; the container's limit should hold that of all pushes, and twice that of all fetches, at once; 0 for no limit")
	flags.DurationVar(&o.Limits.Patience, "client-patience", defaultPatience, "time that a client may stand still in the middle of a request")
	flags.DurationVar(&o.Limits.RequestTime, "request-timeout", 6*time.Hour, "time that one request may take although it makes progress; 0 for no limit")
	flags.DurationVar(&o.MaintenanceInterval, "maintenance-interval", 10*time.Minute, "time between looks at all repositories for packs to join and leftovers to remove")
	flags.IntVar(&o.MaxPacks, "max-packs", defaultMaxPacks, "packs that a repository may have before they are joined; each push adds one")
	flags.DurationVar(&o.ShutdownGracePeriod, "shutdown-grace-period", 30*time.Second, "time that requests under way may take after a signal to end")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
}

// leastGitMemory is what git needs for the smallest of pushes.
const leastGitMemory = 32 << 20

func (o *Options) validate() error {
	if o.CertFile == "" || o.KeyFile == "" {
		return errors.New("--tls-cert-file and --tls-private-key-file are needed: tokens must not travel in the clear")
	}
	if o.MetricsBindAddress == o.HealthProbeBindAddress && o.MetricsBindAddress != "0" {
		return errors.New("--metrics-bind-address and --health-probe-bind-address must differ")
	}
	if len(o.Audiences) == 0 {
		return errors.New("--audience must name one at least: " + daemonapi.GitStoreAudience)
	}
	if err := o.Connections.Validate(); err != nil {
		return err
	}
	if o.GitMemoryBytes != 0 && o.GitMemoryBytes < leastGitMemory {
		return fmt.Errorf("--git-memory-bytes must be 0, for no limit, or at least %d, not %d", leastGitMemory, o.GitMemoryBytes)
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
	log, err := serving.Log(options.LogLevel)
	if err != nil {
		return err
	}
	if err := options.validate(); err != nil {
		return err
	}
	// What git processes may take together is not this one's.
	capacity.SetGoMemoryLimit(capacity.Beside(capacity.MemoryLimit(), options.GitMemoryBytes*int64(options.Limits.ConcurrentPushes+2*options.Limits.ConcurrentFetches)))
	account, err := ParseServiceAccount(options.ServerServiceAccount)
	if err != nil {
		return fmt.Errorf("--server-service-account: %w", err)
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
	verifier := podidentity.New(client, podidentity.Options{Audiences: options.Audiences, Tasks: podidentity.NewLiveTasks(tasks)})
	return serve(ctx, options, PodAuthenticator{Verifier: verifier, Sources: &taskSources{client: tasks}, Server: account}, hook, listener, certificate, log)
}

// certificates gives TLS its certificate and follows changes until ctx is done.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Start(ctx context.Context) error
}

// serve is Run with everything from outside in hand.
func serve(ctx context.Context, options Options, authenticator Authenticator, hook []string, listener net.Listener, certificate certificates, log logr.Logger) error {
	listener = connections.Limit(listener, options.Connections)
	defer listener.Close()
	store, err := Open(ctx, options.Root, options.GitMemoryBytes, hook)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler, err := NewHandler(store, authenticator, options.Limits, log.WithName("http"), registry)
	if err != nil {
		return err
	}
	if options.NamedMetrics {
		if err := handler.NameRepositories(registry); err != nil {
			return err
		}
	}
	maintainer := NewMaintainer(handler, options.MaintenanceInterval, options.MaxPacks, log.WithName("maintenance"))
	if err := maintainer.Start(ctx); err != nil {
		return fmt.Errorf("leftovers of an earlier process cannot be cleared: %w", err)
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
	var aside sync.WaitGroup
	defer aside.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	aside.Go(func() { maintainer.Run(ctx) })
	aside.Go(func() { store.git.effort.watch(ctx) })
	go func() {
		if err := certificate.Start(ctx); err != nil {
			log.Error(err, "changes of the TLS certificate are not followed any more")
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
	log.Info("ending; requests under way may finish", "gracePeriod", options.ShutdownGracePeriod.String())
	// Git processes then get a signal, and clients that are gone mean no harm.
	defer time.AfterFunc(options.ShutdownGracePeriod, cancel).Stop()
	return servers.Shutdown(options.ShutdownGracePeriod)
}

// maxHeaderBytes has room for a token and what git says of itself; a stranger's are
// kept as well.
const maxHeaderBytes = 16 << 10

func newServer(ctx context.Context, handler http.Handler, certificate certificates, log logr.Logger) *http.Server {
	server := serving.NewServer(handler, log)
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.ConnContext = connections.Context
	server.MaxHeaderBytes = maxHeaderBytes
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.GetCertificate}
	// HTTP/1.1 only: git uses one connection at a time, and with HTTP/2 an
	// early answer to a push would reset the stream under it.
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	return server
}

// withProbes answers probes on the address for git as well.
func withProbes(handler, probes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			probes.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// probeHandler answers probes: the process is ready while it can serve pushes.
func probeHandler(store *Store, ending *atomic.Bool) http.Handler {
	return serving.Probes(func() (string, error) {
		if ending.Load() {
			return "", errors.New("the gitstore is ending")
		}
		return "", store.hookReady()
	}, http.StatusServiceUnavailable)
}
