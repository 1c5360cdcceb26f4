package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// suiteInvocation runs the Ginkgo suites of packages, each in a number of processes.
func suiteInvocation(set string, processes int, timeout, tags string, packages []string) invocation {
	args := []string{"--procs", fmt.Sprint(processes), "--randomize-all", "--keep-going", "--timeout", timeout}
	if tags != "" {
		args = append(args, "--tags", tags)
	}
	return invocation{set: set, dir: ".", ginkgo: true, args: append(append(args, packages...), "--", "-test.run=^"+specs+"$")}
}

// runSuites runs Ginkgo and adds what it reports to the tally.
func (i invocation) runSuites(ctx context.Context, pattern string, total *tally) error {
	folder, err := os.MkdirTemp("", "clew-suites-")
	if err != nil {
		return fmt.Errorf("make a folder for the reports: %w", err)
	}
	defer os.RemoveAll(folder)
	args := append([]string{"tool", "ginkgo", "--no-color", "--json-report", "report.json", "--output-dir", folder}, i.args...)
	narrow := []string{"--fail-on-empty"} // for a whole suite, which must have specs
	if pattern != "" {
		narrow = []string{"--focus", pattern}
	}
	args = slices.Insert(args, 2, narrow...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = i.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	output := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = output, output
	runErr := cmd.Run()
	reports, err := readReports(filepath.Join(folder, "report.json"))
	if err != nil {
		return fmt.Errorf("%w\n%s", errors.Join(err, runErr), output)
	}
	before := total.failed
	for _, report := range reports {
		total.addSuite(report, output.String(), os.Stdout)
	}
	if runErr != nil && total.failed == before {
		return fmt.Errorf("ginkgo: %w\n%s", runErr, output)
	}
	return nil
}

// readReports reads the report of all suites. The file is missing if none could be built.
func readReports(path string) ([]types.Report, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the report of the suites: %w", err)
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("read the report of the suites: %w", err)
	}
	return reports, nil
}

// addSuite counts the specs of a suite, and prints its line and its failures in full. A
// suite that fails without a failed spec, for instance because it does not build, counts as
// one failure, with Ginkgo's output.
func (t *tally) addSuite(report types.Report, output string, w io.Writer) {
	name := packageOf(report.SuitePath)
	passed, before := 0, len(t.failures)
	setup := map[string]bool{} // failures of setup, which every process may report
	for _, spec := range report.SpecReports {
		text := specText(spec)
		t.soak.readSpec(specName(spec), spec)
		switch {
		case spec.Failed() && !spec.LeafNodeType.Is(types.NodeTypeIt) && setup[spec.FailureLocation().String()]:
		case spec.Failed():
			setup[spec.FailureLocation().String()] = true
			t.addFailure(name+" "+specName(spec)+" ("+spec.State.String()+")", text)
		case !spec.LeafNodeType.Is(types.NodeTypeIt): // setup that succeeded
		case spec.State.Is(types.SpecStatePassed):
			passed++
		default:
			t.skipped++
			t.skips = append(t.skips, name+" "+specName(spec))
		}
	}
	if report.SuiteHasProgrammaticFocus {
		t.addFailure(name+" runs some of its specs only", "a spec is focused (FIt, FDescribe, Focus): remove the focus")
	}
	if !report.SuiteSucceeded && len(t.failures) == before {
		t.addFailure(name+" "+strings.Join(report.SpecialSuiteFailureReasons, ", "), output)
	}
	t.passed += passed
	t.printPackage(name, passed, t.failures[before:], fmt.Sprintf("%.1f s", report.RunTime.Seconds()), w)
	printSlowest(report, w)
}

const (
	// slow is the time from which a spec is listed; mostSlow is how many are, at most.
	slow     = 20 * time.Second
	mostSlow = 10
)

// printSlowest lists the slowest specs of a suite, which are those to look at when the tests
// take too long.
func printSlowest(report types.Report, w io.Writer) {
	specs := slices.DeleteFunc(slices.Clone(report.SpecReports), func(s types.SpecReport) bool {
		return !s.LeafNodeType.Is(types.NodeTypeIt) || s.RunTime < slow
	})
	slices.SortStableFunc(specs, func(a, b types.SpecReport) int { return cmp.Compare(b.RunTime, a.RunTime) })
	for _, s := range specs[:min(len(specs), mostSlow)] {
		fmt.Fprintf(w, "       %.0f s  %s\n", s.RunTime.Seconds(), specName(s))
	}
}

// packageOf turns a suite's folder into the path of its package in this module.
func packageOf(folder string) string {
	top, err := os.Getwd()
	if err != nil {
		return folder
	}
	relative, err := filepath.Rel(top, folder)
	if err != nil {
		return folder
	}
	return relative
}

// specName returns a spec's full text, or the kind of a setup node, which has no text.
func specName(spec types.SpecReport) string {
	if text := spec.FullText(); text != "" {
		return text
	}
	return "[" + spec.LeafNodeType.String() + "]"
}

// specText returns everything about a failed spec: where, why, and what it wrote.
func specText(spec types.SpecReport) string {
	if !spec.Failed() {
		return ""
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s\n%s\n", spec.FailureLocation(), spec.FailureMessage())
	if spec.Failure.ForwardedPanic != "" {
		fmt.Fprintf(b, "panic: %s\n%s\n", spec.Failure.ForwardedPanic, spec.FailureLocation().FullStackTrace)
	}
	for _, more := range spec.AdditionalFailures {
		fmt.Fprintf(b, "then, at %s\n%s\n", more.Failure.Location, more.Failure.Message)
	}
	if report := spec.Failure.ProgressReport; !report.IsZero() {
		fmt.Fprintf(b, "it was at %s %s\n", report.CurrentNodeType, report.CurrentNodeLocation)
		for _, g := range report.HighlightedGoroutines() {
			for _, call := range g.Stack {
				if call.Highlight {
					fmt.Fprintf(b, "  %s (%s:%d)\n", call.Function, call.Filename, call.Line)
				}
			}
		}
	}
	for _, entry := range spec.ReportEntries {
		fmt.Fprintf(b, "%s: %s\n", entry.Name, entry.StringRepresentation())
	}
	b.WriteString(spec.CombinedOutput())
	return b.String()
}
