package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/queue"
	"github.com/clew-dev/clew/internal/resources"
)

// options are the manager's flags.
type options struct {
	leaderElect          bool
	leaderElectNamespace string
	metricsAddress       string
	probeAddress         string
	daemonImage          string
	daemonPullPolicy     string
	daemonRequests       map[string]string
	daemonLimits         map[string]string
	accessMode           string
	serverURL            string
	gitStoreURL          string
	caBundleFile         string
	gitStoreTokenFile    string
	pricesFile           string
	dsnFile              string
	logLevel             string
	workers              int
	kubeQPS              float32
	kubeBurst            int
	retryBase            time.Duration
	stamped              bool
	spoolMargin          time.Duration
	spoolMarginBytes     string
	keepCheckpoints      int
	tasks                queue.Limits
	taskBytes            int64
	namespaceBudgets     budget.ByNamespace
	namespaceBytes       int64
}

// defaultOptions returns the defaults of the flags.
func defaultOptions() *options {
	return &options{
		metricsAddress:    ":8080",
		probeAddress:      ":8081",
		daemonPullPolicy:  string(corev1.PullIfNotPresent),
		gitStoreTokenFile: "/var/run/secrets/clew/token",
		daemonRequests:    map[string]string{"cpu": "50m", "memory": "64Mi"},
		daemonLimits:      map[string]string{"cpu": "2", "memory": "1Gi"},
		accessMode:        string(corev1.ReadWriteOnce),
		logLevel:          "info",
		workers:           8,
		kubeQPS:           -1,
		kubeBurst:         100,
		retryBase:         plan.DefaultLimits().RetryBase,
		spoolMargin:       time.Hour,
		spoolMarginBytes:  "64Mi",
		keepCheckpoints:   1000,
		taskBytes:         2 << 30,
		namespaceBytes:    8 << 30,
	}
}

