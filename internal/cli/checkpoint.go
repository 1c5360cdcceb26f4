package cli

import "github.com/spf13/cobra"

func (p *plugin) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints", "ckpt"},
		Short:   "Take, list, show, verify, branch, prune and restore checkpoints",
		Long: `Take, list, show, verify, branch, prune and restore checkpoints. A checkpoint holds a task's code, the agent's
own state and the position in the conversation at one moment; the task can be
rewound to it, or forked from it.

A task keeps only as many Checkpoint objects as its checkpointPolicy.retention says.
The history keeps every checkpoint, and the gitstore its code: each command that
takes a number takes that of a checkpoint without an object, too. A number, and a
word such as latest, mean the same whatever objects are named: a Checkpoint object
with such a name is named by its number.`,
	}
	return group(cmd, p.checkpointCreateCommand(), p.checkpointListCommand(), p.checkpointShowCommand(),
		p.checkpointBranchCommand(), p.checkpointPruneCommand(), p.checkpointRestoreCommand(), p.checkpointVerifyCommand())
}
