// Command test runs Clew's tests and adds up the results.
//
// It runs the sets named on the command line: packages with Ginkgo specs by Ginkgo's
// runner, in several processes and in random order, all others by `go test -json`. It
// prints a line for each package and every failure in full. It promises that its very last
// line is "N passed, N failed", counted in specs and leaf tests, and that it exits with
// zero only if none failed. A package that does not build, a test that panics and a
// package that times out count as one failure each.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx)
	stop()
	os.Exit(code)
}

const usage = `usage: test [-short] [-run PATTERN] SET...

  unit         packages of this module that need only Go and git
  integration  packages that start a real API server or a real Postgres
  modules      the modules below hack/
  e2e          tests on the development cluster

Temporary files are in memory if there is enough of it. With CLEW_SOAK=1 they
are on disk, tests may take hours, destructive tests run at full length, and a
table says what they did how often, with which seeds.
`

func run(ctx context.Context) int {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	pattern := flags.String("run", "", "run only the tests that match")
	short := flags.Bool("short", false, "leave out plain tests that kill at every step or wait for seconds: those that skip with testing.Short")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	soak := os.Getenv("CLEW_SOAK") == "1"
	if !soak {
		if folder, remove := memoryFolder(); folder != "" {
			defer remove()
			if err := os.Setenv("TMPDIR", folder); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
	start := time.Now()
	total := &tally{}
	for _, name := range flags.Args() {
		invocations, err := plan(ctx, name, soak, *short)
		if err != nil {
			total.addFailure(fmt.Sprintf("set %s", name), err.Error())
			fmt.Printf("FAIL %s\n%v\n", name, err)
			continue
		}
		for _, invocation := range invocations {
			if err := invocation.run(ctx, *pattern, total); err != nil {
				total.addFailure(name, err.Error())
				fmt.Printf("FAIL %s\n%v\n", name, err)
			}
		}
	}
	if soak {
		total.soak.print(os.Stdout)
	}
	total.summarise(os.Stdout, time.Since(start))
	if total.failed > 0 || ctx.Err() != nil {
		return 1
	}
	return 0
}

// invocation is one run of go test, or of Ginkgo.
type invocation struct {
	set    string
	dir    string
	ginkgo bool
	args   []string
}

// plan returns the invocations that run a set.
func plan(ctx context.Context, set string, soak, short bool) ([]invocation, error) {
	timeout := map[bool]string{false: "15m", true: "6h"}[soak]
	cores := min(2, runtime.NumCPU())
	packagesAtOnce := cores
	if set == "unit" {
		packagesAtOnce++ // many of these tests spend time waiting
	}
	common := []string{"-p", fmt.Sprint(packagesAtOnce), "-timeout", timeout}
	if soak {
		common = append(common, "-count=1") // cached results would make the table one of an earlier run
	}
	if short {
		common = append(common, "-short")
	}
	switch set {
	case "unit", "integration":
		packages, err := listPackages(ctx, ".")
		if err != nil {
			return nil, err
		}
		plain, suites, err := split(longestFirst(choose(packages, set == "integration")))
		if err != nil {
			return nil, err
		}
		var invocations []invocation
		if len(plain) > 0 {
			invocations = append(invocations, invocation{set: set, dir: ".", args: append(append(common, "-skip", "^"+specs+"$"), paths(plain)...)})
		}
		if len(suites) > 0 {
			invocations = append(invocations, suiteInvocation(set, cores, timeout, "", folders(suites)))
		}
		return invocations, nil
	case "modules":
		return planModules(ctx, common)
	case "e2e":
		timeout = map[bool]string{false: "45m", true: "12h"}[soak]
		tags := map[bool]string{false: "e2e", true: "e2e,soak"}[soak]
		// These specs mostly wait for pods, so more of them fit than there are cores.
		return []invocation{suiteInvocation(set, 2*min(4, runtime.NumCPU()), timeout, tags, []string{"./internal/e2e"})}, nil
	}
	return nil, fmt.Errorf("there is no set of tests called %q; there are unit, integration, modules and e2e", set)
}

// planModules returns an invocation for each module below hack/ that has tests.
func planModules(ctx context.Context, common []string) ([]invocation, error) {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "hack/*go.mod", "hack/**/go.mod").Output()
	if err != nil {
		return nil, fmt.Errorf("list the modules below hack/: %w", err)
	}
	var invocations []invocation
	seen := map[string]bool{}
	for _, file := range strings.Fields(string(out)) {
		dir := strings.TrimSuffix(file, "/go.mod")
		if seen[dir] || !hasTests(dir) {
			continue
		}
		seen[dir] = true
		packages, err := listPackages(ctx, dir)
		if err != nil {
			return nil, err
		}
		if chosen := paths(withTests(packages)); len(chosen) > 0 {
			invocations = append(invocations, invocation{set: "modules", dir: dir, args: append(common[:len(common):len(common)], chosen...)})
		}
	}
	return invocations, nil
}

// hasTests reports whether a folder itself has tests. go list would answer as well, but
// downloads everything that a module requires, which modules of tools do not need here.
func hasTests(dir string) bool {
	out, err := exec.Command("git", "ls-files", dir+"/*_test.go").Output()
	return err == nil && len(out) > 0
}

// run streams the invocation's events into the tally.
func (i invocation) run(ctx context.Context, pattern string, total *tally) error {
	if i.ginkgo {
		return i.runSuites(ctx, pattern, total)
	}
	args := append([]string{"test", "-json"}, i.args...)
	if pattern != "" {
		args = append(args, "-run", pattern)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = i.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := total.failed
	readErr := total.read(out, os.Stdout)
	err = cmd.Wait()
	if readErr != nil {
		return fmt.Errorf("read the output of go test: %w", readErr)
	}
	// go test exits with 1 for failures that the events have already reported.
	if err != nil && total.failed == before {
		return fmt.Errorf("go test: %w\n%s", err, stderr.String())
	}
	return nil
}
