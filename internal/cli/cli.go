// Package cli implements the kubectl plugin, `kubectl clew`, with one file per
// command.
//
// It promises that a command writes only the fields it is about, under the field
// manager kubectl-clew; that nothing is rewound or deleted without a preview and
// a confirmation; that standard output can be piped, because progress, colours
// and questions appear on a terminal only; that text written by an agent cannot
// control the terminal; and that errors are sentences that name the next step.
// It uses the Kubernetes API only, with the user's kubeconfig.
package cli

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
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

// Options are the settings that tests replace; users get the zero value.
type Options struct {
	// Version is printed by --version.
	Version string
	// Clock returns the current time; nil means time.Now.
	Clock func() time.Time
	// NewID generates the id of a resume or rewind; nil means a random id.
	NewID func() (string, error)
	// Interactive enables questions even though In is not a terminal.
	Interactive bool
	// Location is the time zone of printed times; nil means the local zone.
	Location *time.Location
}

// New returns the command `kubectl clew`. Its errors are written for people: print them
// after "error: " if Exit says so, and exit with its code.
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

Everything these commands do can also be done by applying manifests: see
"kubectl explain tasks.clew.dev" and the kinds Checkpoint, Fork and ConversationSnapshot.`,
		Version:       options.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.PersistentPreRun = func(cmd *cobra.Command, args []string) {
		if cmd.Name() == cobra.ShellCompRequestCmd {
			p.words = args[:max(len(args)-1, 0)]
		}
	}
	p.flags.AddFlags(root.PersistentFlags())
	p.completeFlags(root)
	group(root,
		p.approveCommand(),
		p.checkpointCommand(),
		p.compareCommand(),
		p.deleteCommand(),
		p.denyCommand(),
		p.diffCommand(),
		p.driftCommand(),
		p.resumeCommand(),
		p.rewindCommand(),
		p.forkCommand(),
		p.pickCommand(),
		p.publishCommand(),
		p.queueCommand(),
		p.searchCommand(),
		p.snapshotCommand(),
		p.suspendCommand(),
		p.taskCommand(),
		p.timelineCommand(),
		p.treeCommand(),
		p.undoCommand(),
	)
	completionCommand(root)
	helpCommand(root)
	optionsCommand(root)
	usage(root)
	root.SetFlagErrorFunc(explainFlag)
	return root
}

// plugin holds what all commands share.
type plugin struct {
	genericiooptions.IOStreams
	flags    *genericclioptions.ConfigFlags
	clock    func() time.Time
	newID    func() (string, error)
	location *time.Location
	asks     bool        // whether questions can be asked
	words    []string    // the words before the one that a shell completes, "--" included
	said     sync.Map    // the states of progress that were shown
	silent   atomic.Bool // no progress is shown: another program has the terminal
}

// session is a plugin that has read its kubeconfig.
type session struct {
	*plugin
	config    *rest.Config
	client    client.WithWatch
	namespace string
}

// connect reads the kubeconfig. It does not contact the cluster yet.
func (p *plugin) connect() (*session, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster is configured: %w; choose a kubeconfig with --kubeconfig or a context with --context", err)
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

// wrapConfig raises client-go's default request limits, identifies the plugin to the API
// server, and prints the server's warnings.
func (p *plugin) wrapConfig(config *rest.Config) *rest.Config {
	config.QPS, config.Burst = 50, 300
	config.UserAgent = fieldManager
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return config
}

// newScheme returns a scheme with Kubernetes' and Clew's kinds.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // cannot happen: the kinds are compiled in
		}
	}
	return scheme
}

// noColor reports whether the user disabled colours, as https://no-color.org defines.
func noColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }
