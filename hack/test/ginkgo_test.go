package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// suite returns a report of a suite with the given specs.
func suite(succeeded bool, reasons []string, specs ...types.SpecReport) types.Report {
	return types.Report{
		SuitePath: "internal/world", SuiteSucceeded: succeeded, SpecialSuiteFailureReasons: reasons,
		RunTime: 1500 * time.Millisecond, SpecReports: specs,
	}
}

func spec(text string, state types.SpecState) types.SpecReport {
	s := types.SpecReport{ContainerHierarchyTexts: []string{"a task"}, LeafNodeText: text, LeafNodeType: types.NodeTypeIt, State: state}
	if state.Is(types.SpecStateFailureStates) {
		s.Failure = types.Failure{Message: "expected one pod", Location: types.CodeLocation{FileName: "world_test.go", LineNumber: 7}}
		s.CapturedGinkgoWriterOutput = "what the cluster had to say\n"
	}
	return s
}

func TestTheSlowestSpecsAreListed(t *testing.T) {
	after := func(text string, took time.Duration) types.SpecReport {
		s := spec(text, types.SpecStatePassed)
		s.RunTime = took
		return s
	}
	setup := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStatePassed, RunTime: time.Hour}
	specs := []types.SpecReport{setup, after("is quick", time.Second), after("takes its time", 21*time.Second), after("takes the longest", time.Minute)}
	for range mostSlow {
		specs = append(specs, after("is slow", 30*time.Second))
	}
	out := &strings.Builder{}
	(&tally{}).addSuite(suite(true, nil, specs...), "", out)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")[1:]
	if len(lines) != mostSlow {
		t.Fatalf("%d specs are listed, not %d:\n%s", len(lines), mostSlow, out)
	}
	if got, want := strings.TrimSpace(lines[0]), "60 s  a task takes the longest"; got != want {
		t.Errorf("the first spec is %q, not %q", got, want)
	}
	for _, line := range lines[1:] {
		if !strings.HasSuffix(line, "30 s  a task is slow") {
			t.Errorf("%q is listed before a slower spec", line)
		}
	}
}

