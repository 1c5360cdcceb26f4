package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exactly checks that each of the named arguments is given, and no more.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return fmt.Errorf("name the %s: %s", strings.ToLower(names[len(args)]), cmd.UseLine())
		}
		return noMore(cmd, args, len(names))
	}
}

// atMost allows the named arguments, and no more.
func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return noMore(cmd, args, len(names)) }
}

func noMore(cmd *cobra.Command, args []string, limit int) error {
	if len(args) > limit {
		return fmt.Errorf("%q is one argument too many: %s; see %s --help", args[limit], cmd.UseLine(), cmd.CommandPath())
	}
	return nil
}
