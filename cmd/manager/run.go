package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/controller/checkpoint"
	"github.com/clew-dev/clew/internal/controller/conversationsnapshot"
	"github.com/clew-dev/clew/internal/controller/fork"
	"github.com/clew-dev/clew/internal/controller/historyhub"
	"github.com/clew-dev/clew/internal/controller/places"
	"github.com/clew-dev/clew/internal/controller/task"
	"github.com/clew-dev/clew/internal/controller/toolcall"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/serving"
)

// shutdownGrace is how long reconcilers may take to finish.
const shutdownGrace = 20 * time.Second

// run runs the manager until ctx ends.
func run(ctx context.Context, o *options) error {
	if err := o.validate(); err != nil {
		return err
	}
	log, err := serving.Log(logging.Options{Level: o.logLevel, Format: logging.JSON, Sample: true})
	if err != nil {
		return err
	}
	capacity.SetGoMemoryLimit(capacity.ForServer(capacity.MemoryLimit()))

	mgr, err := newManager(o, log)
	if err != nil {
		return err
	}
	dsn, err := postgres.DSN(o.dsnFile)
	if err != nil {
		return err
	}
	store, err := postgres.OpenPool(ctx, dsn, log.WithName("history"), postgres.Pool{Limits: postgres.Limits{TaskBytes: o.taskBytes, NamespaceBytes: o.namespaceBytes}})
	if err != nil {
		return err
	}
	defer store.Close()
	names, err := namespaceid.New(mgr.GetConfig())
	if err != nil {
		return err
	}
	if err := addControllers(mgr, o, namespaced.New(store, names, log.WithName("namespaces"))); err != nil {
		return err
	}
	log.Info("starting", "version", version)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controllers: %w", err)
	}
	return nil
}

// newManager returns a manager without controllers. It ends when the state of the Kubernetes
// API is restored from an older copy.
func newManager(o *options, log logr.Logger) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API: %w", err)
	}
	config.QPS, config.Burst = o.kubeQPS, o.kubeBurst
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	lease, err := newLease(config, o)
	if err != nil {
		return nil, err
	}
	grace := shutdownGrace
	settings := ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cached.Options(),
		Client:                        clientOptions(),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &grace,
		LeaseDuration:                 ptr.To(leaseDuration),
		RenewDeadline:                 ptr.To(renewDeadline),
		RetryPeriod:                   ptr.To(retryPeriod),
	}
	if lease != nil {
		settings.LeaderElectionResourceLockInterface = lease
	}
	mgr, err := ctrl.NewManager(config, settings)
	if err != nil {
		return nil, fmt.Errorf("set up the controllers: %w", err)
	}
	if err := endWhenPutBack(mgr, lease, o.leaseNamespace(), log); err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	// Readiness does not depend on Postgres: tasks are reconciled without it.
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}

// endWhenPutBack makes the manager end when the state of the Kubernetes API is put back.
func endWhenPutBack(mgr ctrl.Manager, lease *rollback.Lock, namespace string, log logr.Logger) error {
	if lease != nil {
		if err := mgr.Add(lease); err != nil {
			return err
		}
	}
	back, err := rollback.New(mgr.GetConfig(), namespace, log.WithName("rollback"))
	if err != nil {
		return err
	}
	return mgr.Add(back)
}

// clientOptions exclude kinds from the cache that are read rarely.
func clientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{
		&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{},
	}}}
}

// leastWorkers is how many workers every kind has at least, whatever --workers says: of fewer, no quarter
// could be left to other namespaces.
const leastWorkers = 4

// addControllers adds all controllers to the manager.
func addControllers(mgr ctrl.Manager, o *options, store *namespaced.Store) error {
	pods, err := o.podOptions()
	if err != nil {
		return err
	}
	few := max(leastWorkers, o.workers/2) // for kinds of which there are few
	hub := historyhub.New(store)
	if err := mgr.Add(hub); err != nil {
		return err
	}
	limits := plan.DefaultLimits()
	limits.RetryBase = o.retryBase
	guarded := task.Guard(store, store.Alive, clock.RealClock{})
	code := gitstoreapi.Client{BaseURL: o.gitStoreURL, CAFile: o.caBundleFile, TokenFile: o.gitStoreTokenFile}
	running := places.New(o.tasks, mgr.GetCache())
	metrics.Registry.MustRegister(running.Metrics()...)
	phases := &toolcall.Phases{}
	tasks := &task.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: guarded, Code: code,
		Events: mgr.GetEventRecorder("clew-manager"), Pods: pods, Limits: limits, Stamped: o.stamped,
		Clock: clock.RealClock{}, Metrics: task.NewMetrics(metrics.Registry), Places: running, PhaseCalls: phases,
		NamespaceBudgets: o.namespaceBudgets,
	}
	if err := tasks.SetupWithManager(mgr, hub, o.workers); err != nil {
		return fmt.Errorf("add the task controller: %w", err)
	}
	checkpoints := &checkpoint.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store, Events: mgr.GetEventRecorder("clew-manager"),
		Stamped: o.stamped,
	}
	if err := checkpoints.SetupWithManager(mgr, hub, o.workers); err != nil {
		return fmt.Errorf("add the checkpoint controller: %w", err)
	}
	kept := &checkpoint.Retention{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Keep: o.keepCheckpoints, Clock: clock.RealClock{}}
	if err := kept.SetupWithManager(mgr, few); err != nil {
		return fmt.Errorf("add the checkpoint retention controller: %w", err)
	}
	branches := &checkpoint.Branches{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Gitstore: code, Store: store, Events: mgr.GetEventRecorder("clew-manager"), Pods: pods, Limits: limits, Clock: clock.RealClock{}, Stamped: o.stamped,
	}
	if err := branches.SetupWithManager(mgr, o.workers); err != nil {
		return fmt.Errorf("add the controller of checkpoints' branches: %w", err)
	}
	snapshots := &conversationsnapshot.Reconciler{Client: mgr.GetClient(), Store: store, Clock: clock.RealClock{}}
	if err := snapshots.SetupWithManager(mgr, few); err != nil {
		return fmt.Errorf("add the conversation snapshot controller: %w", err)
	}
	forks := &fork.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: guarded, Events: mgr.GetEventRecorder("clew-manager"),
		Clock: clock.RealClock{}, Stamped: o.stamped,
	}
	if err := forks.SetupWithManager(mgr, hub, few); err != nil {
		return fmt.Errorf("add the fork controller: %w", err)
	}
	calls := &toolcall.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store, Phases: phases, Clock: clock.RealClock{}, Stamped: o.stamped,
	}
	if err := calls.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("add the controller of tools' calls: %w", err)
	}
	return nil
}
