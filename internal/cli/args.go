package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// hintAtFlags says which of the paths after -- are written like a flag of the command: a file may
// have such a name, but most who write one there mean the flag.
func hintAtFlags(w io.Writer, cmd *cobra.Command, paths []string) {
	for _, path := range paths {
		name, _, _ := strings.Cut(path, "=")
		var flag *pflag.Flag
		if long, ok := strings.CutPrefix(name, "--"); ok {
			flag = cmd.Flags().Lookup(long)
		} else if short, ok := strings.CutPrefix(name, "-"); ok && len(short) == 1 {
			flag = cmd.Flags().ShorthandLookup(short)
		}
		if flag != nil {
			fmt.Fprintf(w, "hint: %s comes after --, and is taken for a path; write flags before --\n", oneLine(path))
		}
	}
}

// notBoth rejects two flags of which only one can be used. The reason completes the sentence.
func notBoth(cmd *cobra.Command, one, other, reason string) error {
	if cmd.Flags().Changed(one) && cmd.Flags().Changed(other) {
		return fmt.Errorf("use only one of --%s and --%s: %s", one, other, reason)
	}
	return nil
}

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
