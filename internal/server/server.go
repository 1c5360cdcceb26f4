// Package server assembles the server: the gateway for daemons and the aggregated history
// API on one TLS port, with metrics and probes on ports of their own.
//
// The server is stateless; any number may run. PostgreSQL may be down: at the start the
// server is not ready until it has migrated the schema; afterwards it stays ready when
// the database becomes unreachable, or comes back with the older schema of a backup,
// which is migrated again. That is on purpose. Behind an unready server, daemons would
// lose their streams and have connections refused instead of a quick UNAVAILABLE, to
// which they respond by keeping their records; and an aggregated API without endpoints
// makes discovery fail for the whole cluster, down to the deletion of namespaces. The
// history API answers 503 meanwhile.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/server/approvals"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/entries"
	"github.com/clew-dev/clew/internal/server/family"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/server/historyapi"
	"github.com/clew-dev/clew/internal/server/live"
	"github.com/clew-dev/clew/internal/server/verification"
	"github.com/clew-dev/clew/internal/serving"
)

// Run serves until ctx is done.
func Run(ctx context.Context, o Options) error {
	log, err := serving.Log(logging.Options{Level: o.LogLevel, Format: logging.JSON})
	if err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return err
	}
	dsn, err := o.Database.DSN()
	if err != nil {
		return err
	}
	config, err := serving.KubeOptions{Kubeconfig: o.Kubeconfig, QPS: o.KubeQPS, Burst: o.KubeBurst, UserAgent: "clew-server"}.Config()
	if err != nil {
		return fmt.Errorf("the Kubernetes API server is needed to authenticate callers: %w", err)
	}
	capacity.SetGoMemoryLimit(capacity.ForServer(capacity.MemoryLimit()))
	listeners, err := listen(o)
	if err != nil {
		return err
	}
	return serve(ctx, o, dsn, config, listeners, log)
}

// listeners are the open ports; all but the main one may be nil.
type listeners struct{ main, metrics, probes net.Listener }

func listen(o Options) (l listeners, err error) {
	if l.main, err = net.Listen("tcp", o.BindAddress); err != nil {
		return l, fmt.Errorf("--bind-address: %w", err)
	}
	l.main = connections.Limit(l.main, o.Connections)
	if l.metrics, err = serving.Listen("--metrics-bind-address", o.MetricsBindAddress); err != nil {
		return l, err
	}
	if l.probes, err = serving.Listen("--health-probe-bind-address", o.HealthProbeBindAddress); err != nil {
		return l, err
	}
	return l, nil
}

// serve is Run with its external dependencies resolved. It closes the listeners.
func serve(ctx context.Context, o Options, dsn string, config *rest.Config, l listeners, log logr.Logger) error {
	// Background work ends after the last request has been answered.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	certificate, err := certwatcher.New(o.CertFile, o.KeyFile)
	if err != nil {
		return fmt.Errorf("the TLS certificate cannot be loaded: %w", err)
	}
	stores, err := openStores(work, dsn, o.Limits, log.WithName("history"))
	if err != nil {
		return err
	}
	defer stores.close()
	registry := newRegistry(stores)
	p, err := assemble(config, o, stores, registry, log)
	if err != nil {
		return err
	}
	ready := newReadiness(noSchema, "the Checkpoints in the cluster have not been listed yet")

	var aside sync.WaitGroup
	defer aside.Wait()
	defer end()
	failed := make(chan error, 8)
	aside.Go(func() { failed <- certificate.Start(work) })
	aside.Go(func() { failed <- p.informers.Start(work) })
	aside.Go(func() { failed <- p.rollback.Start(work) })
	aside.Go(func() { p.frontProxy.Run(work) })
	aside.Go(func() { keepSchema(work, dsn, stores.daemons, ready, log) })
	aside.Go(func() { _ = stores.archive.Listen(work, p.gateway.HandleNotification) })
	aside.Go(func() { _ = stores.archive.ListenToolCalls(work, p.gateway.HandleToolCall) })
	aside.Go(func() { _ = p.archive.ListenEntries(work, p.entries.Handle) })
	aside.Go(func() { _ = p.live.Run(work) })
	aside.Go(func() { p.grant(work) })
	aside.Go(func() { p.maintain(work, stores.archive, o.Retention, registry, log) })
	aside.Go(func() { _ = p.verifier(stores.archive, log).Run(work) })
	aside.Go(func() { p.watch(work, log, func() { ready.done(1) }) })
	aside.Go(func() {
		retry(work, log, "the Tasks in the cluster cannot be watched yet; retrying", func() error { return p.family.Watch(work, p.informers) })
		retry(work, log, "the answers to requests cannot be watched yet; retrying", func() error { return p.approvals.Watch(work, p.informers) })
	})

	servers := serving.NewServers(log)
	servers.ServeTLS(newTLSServer(recognizeFrontProxy(p.mux, p.frontProxy), certificate.GetCertificate, log), l.main)
	servers.ServeMetrics(registry, l.metrics)
	servers.ServePlain(ready.handler(), l.probes)
	log.Info("serving", "address", l.main.Addr().String())
	select {
	case err = <-failed:
	case err = <-servers.Failed():
	case <-ctx.Done():
		log.Info("shutting down; requests in progress may finish", "gracePeriod", o.ShutdownGracePeriod.String())
	}
	ready.end()
	p.gateway.Close()
	p.entries.Close()
	return errors.Join(err, servers.Shutdown(o.ShutdownGracePeriod))
}

