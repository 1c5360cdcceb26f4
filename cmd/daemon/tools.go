package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/toolclient"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func newTools() *cobra.Command {
	var runDir string
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "Serve Clew's tools by MCP on standard input and output; run by the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := toolclient.Client{Socket: filepath.Join(runDir, socket.Name), Name: "clew-daemon tools", Version: version}
			return toolclient.Bridge(cmd.Context(), client, os.Stdin, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", daemonapi.RunPath, "folder shared with the daemon")
	return cmd
}

// newClew returns the command line for the agent.
func newClew() *cobra.Command {
	return toolclient.NewCommand(filepath.Join(daemonapi.RunPath, socket.Name), version)
}
