package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// printFlags adds kubectl's -o and the flags that belong to it.
func (p *plugin) printFlags(cmd *cobra.Command) *genericclioptions.PrintFlags {
	flags := genericclioptions.NewPrintFlags("").WithTypeSetter(newScheme())
	flags.AddFlags(cmd)
	return flags
}

// printed prints the object if the user chose an output format with -o, and reports
// whether they did.
func (p *plugin) printed(flags *genericclioptions.PrintFlags, object runtime.Object) (bool, error) {
	if !prints(flags) {
		return false, nil
	}
	printer, err := flags.ToPrinter()
	if err != nil {
		return true, err
	}
	out := p.Out
	if *flags.OutputFormat == "json" {
		out = jsonWriter{out}
	}
	if *flags.OutputFormat == "name" && apimeta.IsListType(object) {
		return true, apimeta.EachListItem(object, func(item runtime.Object) error { return printer.PrintObj(item, out) })
	}
	return true, printer.PrintObj(object, out)
}

// prints reports whether the user chose an output format.
func prints(flags *genericclioptions.PrintFlags) bool {
	return *flags.OutputFormat != "" || templated(flags)
}

// templated reports whether the user set --template.
func templated(flags *genericclioptions.PrintFlags) bool {
	f := flags.TemplatePrinterFlags
	return f != nil && f.TemplateArgument != nil && *f.TemplateArgument != ""
}

// previewOf returns where the preview of a request goes. That of a dry run is what was asked for, so
// it is output, unless the user chose an output format.
func (p *plugin) previewOf(d *dryRunFlag, flags *genericclioptions.PrintFlags) io.Writer {
	if d.changes() || prints(flags) {
		return p.ErrOut
	}
	return p.Out
}

// dryRunFlag is kubectl's --dry-run.
type dryRunFlag struct {
	server, client bool
}

// dryRunValues are the values of --dry-run.
func dryRunValues() []string { return []string{"none", "client", "server"} }

// add adds the flag to a command.
func (d *dryRunFlag) add(cmd *cobra.Command) {
	cmd.Flags().Var(d, "dry-run", `With "client", no request is sent, and the command prints what it would request; with "server", the cluster checks the request as well, without carrying it out; with "none", it carries it out.`)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "server"
	cmd.Flags().Lookup("dry-run").DefValue = "none"
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions(dryRunValues(), cobra.ShellCompDirectiveNoFileComp))
}

// changes reports whether the request is carried out.
func (d *dryRunFlag) changes() bool { return !d.server && !d.client }

// Type implements pflag.Value.
func (d *dryRunFlag) Type() string { return "string" }

// String implements pflag.Value.
func (d *dryRunFlag) String() string {
	switch {
	case d.server:
		return "server"
	case d.client:
		return "client"
	}
	return "none"
}

// Set implements pflag.Value.
func (d *dryRunFlag) Set(value string) error {
	if !slices.Contains(dryRunValues(), value) {
		return fmt.Errorf("must be %s, not %q", either(dryRunValues()), value)
	}
	d.client, d.server = value == "client", value == "server"
	return nil
}

// create creates an object, unless nothing is to be sent.
func (d *dryRunFlag) create(ctx context.Context, c client.Client, object client.Object) error {
	if d.client {
		return nil
	}
	options := []client.CreateOption{client.FieldOwner(fieldManager)}
	if d.server {
		options = append(options, client.DryRunAll)
	}
	return c.Create(ctx, object, options...)
}

// patch sends a patch of an object that has the change already, unless nothing is to be sent.
func (d *dryRunFlag) patch(ctx context.Context, c client.Client, object client.Object, patch client.Patch) error {
	if d.client {
		return nil
	}
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	if d.server {
		options = append(options, client.DryRunAll)
	}
	return c.Patch(ctx, object, patch, options...)
}

// merge sends a merge patch of some fields. If nothing is to be sent, only the object here gets
// them.
func (d *dryRunFlag) merge(ctx context.Context, c client.Client, object client.Object, fields []byte) error {
	if d.client {
		return json.Unmarshal(fields, object)
	}
	return d.patch(ctx, c, object, client.RawPatch(types.MergePatchType, fields))
}