// parts are the components of the server.
type parts struct {
	gateway    *gateway.Gateway
	board      *checkpointrequests.Board
	informers  cache.Cache
	rollback   *rollback.Watch
	frontProxy *historyapi.FrontProxy
	mux        *http.ServeMux
	tasks      liveTasks
	adopters   adopters
	code       codeStore
	live       *live.Broker
	archive    *namespaced.Store
	entries    *entries.Feed
	family     *family.Family
	approvals  *approvals.Board
	grants     *namespaced.Grants
}

// clients talk to the Kubernetes API. Each has its own rate limit there: tokens of strangers must not
// delay the reviews of known callers.
type clients struct {
	reviews, identities *kubernetes.Clientset
	objects             metadata.Interface
	whole               dynamic.Interface
}

func newClients(config *rest.Config) (c clients, err error) {
	var failed [4]error
	c.reviews, failed[0] = kubernetes.NewForConfig(config)
	c.identities, failed[1] = kubernetes.NewForConfig(config)
	c.objects, failed[2] = metadata.NewForConfig(config)
	c.whole, failed[3] = dynamic.NewForConfig(config)
	if err := errors.Join(failed[:]...); err != nil {
		return c, fmt.Errorf("create a client for the Kubernetes API: %w", err)
	}
	return c, nil
}

func assemble(config *rest.Config, o Options, stores stores, registry prometheus.Registerer, log logr.Logger) (*parts, error) {
	clients, err := newClients(config)
	if err != nil {
		return nil, err
	}
	informers, err := newInformers(config)
	if err != nil {
		return nil, err
	}
	back, err := rollback.New(config, o.ManagerLeaseNamespace, log.WithName("rollback"))
	if err != nil {
		return nil, err
	}
	frontProxy, err := historyapi.NewFrontProxy(clients.reviews)
	if err != nil {
		return nil, err
	}
	known, err := newObjects(config)
	if err != nil {
		return nil, err
	}
	named, grants, err := stores.named(config, o.HistoryGrants, registry, log)
	if err != nil {
		return nil, err
	}
	tasks, attempts := newLiveTasks(clients.objects), podidentity.NewLiveTasks(clients.whole)
	code := codeStore{gitstoreapi.Client{BaseURL: o.GitStore.URL, CAFile: o.GitStore.CAFile, TokenFile: o.GitStore.TokenFile}}
	onDemand := verification.NewOnDemand(named.archive, code, log.WithName("verification"))
	p := &parts{board: checkpointrequests.New(), informers: informers, rollback: back, frontProxy: frontProxy, mux: http.NewServeMux(), tasks: tasks, adopters: newAdopters(clients.whole), code: code, live: live.New(stores.archive), archive: named.archive, entries: entries.New(), family: family.New(named.forAgents(), code), approvals: approvals.New(), grants: grants}
	p.board.Stamped = o.Stamped
	p.gateway = gateway.New(gateway.Options{
		Store:         named.forAgents(),
		Connections:   stores.daemons.MaxConnections(),
		Authenticator: podidentity.New(clients.identities, named.names, podidentity.Options{Audiences: o.Audiences, Tasks: attempts}),
		Requests:      p.board,
		Approvals:     p.approvals,
		Live:          p.live,
		Verifier:      onDemand,
		Family:        p.family,
		Code:          code,
		Tasks:         attempts,
		Log:           log.WithName("gateway"),

		NamespaceBudgets: o.NamespaceBudgets,
		Registerer:       registry,
	})
	p.mux.Handle(p.gateway.Handler())
	historyapi.Register(p.mux, historyapi.Options{
		Store:         named.people,
		Connections:   stores.people.MaxConnections(),
		Archive:       archive{Store: named.people, transfers: named.archive},
		Tasks:         tasks,
		ImportBytes:   o.ImportBytes,
		Code:          code,
		Live:          p.live,
		Feed:          p.entries,
		Verifier:      onDemand,
		Objects:       known,
		Authenticator: frontProxy,
		Authorizer:    historyapi.NewSubjectAccess(clients.reviews.AuthorizationV1().SubjectAccessReviews(), named.names),
		Log:           log.WithName("api"),
		Registerer:    registry,
	})
	return p, nil
}

