// Command clew-daemon is the part of Clew that runs in a task's pod: prepare (the init
// container), run (the sidecar), agent (the shim in the user's image), hook (which an agent
// runs before its tools), tools (which an agent runs for Clew's own tools) and ready (the gate
// between the sidecar's start and the agent's); and publish, which runs in a pod of its own.
// Under the name clew it is the command line of the tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/internal/daemon/toolclient"
	"github.com/clew-dev/clew/internal/logging"
)

// version is set by the linker.
var version = "dev"

// exitError ends the program with an exit code and prints nothing.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	name, command := "clew-daemon", newCommand
	if filepath.Base(os.Args[0]) == toolclient.Program {
		name, command = toolclient.Program, newClew
	}
	err := command().ExecuteContext(ctx)
	stop()
	var code exitError
	if errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	logs := &logOptions{}
	cmd := &cobra.Command{
		Use:           "clew-daemon",
		Short:         "The part of Clew that runs in a task's pod",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().StringVar(&logs.level, "log-level", "info", logging.LevelHelp)
	cmd.PersistentFlags().StringVar(&logs.format, "log-format", "json", "format of the log: json or text")
	cmd.AddCommand(newPrepare(logs), newRun(logs), newAgent(logs), newHook(), newTools(), newReady(), newPublish(logs))
	return cmd
}

// logOptions are the flags for the log, which goes to standard error.
type logOptions struct{ level, format string }

func (o logOptions) logger(name string) (logr.Logger, error) {
	log, err := logging.New(logging.Options{Level: o.level, Format: o.format})
	return log.WithName(name), err
}
