// Command gitstore serves the git repositories that hold checkpoints.
//
//	gitstore serve             serve repositories over HTTPS
//	gitstore hook pre-receive  check a push; run by git
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/internal/gitstore"
)

func main() {
	root := &cobra.Command{
		Use:           "gitstore",
		Short:         "Serve the git repositories that hold checkpoints",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(), hookCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveCommand() *cobra.Command {
	var options gitstore.Options
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve repositories over HTTPS",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return fmt.Errorf("the hook needs the path of this program: %w", err)
			}
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return gitstore.Run(ctx, options, []string{binary, "hook", "pre-receive"})
		},
	}
	options.AddFlags(command.Flags())
	return command
}

func hookCommand() *cobra.Command {
	hook := &cobra.Command{Use: "hook", Short: "Hooks that git runs", Hidden: true}
	hook.AddCommand(&cobra.Command{
		Use:   "pre-receive",
		Short: "Check the ref updates of a push",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return gitstore.PreReceive(os.Stdin, os.Stdout, os.Getenv)
		},
	})
	return hook
}
