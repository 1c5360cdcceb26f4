package cli

import "github.com/spf13/cobra"

func (p *plugin) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "Read, list, export, import and delete the history of tasks",
		Long: `Read, list, export, import and delete the history of tasks: what their agents
said and did. A history outlives its Task object, until delete-history deletes it.`,
	}
	return group(cmd,
		p.taskHistoryCommand(),
		p.taskListCommand(),
		p.taskExportCommand(),
		p.taskImportCommand(),
		p.taskDeleteHistoryCommand(),
	)
}