func TestSuitesAreCountedBySpecs(t *testing.T) {
	setup := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStatePassed}
	brokenSetup := setup
	brokenSetup.State, brokenSetup.Failure = types.SpecStateFailed, types.Failure{Message: "no etcd"}
	panicked := spec("falls over", types.SpecStatePanicked)
	panicked.Failure.ForwardedPanic = "index out of range"
	for _, test := range []struct {
		name                    string
		report                  types.Report
		passed, failed, skipped int
		prints                  []string
	}{
		{
			name:   "specs are counted, setup is not",
			report: suite(true, nil, setup, spec("starts", types.SpecStatePassed), spec("ends", types.SpecStatePassed)),
			passed: 2,
			prints: []string{"ok   internal/world", "2 passed (1.5 s)"},
		},
		{
			name:   "a failed spec is printed in full",
			report: suite(false, nil, spec("starts", types.SpecStateFailed), spec("ends", types.SpecStatePassed)),
			passed: 1, failed: 1,
			prints: []string{"FAIL internal/world", "a task starts (failed)", "world_test.go:7", "expected one pod", "what the cluster had to say"},
		},
		{
			name:   "a spec that panics or takes too long is a failure",
			report: suite(false, nil, panicked, spec("hangs", types.SpecStateTimedout)),
			failed: 2,
			prints: []string{"index out of range", "hangs (timedout)"},
		},
		{
			name:   "setup that fails is one failure, and the specs that need it do not count as passed",
			report: suite(false, nil, brokenSetup, spec("starts", types.SpecStateSkipped)),
			failed: 1, skipped: 1,
			prints: []string{"[SynchronizedBeforeSuite]", "no etcd"},
		},
		{
			name:   "a suite that does not build is one failure, with the compiler's output",
			report: suite(false, []string{"Failed to compile world"}),
			failed: 1,
			prints: []string{"Failed to compile world", "the compiler's words"},
		},
		{
			name:    "skipped specs are neither",
			report:  suite(true, nil, spec("takes hours", types.SpecStateSkipped), spec("is yet to come", types.SpecStatePending)),
			skipped: 2,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			total, out := &tally{}, &strings.Builder{}
			total.addSuite(test.report, "the compiler's words", out)
			if got, want := [3]int{total.passed, total.failed, total.skipped}, [3]int{test.passed, test.failed, test.skipped}; got != want {
				t.Errorf("passed, failed and skipped are %v, want %v", got, want)
			}
			for _, want := range test.prints {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestEntriesOfSpecsAreAddedUp(t *testing.T) {
	killed := spec("is killed", types.SpecStatePassed)
	for name, text := range map[string]string{"soak": "3 killed: daemon", "CLEW_SEED": "12"} {
		killed.ReportEntries = append(killed.ReportEntries, types.ReportEntry{Name: name, Value: types.WrapEntryValue(text)})
	}
	total, out := &tally{}, &strings.Builder{}
	total.addSuite(suite(true, nil, killed, killed), "", &strings.Builder{})
	total.soak.print(out)
	want := `
What was done, and what came of it:
       6  killed
       6    daemon
a task is killed CLEW_SEED=12
a task is killed CLEW_SEED=12
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestPackagesAreSplitByWhetherTheyHaveSpecs(t *testing.T) {
	made := func(name, tests string, imports ...string) testPackage {
		p := testPackage{Dir: t.TempDir(), ImportPath: "m/" + name, TestGoFiles: []string{"x_test.go"}, TestImports: imports}
		if err := os.WriteFile(filepath.Join(p.Dir, "x_test.go"), []byte("package x\n\n"+tests), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const plainTest, runner, ginkgo = "func TestA(t *testing.T) {}\n", "func TestSpecs(t *testing.T) {}\n", "github.com/onsi/ginkgo/v2"
	plain, suites, err := split([]testPackage{
		made("plan", plainTest, "testing"), made("controller", runner, ginkgo), made("gateway", runner+plainTest, ginkgo),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(paths(plain), " ") + " | " + strings.Join(paths(suites), " "); got != "m/plan m/gateway | m/controller m/gateway" {
		t.Errorf("plain packages and suites are %q", got)
	}
	if _, _, err := split([]testPackage{made("lost", plainTest, ginkgo)}); err == nil || !strings.Contains(err.Error(), "m/lost has specs, and no test TestSpecs that runs them") {
		t.Errorf("a package whose specs nothing runs gives the error %v", err)
	}
}

// TestGinkgoReportsWhatWentWrong runs Ginkgo on suites that fail in every way.
func TestGinkgoReportsWhatWentWrong(t *testing.T) {
	folder, err := os.MkdirTemp(".", "failing-") // in this module, so that Ginkgo is found
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	const head = "package %[1]s_test\nimport (\n\"testing\"\n. \"github.com/onsi/ginkgo/v2\"\n. \"github.com/onsi/gomega\"\n)\nfunc TestSpecs(t *testing.T) { RegisterFailHandler(Fail); RunSpecs(t, \"s\") }\n"
	for name, specs := range map[string]string{
		"fails":   `var _ = It("fails", func() { Fail("wrong") }); var _ = It("passes", func() {})`,
		"panics":  `var _ = BeforeSuite(func() { panic("no etcd") }); var _ = It("waits", func() {})`,
		"unbuilt": `var _ = It("does not build", func() { undefined() })`,
		"focused": `var _ = FIt("hides the others", func() {})`,
	} {
		path := filepath.Join(folder, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(head, "%[1]s", name) + specs + "\n"
		if err := os.WriteFile(filepath.Join(path, "s_test.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packages, err := listPackages(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	_, suites, err := split(packages)
	if err != nil {
		t.Fatal(err)
	}
	total := &tally{}
	if err := suiteInvocation("toy", 2, "1m", "", folders(suites)).runSuites(t.Context(), "", total); err != nil {
		t.Fatal(err)
	}
	var failures strings.Builder
	for _, f := range total.failures {
		failures.WriteString(f.name + "\n" + f.output + "\n")
	}
	for _, want := range []string{"fails (failed)", "wrong", "BeforeSuite", "no etcd", "undefined: undefined", "remove the focus"} {
		if !strings.Contains(failures.String(), want) {
			t.Errorf("the failures lack %q:\n%s", want, failures.String())
		}
	}
	if total.passed != 2 || total.failed != 4 {
		t.Errorf("%d passed, %d failed; want 2 and 4", total.passed, total.failed)
	}
}
