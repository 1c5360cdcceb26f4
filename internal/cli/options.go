package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// optionsCommand adds `options`, which prints the flags that all commands have.
func optionsCommand(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:   "options",
		Short: "List the flags that all commands have",
		Long:  "List the flags that all commands have, such as --namespace and --context. They are those of kubectl.",
		Example: `  # All of them
  kubectl clew options`,
		Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprint(cmd.OutOrStdout(), "These flags can be passed to any command:\n\n"+root.PersistentFlags().FlagUsages())
		},
	})
}

// usage makes the help of a command show its own flags alone, and names the command that lists
// those of all commands. The help of a group has no usage line without a subcommand: called that
// way, a group only prints its help.
func usage(root *cobra.Command) {
	const options = "\n\nUse \"" + `{{.Root.DisplayName}} options` + "\" for the flags that all commands have, such as --namespace.\n"
	template := root.UsageTemplate()
	if i := strings.Index(template, "{{if .HasAvailableInheritedFlags}}"); i >= 0 {
		if _, rest, found := strings.Cut(template[i:], "{{end}}"); found {
			template = template[:i] + rest
		}
	}
	template = strings.NewReplacer(
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}",
		".LocalFlags.FlagUsages", ".LocalNonPersistentFlags.FlagUsages",
	).Replace(template)
	root.SetUsageTemplate(strings.TrimRight(template, "\n") + options)
}

// explainFlag adds to the error for an unknown flag those of the command with a similar name.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if len(name) == 1 && name[0] >= '0' && name[0] <= '9' {
		return fmt.Errorf("%w; a number with a dash before it is read as a flag: numbers of checkpoints and messages begin at 1; see `%s --help`", err, cmd.CommandPath())
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: maxSuggestionDistance} // cobra compares names of commands only
	short := len(name) <= maxSuggestionDistance+1                              // every short name is near to a short name
	if short {
		flags.SuggestionsMinimumDistance = 1
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if inherited := cmd.InheritedFlags().Lookup(f.Name) != nil; !f.Hidden && !(short && inherited) {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	near := flags.SuggestionsFor(name)
	if len(near) == 0 || len(name) == 1 {
		return fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
	}
	for i := range near {
		near[i] = "--" + near[i]
	}
	return fmt.Errorf("%w; did you mean %s?", err, either(near))
}
