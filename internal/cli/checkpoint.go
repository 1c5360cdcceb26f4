package cli

import "github.com/spf13/cobra"

func (p *plugin) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints", "ckpt"},
		Short:   "Take, list and show checkpoints",
		Long: `Take, list and show checkpoints. A checkpoint holds a task's code, the agent's
own state and the position in the conversation at one moment; the task can be
rewound to it, or forked from it.`,
	}
	return group(cmd, p.checkpointCreateCommand(), p.checkpointListCommand(), p.checkpointShowCommand())
}