func newInformers(config *rest.Config) (cache.Cache, error) {
	options, err := checkpointrequests.CacheOptions()
	if err != nil {
		return nil, err
	}
	options.ByObject[&clewv1alpha1.Task{}] = cache.ByObject{Transform: slimTask}
	options.Scheme = runtime.NewScheme()
	if err := clewv1alpha1.AddToScheme(options.Scheme); err != nil {
		return nil, err
	}
	informers, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("watch the Kubernetes API: %w", err)
	}
	return informers, nil
}

// slimTask drops of a Task what neither its family nor the daemons that wait for answers need.
func slimTask(object any) (any, error) {
	if t, ok := object.(*clewv1alpha1.Task); ok {
		answered := approvals.Answered(t)
		family.Slim(t)
		t.Status.Requests = answered
	}
	return object, nil
}

// watch keeps the board up to date; listed is called when it is complete. The API server
// may be slow to start, and the definition of Checkpoints may be installed late.
func (p *parts) watch(ctx context.Context, log logr.Logger, listed func()) {
	var synced func() bool
	retry(ctx, log, "the Checkpoints in the cluster cannot be watched yet; retrying", func() (err error) {
		synced, err = p.board.Watch(ctx, p.informers)
		return err
	})
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for synced == nil || !synced() {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
	listed()
}

// grant tells the gitstore which namespaces share their histories, and carries grants out, until
// ctx ends.
func (p *parts) grant(ctx context.Context) {
	if p.code.client.BaseURL != "" {
		p.grants.Code = p.code
	}
	p.grants.Run(ctx)
}

// verifier returns what verifies checkpoints in the background.
func (p *parts) verifier(store *postgres.Store, log logr.Logger) *verification.Verifier {
	return &verification.Verifier{Store: store, Code: p.code, Log: log.WithName("verification")}
}

// maintain runs the maintenance of the history database until ctx ends, and keeps the checkpoints of
// adopted histories in the gitstore beside it.
func (p *parts) maintain(ctx context.Context, store *postgres.Store, kept RetentionOptions, registry prometheus.Registerer, log logr.Logger) {
	options := postgres.MaintenanceOptions{
		EventRetention: kept.Events, SnapshotRetention: kept.Snapshots, MessageRetention: kept.Messages,
		LiveTasks: p.tasks.liveUIDs, TaskExists: p.taskExists, Awaited: p.awaited, DeleteCode: p.deleteCode,
		HasUID: p.tasks.HasUID, Registerer: registry,
	}
	if p.code.client.BaseURL != "" {
		keeper := codeadoption.Keeper{Store: store, Code: p.code, Log: log.WithName("adoptions")}
		options.Alongside = keeper.Run
	}
	err := store.RunMaintenance(ctx, options)
	if err != nil && ctx.Err() == nil {
		log.Error(err, "the maintenance of the history database failed")
	}
}

// taskExists reports whether a Task object exists that a history is of, and the newest task whose history
// the Task of its name says it continues.
func (p *parts) taskExists(ctx context.Context, task history.Task, formers []string) (exists bool, continues string, err error) {
	return p.adopters.continues(ctx, namespaced.Name(task.Namespace), task.Name, append(slices.Clone(formers), task.UID))
}

// awaited reports whether a Task or Fork may yet adopt the history of a gone one.
func (p *parts) awaited(ctx context.Context, task history.Task) (bool, error) {
	if p.code.client.BaseURL == "" {
		return false, errNoGitstore() // a deletion that cannot be finished must not begin
	}
	return p.adopters.has(ctx, namespaced.Name(task.Namespace), task.Name)
}

// deleteCode deletes the code of a task whose history is deleted next: it can only be found by way of
// the history.
func (p *parts) deleteCode(ctx context.Context, task history.Task, formers []string) error {
	_, err := p.code.DeleteTask(ctx, namespaced.Name(task.Namespace), task.UID, task.Name, formers)
	return err
}

// minWait and maxWait are the shortest and the longest wait between tries.
const (
	minWait = 500 * time.Millisecond
	maxWait = 10 * time.Second
)

// retry calls f until it succeeds; it returns false if ctx ends first.
func retry(ctx context.Context, log logr.Logger, failure string, f func() error) bool {
	for wait := (backoff.Backoff{Min: minWait, Max: maxWait}); ; {
		err := f()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			log.Info(failure, "error", err.Error())
		}
		if wait.Wait(ctx) != nil {
			return false
		}
	}
}

func newRegistry(stores stores) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "clew_history_connections", Help: "Open connections to the history database.",
		}, func() float64 { open, _ := stores.connections(); return float64(open) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "clew_history_connections_in_use", Help: "Connections to the history database that are in use.",
		}, func() float64 { _, inUse := stores.connections(); return float64(inUse) }),
	)
	return registry
}
