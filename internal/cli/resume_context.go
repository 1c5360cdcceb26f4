package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// contextFlags limit how much of the conversation is put into the prompt of an agent that
// cannot resume its session.
type contextFlags struct {
	numbers map[string]*int64 // by their names in spec.resume.context
	summary *enumFlag
	flags   *pflag.FlagSet
}

// contextNumbers lists the limits: each one's field, flag, usage and bounds.
func contextNumbers() []struct {
	field, flag, usage string
	least, most        int64
} {
	return []struct {
		field, flag, usage string
		least, most        int64
	}{
		{"messages", "context-messages", "number of the newest messages to include.", 0, 10_000},
		{"toolCalls", "context-tool-calls", "number of the newest tool calls to include.", 0, 10_000},
		{"toolResultBytes", "context-result-bytes", "bytes of each tool result to include.", 0, 65_536},
		{"bytes", "context-bytes", "bytes to include in total.", 1000, 1_000_000},
	}
}

// contextUsage begins the usage of all context flags.
const contextUsage = "If the conversation is rendered into the prompt: "

// add adds the flags to a command.
func (c *contextFlags) add(cmd *cobra.Command) {
	c.flags, c.numbers = cmd.Flags(), map[string]*int64{}
	for _, n := range contextNumbers() {
		c.numbers[n.field] = cmd.Flags().Int64(n.flag, 0, contextUsage+n.usage)
	}
	c.summary = enum(cmd, "context-summary", "", contextUsage+"whether a summary of the rest comes first.",
		string(v1alpha1.ConversationInclude), string(v1alpha1.ConversationExclude))
}

// check rejects limits outside of their bounds.
func (c *contextFlags) check() error {
	for _, n := range contextNumbers() {
		if value := *c.numbers[n.field]; c.flags.Changed(n.flag) && (value < n.least || value > n.most) {
			return fmt.Errorf("--%s is %d; it must be from %d to %d", n.flag, value, n.least, n.most)
		}
	}
	return nil
}

// patch returns the patch of spec.resume.context: null if no limit is set. It removes
// limits that are not set, since an earlier request may have set them.
func (c *contextFlags) patch() any {
	patch, set := map[string]any{"summary": orNull(c.summary.value)}, c.summary.value != ""
	for _, n := range contextNumbers() {
		patch[n.field] = nil
		if c.flags.Changed(n.flag) {
			patch[n.field], set = *c.numbers[n.field], true
		}
	}
	if !set {
		return nil
	}
	return patch
}

// orNull returns nil for an empty string, so that a merge patch removes the value of an
// earlier request.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
