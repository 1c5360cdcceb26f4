package cli

import "github.com/spf13/cobra"

func (p *plugin) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints", "ckpt"},
		Short:   "Take, list and look at checkpoints",
		Long: `Take, list and look at checkpoints: moments of a task that can be gone back to,
with its code, the agent's own state and the position in the conversation.`,
	}
	return group(cmd, p.checkpointCreateCommand(), p.checkpointListCommand(), p.checkpointShowCommand())
}