// addFlags registers the flags.
func (o *options) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "work only while leading, so that several replicas can run")
	f.StringVar(&o.leaderElectNamespace, "leader-elect-namespace", o.leaderElectNamespace, "namespace of the lease; the pod's own, from "+namespaceEnv+", when empty")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, "address for /metrics, plain HTTP; 0 for none")
	f.StringVar(&o.probeAddress, "health-probe-bind-address", o.probeAddress, "address for /healthz and /readyz, plain HTTP")
	f.StringVar(&o.daemonImage, "daemon-image", o.daemonImage, "image with clew-daemon, for the pods of tasks (required)")
	f.StringVar(&o.daemonPullPolicy, "daemon-image-pull-policy", o.daemonPullPolicy, "Always, IfNotPresent or Never")
	f.StringToStringVar(&o.daemonRequests, "daemon-requests", o.daemonRequests, "resource requests of Clew's own containers in the pods of tasks")
	f.StringToStringVar(&o.daemonLimits, "daemon-limits", o.daemonLimits, "resource limits of Clew's containers in the pods of tasks; the daemon and git stay within the memory limit; a resource that is left out has no limit")
	f.StringVar(&o.accessMode, "workspace-access-mode", o.accessMode, "access mode of the volumes of tasks that name none: ReadWriteOnce, or ReadWriteOncePod if the storage driver supports it")
	f.StringVar(&o.serverURL, "server-url", o.serverURL, "base URL of the server, as pods reach it (required)")
	f.StringVar(&o.gitStoreURL, "gitstore-url", o.gitStoreURL, "base URL of the gitstore, as pods reach it (required)")
	f.StringVar(&o.caBundleFile, "ca-bundle-file", o.caBundleFile, "file with the PEM certificates of the authorities for both; the system's when empty")
	f.StringVar(&o.gitStoreTokenFile, "gitstore-token-file", o.gitStoreTokenFile, "file with the manager's own token for the gitstore, in which it makes the branches of Checkpoints; read again for each use")
	f.StringVar(&o.pricesFile, "prices-file", o.pricesFile, "JSON file with prices of models, in millionths of a US dollar per million tokens; only the prices that Clew knows when empty")
	f.StringVar(&o.dsnFile, "dsn-file", o.dsnFile, "file with the Postgres DSN; the environment variable "+postgres.DSNEnv+" when empty")
	f.StringVar(&o.logLevel, "log-level", o.logLevel, logging.LevelHelp)
	f.IntVar(&o.workers, "workers", o.workers, "objects of one kind that are reconciled at a time")
	f.Float32Var(&o.kubeQPS, "kube-api-qps", o.kubeQPS, "requests per second to the Kubernetes API, for each kind of object; negative for no limit but the API server's own (API Priority and Fairness) and --workers")
	f.IntVar(&o.kubeBurst, "kube-api-burst", o.kubeBurst, "requests to the Kubernetes API at once, if --kube-api-qps limits them")
	f.BoolVar(&o.stamped, "requesters-are-stamped", o.stamped, "trust spec.requestedBy; set this only if the admission policy clew-task-requesters is installed (otherwise field managers are shown)")
	f.DurationVar(&o.spoolMargin, "spool-margin", o.spoolMargin, "how long a task's volume keeps records that the history store has, to resend them if the store is restored from an older copy")
	f.StringVar(&o.spoolMarginBytes, "spool-margin-bytes", o.spoolMarginBytes, "the maximum size of those records on a volume")
	f.IntVar(&o.keepCheckpoints, "keep-checkpoints", o.keepCheckpoints, "how many Checkpoint objects a task's checkpointPolicy.retention may keep at most, the newest ones, in addition to those that another object names; 0 for any number. Records and code are kept")
	f.IntVar(&o.tasks.Total, "tasks-maximum", o.tasks.Total, "how many tasks run at once in the cluster; the others wait without a pod; a free place goes to the namespace that has the fewest, and there by spec.priority and age; 0 for any number")
	f.IntVar(&o.tasks.PerNamespace, "tasks-maximum-per-namespace", o.tasks.PerNamespace, "how many tasks run at once in each namespace; 0 for two thirds of --tasks-maximum, or for any number without one")
	f.Var(&o.namespaceBudgets, "namespace-budgets", budget.NamespacesHelp+". The server has the same flag")
	f.Int64Var(&o.taskBytes, "task-history-bytes", o.taskBytes, "approximate limit in bytes of one task's history, an eighth of which the transitions in its timeline may take; 0 for no limit. The server has the same flag for everything else")
	f.Int64Var(&o.namespaceBytes, "namespace-history-bytes", o.namespaceBytes, "approximate limit in bytes of all histories of a namespace, beyond which specs of tasks are not kept with them, and transitions are only counted in their timelines; 0 for no limit. The server has the same flag for everything else")
	f.DurationVar(&o.retryBase, "retry-base-delay", o.retryBase, "pause before a failed agent is restarted; doubles each time")
}

// validate returns all that is wrong with the flags.
func (o *options) validate() error {
	var problems []error
	if o.daemonImage == "" {
		problems = append(problems, errors.New("--daemon-image is required: name the image with clew-daemon"))
	}
	for flag, value := range map[string]string{"--server-url": o.serverURL, "--gitstore-url": o.gitStoreURL} {
		if u, err := url.Parse(value); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			problems = append(problems, fmt.Errorf("%s must be an http(s) URL that pods can reach, not %q", flag, value))
		}
	}
	switch corev1.PullPolicy(o.daemonPullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		problems = append(problems, fmt.Errorf("--daemon-image-pull-policy must be Always, IfNotPresent or Never, not %q", o.daemonPullPolicy))
	}
	switch corev1.PersistentVolumeAccessMode(o.accessMode) {
	case corev1.ReadWriteOnce, corev1.ReadWriteOncePod:
	default:
		problems = append(problems, fmt.Errorf("--workspace-access-mode must be ReadWriteOnce or ReadWriteOncePod, not %q", o.accessMode))
	}
	if o.workers < 1 {
		problems = append(problems, fmt.Errorf("--workers must be at least 1, not %d", o.workers))
	}
	if o.keepCheckpoints < 0 {
		problems = append(problems, fmt.Errorf("--keep-checkpoints must not be negative, not %d", o.keepCheckpoints))
	}
	if o.tasks.Total < 0 {
		problems = append(problems, fmt.Errorf("--tasks-maximum must not be negative, not %d", o.tasks.Total))
	}
	if o.tasks.PerNamespace < 0 {
		problems = append(problems, fmt.Errorf("--tasks-maximum-per-namespace must not be negative, not %d", o.tasks.PerNamespace))
	}
	if o.taskBytes < 0 {
		problems = append(problems, fmt.Errorf("--task-history-bytes must not be negative, not %d", o.taskBytes))
	}
	if o.namespaceBytes < 0 {
		problems = append(problems, fmt.Errorf("--namespace-history-bytes must not be negative, not %d", o.namespaceBytes))
	}
	if o.retryBase <= 0 {
		problems = append(problems, fmt.Errorf("--retry-base-delay must be more than 0, not %s", o.retryBase))
	}
	if o.kubeQPS == 0 {
		problems = append(problems, errors.New("--kube-api-qps must not be 0: make it negative for no limit"))
	}
	if o.kubeQPS > 0 && o.kubeBurst < 1 {
		problems = append(problems, fmt.Errorf("--kube-api-burst must be at least 1, not %d", o.kubeBurst))
	}
	return errors.Join(append(problems, o.validateMargin(), o.validateResources())...)
}

