package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// nearEnough is how many letters a word may differ from a command's name for the
// command to be what was perhaps meant.
const nearEnough = 2

// group makes a command that does nothing by itself but hold others. A word that
// names none of them is an error: left to itself, the library answers it with the
// help, as if all were well.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	onlyGroups(cmd)
	return cmd
}

func onlyGroups(cmd *cobra.Command) {
	cmd.Args = knownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// completionCommand makes `completion` fail, too, for a shell that it does not know.
func completionCommand(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			onlyGroups(cmd)
		}
	}
}

// groupUsage removes from a group's help the usage line without a command: a group
// that is called so does nothing but print its help.
func groupUsage(root *cobra.Command) {
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
}

// knownCommand refuses a word that is none of the group's commands, and names
// those that are near it, or else all.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = nearEnough
	none := fmt.Sprintf("%q is no command of %s", args[0], cmd.CommandPath())
	if near := slices.Compact(cmd.SuggestionsFor(args[0])); len(near) > 0 {
		for i := range near {
			near[i] = "`" + cmd.CommandPath() + " " + near[i] + "`"
		}
		return errors.New(none + "; did you mean " + either(near) + "?")
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("%s; it has %s: see `%s --help`", none, strings.Join(names, ", "), cmd.CommandPath())
}

// either lists words of which one is meant.
func either(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// helpCommand makes `help` fail, too, for a command that does not exist.
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
