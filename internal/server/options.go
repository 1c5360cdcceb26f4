package server

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/pflag"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/logging"
	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/serving"
)

// DSNOptions say which database holds the history.
type DSNOptions struct {
	// File that holds the DSN; if empty, the environment variable postgres.DSNEnv does.
	File string
}

// AddFlags defines the flags of the options, with their defaults.
func (o *DSNOptions) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.File, "dsn-file", "", "file that holds the DSN of the history database; "+postgres.DSNEnv+" if empty")
}

// DSN reads the DSN.
func (o *DSNOptions) DSN() (string, error) { return postgres.DSN(o.File) }

// Options of the server's process.
type Options struct {
	Database DSNOptions
	// BindAddress, MetricsBindAddress and HealthProbeBindAddress are
	// host:port; "0" turns the latter two off.
	BindAddress            string
	MetricsBindAddress     string
	HealthProbeBindAddress string
	// Connections bound those to BindAddress.
	Connections connections.Limits
	// CertFile and KeyFile are PEM files, read again when they change.
	CertFile, KeyFile string
	// Audiences of which the tokens of daemons must have one.
	Audiences []string
	// GitStore is where the code of tasks is.
	GitStore GitStoreOptions
	// Retention says how long what is kept.
	Retention RetentionOptions
	// ImportBytes is how large an import of a history may be.
	ImportBytes int64
	// Limits bound what tasks and namespaces may have stored.
	Limits postgres.Limits
	// Kubeconfig is empty in a cluster.
	Kubeconfig string
	KubeQPS    float32
	KubeBurst  int
	// ManagerLeaseNamespace is where the managers' lease is; empty if there is none.
	ManagerLeaseNamespace string
	// ShutdownGracePeriod is how long requests may go on after a signal to end.
	ShutdownGracePeriod time.Duration
	// LogLevel is debug, info, warn or error.
	LogLevel string
}

// GitStoreOptions say how the server reaches the gitstore, where it deletes the
// code of tasks whose history is deleted.
type GitStoreOptions struct {
	// URL is the base; without it, no history can be deleted.
	URL string
	// CAFile holds the PEM certificates that sign the gitstore's; the system's
	// if empty.
	CAFile string
	// TokenFile holds the server's own token of the gitstore's audience.
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

// RetentionOptions say how long history is kept; 0 is for ever.
type RetentionOptions struct {
	Events, Snapshots, Messages time.Duration
}

// AddFlags defines the flags of the options, with their defaults.
func (o *RetentionOptions) AddFlags(flags *pflag.FlagSet) {
	const day = 24 * time.Hour
	flags.DurationVar(&o.Events, "event-retention", 365*day, "how long the events of timelines are kept, to the month; 0 for ever")
	flags.DurationVar(&o.Snapshots, "snapshot-retention", 90*day, "how long automatic snapshots of conversations are kept; 0 for ever")
	flags.DurationVar(&o.Messages, "message-retention", 0, "how long the history of a task is kept whose Task object is gone, counted from its last message; 0 for ever")
}

func (o *RetentionOptions) validate() error {
	for flag, kept := range map[string]time.Duration{
		"--event-retention": o.Events, "--snapshot-retention": o.Snapshots, "--message-retention": o.Messages,
	} {
		if kept < 0 || kept > 0 && kept < time.Hour {
			return fmt.Errorf("%s is %s; it must be 0, for ever, or at least 1h", flag, kept)
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
	flags.StringSliceVar(&o.Audiences, "audience", []string{daemonapi.ServerAudience, daemonapi.FormerAudience}, "audiences of which the tokens of daemons must have one; the last of the defaults is that of pods made by former versions")
	o.GitStore.AddFlags(flags)
	o.Retention.AddFlags(flags)
	flags.Int64Var(&o.ImportBytes, "max-import-bytes", 512<<20, "size of the largest history that can be imported, as it is sent; it is kept in the folder for temporary files meanwhile")
	flags.Int64Var(&o.Limits.TaskBytes, "task-history-bytes", 2<<30, "bytes that the history of one task may take, about; 0 for no limit")
	flags.Int64Var(&o.Limits.NamespaceBytes, "namespace-history-bytes", 8<<30, "bytes that the histories of one namespace may take, about; 0 for no limit")
	flags.DurationVar(&o.Limits.Grace, "history-limit-grace", 3*time.Minute, "how long the output of agents waits for room when a limit is reached, before it is left out; at most 4m, and 3m if 0")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty in a cluster")
	flags.Float32Var(&o.KubeQPS, "kube-api-qps", 50, "requests to the API server in a second, in the long run")
	flags.IntVar(&o.KubeBurst, "kube-api-burst", 100, "requests to the API server at once")
	flags.StringVar(&o.ManagerLeaseNamespace, "manager-lease-namespace", "", "namespace of the lease "+rollback.LeaseName+", which shows when the API server's state was put back to an older copy; without it, that may go unnoticed")
	flags.DurationVar(&o.ShutdownGracePeriod, "shutdown-grace-period", 20*time.Second, "time that requests under way may take after a signal to end")
	flags.StringVar(&o.LogLevel, "log-level", "info", logging.LevelHelp)
}

func (o *Options) validate() error {
	if o.CertFile == "" || o.KeyFile == "" {
		return errors.New("--tls-cert-file and --tls-private-key-file are needed: tokens must not travel in the clear")
	}
	if o.MetricsBindAddress == o.HealthProbeBindAddress && !serving.Off(o.MetricsBindAddress) {
		return errors.New("--metrics-bind-address and --health-probe-bind-address must differ")
	}
	if o.Audiences != nil && len(o.Audiences) == 0 {
		return errors.New("--audience must name one at least: " + daemonapi.ServerAudience)
	}
	return errors.Join(o.Connections.Validate(), o.GitStore.validate(), o.Retention.validate(), o.validateAmounts())
}

// maxGrace is how long output may wait for room: preparing a pod, which waits for
// the same, may take five minutes.
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
