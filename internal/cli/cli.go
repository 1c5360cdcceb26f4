// Package cli is the kubectl plugin, `kubectl clew`: a file a verb.
//
// It promises that it writes nothing but the fields a verb is about, under the
// field manager kubectl-clew; that nothing is taken back without a preview and
// a yes; that what it prints on standard output can be piped, with progress,
// colours and questions on the terminal alone; that text which an agent wrote
// cannot steer the terminal; and that its errors are sentences that name the
// next step. It talks to the Kubernetes API only, with the user's kubeconfig.
package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// fieldManager owns the fields that the plugin writes.
const fieldManager = "kubectl-clew"

// Options are what a test replaces; the zero value is what a user gets.
type Options struct {
	// Version is printed by --version.
	Version string
	// Clock tells the time; time.Now when nil.
	Clock func() time.Time
	// NewID makes up the id of a resume or rewind; a random one when nil.
	NewID func() (string, error)
	// Interactive has questions asked although In is no terminal.
	Interactive bool
	// Location is the time zone of what is printed; the local one when nil.
	Location *time.Location
}

// New gives the command `kubectl clew`. Its errors are for a person: print
// them after "error: " and exit with 1.
func New(streams genericiooptions.IOStreams, options Options) *cobra.Command {
	p := &plugin{
		IOStreams: streams,
		flags:     genericclioptions.NewConfigFlags(true),
		clock:     options.Clock,
		newID:     options.NewID,
		location:  options.Location,
		asks:      options.Interactive || isTerminal(streams.In),
	}
	p.flags.WrapConfigFn = p.wrapConfig
	if p.clock == nil {
		p.clock = time.Now
	}
	if p.newID == nil {
		p.newID = randomID
	}
	if p.location == nil {
		p.location = time.Local
	}
	root := &cobra.Command{
		Use:         "clew",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl clew"},
		Short:       "Checkpoint, rewind, fork and resume the work of coding agents",
		Long: `Checkpoint, rewind, fork and resume the work of coding agents.

Everything here can also be done by applying manifests: see
"kubectl explain tasks.clew.dev" and the kinds Checkpoint and Fork.`,
		Version:       options.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	p.flags.AddFlags(root.PersistentFlags())
	p.completeFlags(root)
	group(root,
		p.checkpointCommand(),
		p.resumeCommand(),
		p.rewindCommand(),
		p.forkCommand(),
		p.searchCommand(),
		p.snapshotCommand(),
		p.taskCommand(),
		p.timelineCommand(),
	)
	completionCommand(root)
	helpCommand(root)
	groupUsage(root)
	return root
}

// plugin is what all verbs share.
type plugin struct {
	genericiooptions.IOStreams
	flags    *genericclioptions.ConfigFlags
	clock    func() time.Time
	newID    func() (string, error)
	location *time.Location
	asks     bool // there is somebody to ask
}

// session is a plugin that has read its kubeconfig.
type session struct {
	*plugin
	config    *rest.Config
	client    client.WithWatch
	namespace string
}

// connect reads the kubeconfig. It does not reach out to the cluster yet.
func (p *plugin) connect() (*session, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to talk to: %w; name a kubeconfig with --kubeconfig or a context with --context", err)
	}
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the namespace from the kubeconfig: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, explainConnection(err)
	}
	return &session{plugin: p, config: config, client: c, namespace: namespace}, nil
}

func (p *plugin) wrapConfig(config *rest.Config) *rest.Config {
	config.QPS, config.Burst = 50, 300
	config.UserAgent = fieldManager
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return config
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // the kinds are compiled in: this cannot happen
		}
	}
	return scheme
}

// task gets a task of the session's namespace.
func (s *session) task(ctx context.Context, name string) (*v1alpha1.Task, error) {
	task := &v1alpha1.Task{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task)
	return task, s.explain(err, "task", name)
}

// noColor says whether the user wants none, by https://no-color.org.
func noColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }
