// Command manager runs Clew's controllers.
//
// One replica at a time leads and works; the others are on standby. It reads and
// writes the history store in Postgres and the Kubernetes API. It starts without
// Postgres as well: tasks continue, and their transitions wait in their status.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set when the program is built.
var version = "dev"

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command returns the program's command with its flags.
func command() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{
		Use:           "manager",
		Short:         "Run Clew's controllers",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return run(ctx, o)
		},
	}
	o.addFlags(c.Flags())
	c.SetContext(context.Background())
	return c
}