// suffix marks the output of a dry run, as kubectl does.
func (d *dryRunFlag) suffix() string {
	switch {
	case d.server:
		return " (server dry run)"
	case d.client:
		return " (dry run)"
	}
	return ""
}

// enumFlag is a flag with a fixed set of values.
type enumFlag struct {
	value   string
	allowed []string
}

// enum adds an enumFlag to a command, with its completion.
func enum(cmd *cobra.Command, name, value, usage string, allowed ...string) *enumFlag {
	e := &enumFlag{value: value, allowed: allowed}
	cmd.Flags().Var(e, name, usage+" One of "+strings.Join(allowed, ", ")+".")
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
	return e
}

// Type implements pflag.Value.
func (e *enumFlag) Type() string { return "string" }

// String implements pflag.Value.
func (e *enumFlag) String() string { return e.value }

// Set implements pflag.Value. It ignores case, since nobody remembers it.
func (e *enumFlag) Set(value string) error {
	for _, allowed := range e.allowed {
		if strings.EqualFold(value, allowed) {
			e.value = allowed
			return nil
		}
	}
	return fmt.Errorf("must be one of %s, not %q", strings.Join(e.allowed, ", "), value)
}

// formatFlag adds -o for responses of the history API.
func formatFlag(cmd *cobra.Command, allowed ...string) *enumFlag {
	e := &enumFlag{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(e, "output", "o", "Output format. One of "+strings.Join(allowed, ", ")+".")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
	return e
}

// table prints rows under a header, as kubectl does.
func table(w io.Writer, header []string, rows [][]string) error {
	return tableTo(printers.GetNewTabWriter(w), header, rows)
}

// tabs is a writer of kubectl's tables. What follows a Flush has columns at least as wide as those before.
type tabs interface {
	io.Writer
	Flush() error
}

// tableTo prints rows to a table that may go on.
func tableTo(tab tabs, header []string, rows [][]string) error {
	if len(header) > 0 {
		fmt.Fprintln(tab, strings.Join(header, "\t"))
	}
	for _, row := range rows {
		fmt.Fprintln(tab, strings.Join(row, "\t"))
	}
	return tab.Flush()
}

// withoutEmpty returns a table without those of the named columns in which no row has anything.
func withoutEmpty(header []string, rows [][]string, columns ...string) ([]string, [][]string) {
	for _, column := range columns {
		at := slices.Index(header, column)
		if slices.ContainsFunc(rows, func(row []string) bool { return row[at] != "-" }) {
			continue
		}
		header = slices.Delete(header, at, at+1)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
	}
	return header, rows
}

// age formats the time since t as kubectl does, or returns - for a zero time.
func (p *plugin) age(t *metav1.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(p.clock().Sub(t.Time))
}

// stamp formats a time in the user's zone, or returns - for a zero time.
func (p *plugin) stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(p.location).Format(time.DateTime)
}

// plural formats a count with its noun: 1 file, 2 files.
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// verb returns the form of a verb for a number of things.
func verb(n int64, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// count abbreviates a number: 950, 12.3k, 4.5M.
func count(n int64) string {
	switch {
	case n < 1000:
		return strconv.FormatInt(n, 10)
	case n < 999_950:
		return strings.Replace(fmt.Sprintf("%.1fk", float64(n)/1e3), ".0k", "k", 1)
	}
	return strings.Replace(fmt.Sprintf("%.1fM", float64(n)/1e6), ".0M", "M", 1)
}

// dollars formats an amount given in millionths of a US dollar, or returns - for
// zero. Amounts below ten cents get more decimal places.
func dollars(micro int64) string {
	amount := float64(micro) / 1e6
	switch {
	case micro < 0:
		return "-" + dollars(-micro)
	case micro == 0:
		return "-"
	case micro < 1000:
		return fmt.Sprintf("$%.5f", amount)
	case micro < 100_000:
		return fmt.Sprintf("$%.4f", amount)
	}
	return fmt.Sprintf("$%.2f", amount)
}

// humanBytes formats a size with a binary unit.
func humanBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, exponent := float64(n)/unit, 0
	for value >= unit && exponent < 4 {
		value, exponent = value/unit, exponent+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[exponent])
}