// validateMargin checks the flags of the spool margin.
func (o *options) validateMargin() error {
	if o.spoolMargin < 0 || o.spoolMargin > 0 && o.spoolMargin < time.Second {
		return fmt.Errorf("--spool-margin must be 0 or at least 1s, not %s", o.spoolMargin)
	}
	margin, err := resource.ParseQuantity(o.spoolMarginBytes)
	if err != nil {
		return fmt.Errorf("--spool-margin-bytes: %s is not a quantity: %w", o.spoolMarginBytes, err)
	}
	if margin.Sign() < 0 {
		return fmt.Errorf("--spool-margin-bytes must not be negative, not %s", o.spoolMarginBytes)
	}
	return nil
}

// validateResources refuses resources that the API server would refuse in each pod.
func (o *options) validateResources() error {
	requests, err := quantities("--daemon-requests", o.daemonRequests)
	if err != nil {
		return err
	}
	limits, err := quantities("--daemon-limits", o.daemonLimits)
	if err != nil {
		return err
	}
	for name, limit := range limits {
		if request, ok := requests[name]; ok && limit.Cmp(request) < 0 {
			return fmt.Errorf("--daemon-limits: %s=%s is less than the %s in --daemon-requests", name, limit.String(), request.String())
		}
	}
	return nil
}

// podOptions returns the options of every task's pod.
func (o *options) podOptions() (resources.Options, error) {
	requests, err := quantities("--daemon-requests", o.daemonRequests)
	if err != nil {
		return resources.Options{}, err
	}
	limits, err := quantities("--daemon-limits", o.daemonLimits)
	if err != nil {
		return resources.Options{}, err
	}
	margin, err := resource.ParseQuantity(o.spoolMarginBytes)
	if err != nil {
		return resources.Options{}, fmt.Errorf("--spool-margin-bytes: %s is not a quantity: %w", o.spoolMarginBytes, err)
	}
	p := resources.Options{
		DaemonImage: o.daemonImage, PullPolicy: corev1.PullPolicy(o.daemonPullPolicy),
		ServerURL: o.serverURL, GitStoreURL: o.gitStoreURL,
		AccessMode:  corev1.PersistentVolumeAccessMode(o.accessMode),
		Prepare:     corev1.ResourceRequirements{Requests: requests, Limits: limits},
		Daemon:      corev1.ResourceRequirements{Requests: requests, Limits: limits},
		SpoolMargin: daemonapi.SpoolMargin{Bytes: margin.Value(), Seconds: int64(o.spoolMargin.Seconds())},
	}
	if o.caBundleFile != "" {
		bundle, err := os.ReadFile(o.caBundleFile)
		if err != nil {
			return p, fmt.Errorf("--ca-bundle-file: %w", err)
		}
		p.CABundle = string(bundle)
	}
	if o.pricesFile != "" {
		prices, err := readPrices(o.pricesFile)
		if err != nil {
			return p, err
		}
		p.Prices = prices
	}
	return p, nil
}

// quantities parses the amounts of a flag, by resource.
func quantities(flag string, amounts map[string]string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	for name, amount := range amounts {
		quantity, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, fmt.Errorf("%s: %s=%s is not a quantity: %w", flag, name, amount, err)
		}
		if quantity.Sign() < 0 {
			return nil, fmt.Errorf("%s: %s=%s must not be negative", flag, name, amount)
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list, nil
}
