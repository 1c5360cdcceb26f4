// Command server serves the daemons of tasks and the history API.
//
//	server serve    serve daemons and the aggregated API over HTTPS
//	server migrate  migrate the schema of the history database, and exit
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	root := &cobra.Command{
		Use:           "server",
		Short:         "Serve the daemons of tasks and the history API",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(), migrateCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveCommand() *cobra.Command {
	var options server.Options
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve daemons and the aggregated API over HTTPS",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return server.Run(c.Context(), options) },
	}
	options.AddFlags(command.Flags())
	return command
}

func migrateCommand() *cobra.Command {
	var database server.DSNOptions
	command := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the schema of the history database, and exit",
		Long:  "Migrate the schema of the history database, and exit. The command serve does the same when it starts.",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dsn, err := database.DSN()
			if err != nil {
				return err
			}
			return postgres.Migrate(c.Context(), dsn)
		},
	}
	database.AddFlags(command.Flags())
	return command
}
