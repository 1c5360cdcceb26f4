package cli

import "github.com/spf13/cobra"

func (p *plugin) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "Read, list, export and delete what tasks and their agents said and did",
		Long: `Read, list, export and delete what tasks and their agents said and did. The
history outlives the Task objects, until it is deleted with delete-history.`,
	}
	return group(cmd,
		p.taskHistoryCommand(),
		p.taskListCommand(),
		p.taskExportCommand(),
		p.taskImportCommand(),
		p.taskDeleteHistoryCommand(),
	)
}
