package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// maxSuggestionDistance is the edit distance up to which a command is suggested for
// an unknown word.
const maxSuggestionDistance = 2

// group adds subcommands to a command that does nothing else. An unknown subcommand
// is an error: by default, cobra prints the help and exits with 0.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	requireSubcommand(cmd)
	return cmd
}

// requireSubcommand makes a command print its help without arguments, and fail for an
// unknown subcommand.
func requireSubcommand(cmd *cobra.Command) {
	cmd.Args = knownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// completionCommand adds `completion` and makes it fail for an unknown shell.
func completionCommand(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			requireSubcommand(cmd)
		}
	}
}

// knownCommand rejects an unknown subcommand. The error suggests similar commands, or
// lists all of them if none is similar.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = maxSuggestionDistance
	unknown := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := slices.Compact(cmd.SuggestionsFor(args[0])); len(near) > 0 {
		for i := range near {
			near[i] = "`" + cmd.CommandPath() + " " + near[i] + "`"
		}
		return errors.New(unknown + "; did you mean " + either(near) + "?")
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("%s; the commands are %s; see `%s --help`", unknown, strings.Join(names, ", "), cmd.CommandPath())
}

// either joins words with commas and a final "or".
func either(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// helpCommand adds `help` and makes it fail for an unknown command.
func helpCommand(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Run, cmd.RunE = nil, func(_ *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if found.HasAvailableSubCommands() {
				if err := knownCommand(found, rest); err != nil {
					return err
				}
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		}
	}
}
