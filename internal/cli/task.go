package cli

import "github.com/spf13/cobra"

func (p *plugin) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "Read what a task and its agent said and did",
	}
	cmd.AddCommand(p.taskHistoryCommand())
	return cmd
}
