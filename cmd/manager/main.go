// Command manager runs Clew's controllers.
//
// One replica at a time leads and works; the others stand by. It reads the
// history store in Postgres and writes to the Kubernetes API alone. It starts
// without Postgres, too: tasks go on, and their transitions wait in status.
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
