package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"
)

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of the package being built
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// tally counts leaf tests and keeps the output of failures.
type tally struct {
	passed, failed, skipped int
	failures                []failure
	skips                   []string
	soak                    soakTable
}

type failure struct{ name, output string }

func (t *tally) addFailure(name, output string) {
	t.failed++
	t.failures = append(t.failures, failure{name, output})
}

// packageRun is the state of a package whose tests run.
type packageRun struct {
	outcome map[string]string // of each test: "" while it runs
	output  map[string]*strings.Builder
	cached  bool
}

// read reads events to the end, and prints a line for each package, and the failures, to w.
// It prints lines that are not events unchanged.
func (t *tally) read(events io.Reader, w io.Writer) error {
	packages := map[string]*packageRun{}
	builds := map[string]*strings.Builder{}
	reader := bufio.NewReader(events)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				fmt.Fprintf(w, "%s", line)
			} else {
				t.take(e, packages, builds, w)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) take(e event, packages map[string]*packageRun, builds map[string]*strings.Builder, w io.Writer) {
	if e.Action == "build-output" {
		if builds[e.ImportPath] == nil {
			builds[e.ImportPath] = &strings.Builder{}
		}
		builds[e.ImportPath].WriteString(e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := packages[e.Package]
	if p == nil {
		p = &packageRun{outcome: map[string]string{}, output: map[string]*strings.Builder{}}
		packages[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.outcome[e.Test] = ""
	case "output":
		if p.output[e.Test] == nil {
			p.output[e.Test] = &strings.Builder{}
		}
		p.output[e.Test].WriteString(e.Output)
		t.soak.read(e.Test, e.Output)
		if e.Test == "" && strings.Contains(e.Output, "\t(cached)") {
			p.cached = true
		}
	case "pass", "fail", "skip":
		if e.Test != "" {
			p.outcome[e.Test] = e.Action
			return
		}
		t.finish(e, p, builds, w)
		delete(packages, e.Package)
	}
}

// finish counts a package whose tests have ended, and prints its line.
func (t *tally) finish(e event, p *packageRun, builds map[string]*strings.Builder, w io.Writer) {
	passed, skipped, before := 0, 0, len(t.failures)
	names := make([]string, 0, len(p.outcome))
	for name := range p.outcome {
		names = append(names, name)
	}
	sort.Strings(names)
	childFailed := failedChildren(p.outcome)
	for _, name := range names {
		leaf := !hasChild(names, name)
		switch outcome := p.outcome[name]; {
		case outcome == "pass" && leaf:
			passed++
		case outcome == "skip":
			skipped++
			t.skips = append(t.skips, e.Package+" "+name)
		case outcome == "fail" && (leaf || !childFailed[name]):
			t.addFailure(e.Package+" "+name, text(p.output[name]))
		case outcome == "" && e.Action == "fail" && (leaf || !childFailed[name]):
			t.addFailure(e.Package+" "+name+" (did not end)", text(p.output[name]))
		}
	}
	if e.Action == "fail" && len(t.failures) == before {
		output := text(p.output[""])
		if build := builds[e.FailedBuild]; build != nil {
			output = build.String() + output
		}
		t.addFailure(e.Package, output)
	}
	t.passed += passed
	t.skipped += skipped
	note := fmt.Sprintf("%.1f s", e.Elapsed)
	if p.cached {
		note = "cached"
	}
	t.printPackage(short(e.Package), passed, t.failures[before:], note, w)
}

// printPackage prints the line of a package, and its failures in full.
func (t *tally) printPackage(name string, passed int, failures []failure, note string, w io.Writer) {
	if len(failures) == 0 {
		fmt.Fprintf(w, "ok   %-64s %3d passed (%s)\n", name, passed, note)
		return
	}
	fmt.Fprintf(w, "FAIL %-64s %3d passed, %d failed (%s)\n", name, passed, len(failures), note)
	for _, f := range failures {
		fmt.Fprintf(w, "--- %s\n%s\n", f.name, strings.TrimRight(f.output, "\n"))
	}
}

// failedChildren marks every test with a subtest that failed or did not end.
func failedChildren(outcome map[string]string) map[string]bool {
	marked := map[string]bool{}
	for name, o := range outcome {
		if o != "fail" && o != "" {
			continue
		}
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			marked[name[:i]] = true
		}
	}
	return marked
}

// hasChild reports whether the sorted names contain a subtest of name.
func hasChild(names []string, name string) bool {
	i := sort.SearchStrings(names, name+"/")
	return i < len(names) && strings.HasPrefix(names[i], name+"/")
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/clew-dev/clew/") }

// beginning is how many bytes of a failed test's output the summary repeats.
const beginning = 1500

// summarise prints what was skipped, what failed with the beginning of its output (a dump
// of the cluster may follow it there), and the last line.
func (t *tally) summarise(w io.Writer, took time.Duration) {
	fmt.Fprintln(w)
	for _, name := range t.skips {
		fmt.Fprintf(w, "skipped: %s\n", name)
	}
	for _, f := range t.failures {
		fmt.Fprintf(w, "failed: %s\n%s\n", f.name, strings.TrimRight(f.output[:min(len(f.output), beginning)], "\n"))
	}
	fmt.Fprintf(w, "%s\n", took.Round(time.Second))
	fmt.Fprintf(w, "%d passed, %d failed\n", t.passed, t.failed)
}
