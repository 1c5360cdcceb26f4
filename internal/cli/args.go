package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// exactly requires all of the named arguments and no others.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return fmt.Errorf("missing argument %s; usage: %s", names[len(args)], cmd.UseLine())
		}
		return limitArgs(cmd, args, len(names))
	}
}

// atMost allows the named arguments and no others.
func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return limitArgs(cmd, args, len(names)) }
}

// theFirst requires the first of the named arguments, and allows the others.
func theFirst(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("missing argument %s; usage: %s", names[0], cmd.UseLine())
		}
		return limitArgs(cmd, args, len(names))
	}
}

// limitArgs rejects arguments beyond the limit.
func limitArgs(cmd *cobra.Command, args []string, limit int) error {
	if len(args) > limit {
		return fmt.Errorf("unexpected argument %q; usage: %s; see %s --help", args[limit], cmd.UseLine(), cmd.CommandPath())
	}
	return nil
}
