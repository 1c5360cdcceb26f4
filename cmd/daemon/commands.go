package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/shim"
	"github.com/clew-dev/clew/internal/daemon/sidecar"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// tokenFiles are the files with the pod's tokens.
type tokenFiles struct{ server, gitStore string }

func (t *tokenFiles) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.server, "token-file", filepath.Join(daemonapi.TokenPath, daemonapi.ServerTokenFile), "file with the pod's token for the server")
	flags.StringVar(&t.gitStore, "gitstore-token-file", "", "file with the pod's token for the gitstore; if empty, "+daemonapi.GitStoreTokenFile+" in the folder of --token-file")
}

// ofGitStore returns the file with the token for the gitstore. Pods of older managers have
// one token for server and gitstore.
func (t *tokenFiles) ofGitStore() string {
	if t.gitStore != "" {
		return t.gitStore
	}
	beside := filepath.Join(filepath.Dir(t.server), daemonapi.GitStoreTokenFile)
	if _, err := os.Stat(beside); errors.Is(err, fs.ErrNotExist) {
		return t.server
	}
	return beside
}

// pod is the configuration of the pod and its clients, for prepare and run.
type pod struct {
	config daemonapi.Config
	server *gatewayclient.Client
	remote func() (worktree.Remote, error)
	close  func()
}

func readPod(tokens tokenFiles) (*pod, error) {
	text := os.Getenv(daemonapi.ConfigEnv)
	if text == "" {
		return nil, errors.New(daemonapi.ConfigEnv + " is not set: this program runs in the pods that Clew's manager makes")
	}
	cfg, err := daemonapi.DecodeConfig(text)
	if err != nil {
		return nil, err
	}
	cfg.PodUID = os.Getenv(daemonapi.PodUIDEnv)
	server, err := gatewayclient.New(gatewayclient.Config{URL: cfg.ServerURL, CABundle: cfg.CABundle, TokenFile: tokens.server, Version: version,
		SnapshotEveryMessages: cfg.Policy.SnapshotEveryMessages, Source: cfg.Source})
	if err != nil {
		return nil, err
	}
	caFile, remove, err := volume.CAFile(cfg.CABundle)
	if err != nil {
		return nil, err
	}
	return &pod{config: cfg, server: server, remote: volume.Remote(cfg.GitStoreURL, tokens.ofGitStore(), caFile), close: remove}, nil
}

func newPrepare(logs *logOptions) *cobra.Command {
	var tokens tokenFiles
	var root, runDir, credentials, termination string
	var retryFor time.Duration
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Prepare the task's volume for the agent, then exit",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			capacity.SetGoMemoryLimit(capacity.ForDaemon(capacity.MemoryLimit()))
			log, err := logs.logger("prepare")
			if err != nil {
				return err
			}
			cfg := prepare.Config{
				Prompt: os.Getenv(daemonapi.PromptEnv), RunDir: runDir, CredentialsDir: credentials, RetryFor: retryFor, Log: log,
				Paths: volume.Paths{Worktree: filepath.Join(root, "worktree"), Home: filepath.Join(root, "home"), State: filepath.Join(root, "clew")},
			}
			result := runPrepare(cmd.Context(), cfg, tokens)
			message, err := prepare.Encode(result)
			if err != nil {
				return err
			}
			if err := os.WriteFile(termination, message, 0o644); err != nil {
				log.Error(err, "the result could not be written", "result", string(message))
			}
			if result.Reason != v1alpha1.ReasonWorkspacePrepared {
				return exitError(1)
			}
			log.Info("the workspace is prepared", "restored", result.Restored, "operation", result.Operation)
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "volume", daemonapi.VolumePath, "where the root of the task's volume is mounted")
	cmd.Flags().StringVar(&runDir, "run-dir", daemonapi.RunPath, "folder shared with the agent's container")
	tokens.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&credentials, "credentials-dir", daemonapi.RepositoryPath, "folder with the repository's credentials: username and password, or token, and ca.crt; or ssh-privatekey and known_hosts")
	cmd.Flags().StringVar(&termination, "termination-log", "/dev/termination-log", "file that the result is written to, as JSON")
	cmd.Flags().DurationVar(&retryFor, "retry-for", 5*time.Minute, "how long a failed step that may succeed later is retried")
	return cmd
}

func runPrepare(ctx context.Context, cfg prepare.Config, tokens tokenFiles) daemonapi.PrepareResult {
	broken := func(err error) daemonapi.PrepareResult {
		cfg.Log.Error(err, "the workspace is not prepared")
		return daemonapi.PrepareResult{Reason: v1alpha1.ReasonPrepareFailed, Message: err.Error()}
	}
	p, err := readPod(tokens)
	if err != nil {
		return broken(err)
	}
	defer p.close()
	if cfg.Executable, err = os.Executable(); err != nil {
		return broken(err)
	}
	if cfg.Mask, err = mask.FromEnvironment(os.Environ(), daemonapi.MaskPath); err != nil {
		return broken(err)
	}
	cfg.Pod, cfg.Server, cfg.Remote = p.config, p.server, p.remote
	cfg.Log = cfg.Log.WithValues("namespace", p.config.Namespace, "task", p.config.Task, "attempt", p.config.Attempt)
	return prepare.Run(ctx, cfg)
}

