package server

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/pflag"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/serving"
)

// DSNOptions locate the DSN of the history database.
type DSNOptions struct {
	// File with the DSN; if empty, the environment variable postgres.DSNEnv is used.
	File string
}

// AddFlags defines the flags of the options, with their defaults.
func (o *DSNOptions) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.File, "dsn-file", "", "file with the DSN of the history database; "+postgres.DSNEnv+" if empty")
}

// DSN reads the DSN.
func (o *DSNOptions) DSN() (string, error) { return postgres.DSN(o.File) }

// Options of the server process.
type Options struct {
	Database DSNOptions
	// BindAddress, MetricsBindAddress and HealthProbeBindAddress are host:port; "0"
	// disables the latter two.
	BindAddress            string
	MetricsBindAddress     string
	HealthProbeBindAddress string
	// Connections limit the connections to BindAddress.
	Connections connections.Limits
	// CertFile and KeyFile are PEM files, reloaded when they change.
	CertFile, KeyFile string
	// Audiences accepted in the tokens of daemons; one must match.
	Audiences []string
	// GitStore locates the code of tasks.
	GitStore GitStoreOptions
	// Retention says how long each kind of history is kept.
	Retention RetentionOptions
	// ImportBytes is the size of the largest history that can be imported.
	ImportBytes int64
	// Limits bound the storage of tasks and namespaces.
	Limits postgres.Limits
	// NamespaceBudgets are the budgets of namespaces.
	NamespaceBudgets budget.ByNamespace
	// HistoryGrants give histories that earlier namespaces have left to those that have their
	// names now, each as namespace=uid.
	HistoryGrants []string
	// Stamped says that spec.requestedBy can be trusted.
	Stamped bool
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	KubeQPS    float32
	KubeBurst  int
	// ManagerLeaseNamespace is the namespace of the managers' lease; empty if there is
	// none.
	ManagerLeaseNamespace string
	// ShutdownGracePeriod is how long requests may continue after a termination signal.
	ShutdownGracePeriod time.Duration
	// LogLevel is debug, info, warn or error.
	LogLevel string
}

// GitStoreOptions say how the server reaches the gitstore, in which it deletes the code
// of tasks whose history is deleted.
type GitStoreOptions struct {
	// URL is the base URL; without it, no history can be deleted.
	URL string
	// CAFile contains the PEM certificates that sign the gitstore's certificate; the
	// system's if empty.
	CAFile string
	// TokenFile contains the server's own token with the gitstore's audience.
	TokenFile string
}

// AddFlags defines the flags of the options, with their defaults.
func (o *GitStoreOptions) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.URL, "gitstore-url", "", "base URL of the gitstore; without it, no history can be deleted")
	flags.StringVar(&o.CAFile, "ca-bundle-file", "", "file with the PEM certificates that sign the gitstore's; the system's when empty")
	flags.StringVar(&o.TokenFile, "gitstore-token-file", "/var/run/secrets/clew/token", "file with the server's own token for the gitstore; read again for each use")
}

func (o *GitStoreOptions) validate() error {
	if o.URL == "" {
		return nil
	}
	if u, err := url.Parse(o.URL); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--gitstore-url must be an https URL, not %q: the server's token must not travel in the clear", o.URL)
	}
	return nil
}

// RetentionOptions say how long history is kept; 0 means forever.
type RetentionOptions struct {
	Events, Snapshots, Messages time.Duration
}

// AddFlags defines the flags of the options, with their defaults.
func (o *RetentionOptions) AddFlags(flags *pflag.FlagSet) {
	const day = 24 * time.Hour
	flags.DurationVar(&o.Events, "event-retention", 365*day, "how long the events of timelines are kept, rounded to months; 0 means forever")
	flags.DurationVar(&o.Snapshots, "snapshot-retention", 90*day, "how long automatic snapshots of conversations are kept; 0 means forever")
	flags.DurationVar(&o.Messages, "message-retention", 0, "how long the history of a task whose Task object is gone is kept after its last message; 0 means forever")
}

func (o *RetentionOptions) validate() error {
	for flag, kept := range map[string]time.Duration{
		"--event-retention": o.Events, "--snapshot-retention": o.Snapshots, "--message-retention": o.Messages,
	} {
		if kept < 0 || kept > 0 && kept < time.Hour {
			return fmt.Errorf("%s is %s; it must be 0 (forever) or at least 1h", flag, kept)
		}
	}
	return nil
}

// AddFlags defines the flags of the options, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Database.AddFlags(flags)
	flags.StringVar(&o.BindAddress, "bind-address", ":8443", "address for daemons and for the aggregated API, over TLS")
	o.Connections.AddFlags(flags)
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM file with the certificate chain; read again when it changes")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM file with the certificate's private key; read again when it changes")
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", ":8080", "address for /metrics, plain HTTP; 0 for none")
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "address for /healthz and /readyz, plain HTTP; 0 for none")
	flags.StringSliceVar(&o.Audiences, "audience", []string{daemonapi.ServerAudience, daemonapi.FormerAudience}, "audiences accepted in the tokens of daemons; the last default is that of pods created by earlier versions")
	o.GitStore.AddFlags(flags)
	o.Retention.AddFlags(flags)
	flags.Int64Var(&o.ImportBytes, "max-import-bytes", 512<<20, "size in bytes of the largest import, as it is sent; imports are buffered in the folder for temporary files")
	flags.Int64Var(&o.Limits.TaskBytes, "task-history-bytes", 2<<30, "approximate limit in bytes of one task's history; 0 for no limit")
	flags.Int64Var(&o.Limits.NamespaceBytes, "namespace-history-bytes", 8<<30, "approximate limit in bytes of all histories of a namespace; 0 for no limit")
	flags.DurationVar(&o.Limits.Grace, "history-limit-grace", 3*time.Minute, "how long agents' output waits after a limit is reached before it is left out; at most 4m, and 3m if 0")
	flags.Var(&o.NamespaceBudgets, "namespace-budgets", budget.NamespacesHelp)
	flags.StringSliceVar(&o.HistoryGrants, "history-grant", nil, "namespace=uid: give the histories of an earlier namespace with this UID to the namespace that has its name now; may be repeated. The UID is "+postgres.UnknownNamespace+" for one that was gone before UIDs were recorded")
	flags.BoolVar(&o.Stamped, "requesters-are-stamped", false, "trust spec.requestedBy of Checkpoints; set this only if the admission policy clew-requester is installed (otherwise phases that agents set count towards no budget of checkpoints)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty in a cluster")
	flags.Float32Var(&o.KubeQPS, "kube-api-qps", 50, "sustained rate of requests to the API server, per second")
	flags.IntVar(&o.KubeBurst, "kube-api-burst", 100, "burst of requests to the API server")
	flags.StringVar(&o.ManagerLeaseNamespace, "manager-lease-namespace", "", "namespace of the lease "+rollback.LeaseName+", which reveals when the API server's state was restored from an older copy; without it, this may go undetected")
	flags.DurationVar(&o.ShutdownGracePeriod, "shutdown-grace-period", 20*time.Second, "time that requests in progress may take after a termination signal")
	flags.StringVar(&o.LogLevel, "log-level", "info", logging.LevelHelp)
}

func (o *Options) validate() error {
	if o.CertFile == "" || o.KeyFile == "" {
		return errors.New("--tls-cert-file and --tls-private-key-file are required: tokens must not travel in the clear")
	}
	if o.MetricsBindAddress == o.HealthProbeBindAddress && !serving.Off(o.MetricsBindAddress) {
		return errors.New("--metrics-bind-address and --health-probe-bind-address must differ")
	}
	if o.Audiences != nil && len(o.Audiences) == 0 {
		return errors.New("--audience must name at least one, for example " + daemonapi.ServerAudience)
	}
	return errors.Join(o.Connections.Validate(), o.GitStore.validate(), o.Retention.validate(), o.validateAmounts())
}

// maxGrace bounds how long output may wait once a limit is reached: preparing a pod,
// which waits for the same, may take five minutes.
const maxGrace = 4 * time.Minute

func (o *Options) validateAmounts() error {
	for flag, bytes := range map[string]int64{
		"--max-import-bytes": o.ImportBytes, "--task-history-bytes": o.Limits.TaskBytes, "--namespace-history-bytes": o.Limits.NamespaceBytes,
	} {
		if bytes < 0 {
			return fmt.Errorf("%s must not be negative, not %d", flag, bytes)
		}
	}
	if task, all := o.Limits.TaskBytes, o.Limits.NamespaceBytes; all > 0 && task > all {
		return fmt.Errorf("--task-history-bytes is %d, more than a whole namespace may have (--namespace-history-bytes, %d)", task, all)
	}
	if o.Limits.Grace < 0 || o.Limits.Grace > maxGrace {
		return fmt.Errorf("--history-limit-grace must be from 0 to %s, not %s", maxGrace, o.Limits.Grace)
	}
	return nil
}