func newRun(logs *logOptions) *cobra.Command {
	var tokens tokenFiles
	cfg := sidecar.Config{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Record the agent's work and take checkpoints, until the pod ends",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			capacity.SetGoMemoryLimit(capacity.ForDaemon(capacity.MemoryLimit()))
			log, err := logs.logger("daemon")
			if err != nil {
				return err
			}
			p, err := readPod(tokens)
			if err != nil {
				return err
			}
			defer p.close()
			if cfg.Mask, err = mask.FromEnvironment(os.Environ(), daemonapi.MaskPath); err != nil {
				return err
			}
			cfg.Pod, cfg.Server, cfg.Remote, cfg.Version = p.config, p.server, p.remote, version
			cfg.Log = log.WithValues("namespace", p.config.Namespace, "task", p.config.Task, "attempt", p.config.Attempt)
			return sidecar.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Paths.Worktree, "worktree", daemonapi.WorktreePath, "the agent's worktree")
	cmd.Flags().StringVar(&cfg.Paths.Home, "home", daemonapi.HomePath, "the agent's home")
	cmd.Flags().StringVar(&cfg.Paths.State, "state-dir", daemonapi.StatePath, "the daemon's own folder on the task's volume")
	cmd.Flags().StringVar(&cfg.RunDir, "run-dir", daemonapi.RunPath, "folder shared with the agent's container")
	tokens.addFlags(cmd.Flags())
	return cmd
}

func newAgent(logs *logOptions) *cobra.Command {
	var socketPath, conversation, runDir string
	var programWords int
	cmd := &cobra.Command{
		Use:   "agent [flags] -- command [argument...]",
		Short: "Run the agent and connect it to the daemon",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// The container's log is the agent's, so log little, and as text.
			quiet := *logs
			if !cmd.Flags().Changed("log-format") {
				quiet.format = "text"
			}
			log, err := quiet.logger("clew")
			if err != nil {
				return err
			}
			masker, err := mask.FromEnvironment(os.Environ(), daemonapi.MaskPath)
			if err != nil { // the agent cannot read those files either
				log.Error(err, "some of the agent's Secrets cannot be masked")
			}
			signals := make(chan os.Signal, 64)
			signal.Notify(signals, shim.Signals()...)
			// Not the command's context, which ends with the first signal.
			code, err := shim.Run(context.Background(), shim.Config{
				Socket: socketPath, Command: args, ProgramWords: programWords, Env: os.Environ(), Conversation: conversation,
				RunDir: runDir, Mask: masker,
				Stdout: os.Stdout, Stderr: os.Stderr, Log: log,
			}, signals)
			if err != nil {
				return err
			}
			return exitError(code)
		},
	}
	cmd.Flags().StringVar(&socketPath, "socket", filepath.Join(daemonapi.RunPath, socket.Name), "the daemon's socket")
	cmd.Flags().StringVar(&conversation, "conversation", daemonapi.ConversationPath, "file with the conversation so far, passed to the agent in "+shim.ConversationEnv)
	cmd.Flags().StringVar(&runDir, "run-dir", daemonapi.RunPath, "folder with the launch plan that prepare left")
	cmd.Flags().IntVar(&programWords, "program-words", 0, "how many words of the command are the program, before its arguments; 0 if not known")
	return cmd
}

func newHook() *cobra.Command {
	var runDir, agentType string
	var timeout time.Duration
	var answerNeeded bool
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Wait for the checkpoint or the answer before a risky tool; run by the agent before each tool",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if agentType == "" {
				plan, err := launchplan.Read(runDir)
				if err != nil {
					return unanswered(cmd, err, answerNeeded)
				}
				agentType = string(plan.AgentType)
			}
			refused, err := shim.AwaitTool(cmd.Context(), shim.HookConfig{AgentType: v1alpha1.AgentType(agentType), Socket: filepath.Join(runDir, socket.Name),
				Stdin: cmd.InOrStdin(), Timeout: timeout})
			switch {
			case err != nil:
				return unanswered(cmd, err, answerNeeded)
			case refused != "":
				fmt.Fprintln(cmd.ErrOrStderr(), refused)
				return hookRefuses
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", daemonapi.RunPath, "folder shared with the daemon")
	cmd.Flags().StringVar(&agentType, "agent", "", "kind of the agent; if empty, that of the launch plan")
	cmd.Flags().DurationVar(&timeout, "timeout", 9*time.Minute, "how long the daemon may take before the tool runs without a checkpoint")
	cmd.Flags().BoolVar(&answerNeeded, "answer-needed", false, "refuse the tool if the daemon does not answer")
	return cmd
}

// hookRefuses is the exit code by which a hook keeps every kind of agent from running the tool. The
// agent reads why on its standard error.
const hookRefuses = exitError(2)

// unanswered ends a hook that has got no answer from the daemon: that must not stop the agent, unless
// the task's policy needs an answer.
func unanswered(cmd *cobra.Command, err error, answerNeeded bool) error {
	if answerNeeded {
		fmt.Fprintln(cmd.ErrOrStderr(), "The tool is not run, since Clew has not said that it may:", err)
		return hookRefuses
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "clew: the tool runs without a checkpoint before it:", err)
	return nil
}

func newReady() *cobra.Command {
	var runDir string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Wait until the daemon is up, as the gate in front of the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			return socket.AwaitReady(ctx, runDir)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Second, "how long the daemon may take")
	cmd.Flags().StringVar(&runDir, "run-dir", daemonapi.RunPath, "folder shared with the agent's container")
	return cmd
}
