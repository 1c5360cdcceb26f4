package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// testPackage is a package as go list describes it.
type testPackage struct {
	Dir          string
	ImportPath   string
	TestGoFiles  []string
	XTestGoFiles []string
	TestImports  []string
	XTestImports []string
}

// listPackages lists the packages of the module in dir.
func listPackages(ctx context.Context, dir string) ([]testPackage, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
	cmd.Dir = dir
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages in %s: %w\n%s", dir, err, stderr)
	}
	var packages []testPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p testPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// choose returns the packages whose tests start servers, or those whose tests do not.
func choose(packages []testPackage, integration bool) []testPackage {
	var chosen []testPackage
	for _, p := range packages {
		if p.startsServers() == integration {
			chosen = append(chosen, p)
		}
	}
	return withTests(chosen)
}

func withTests(packages []testPackage) []testPackage {
	return slices.DeleteFunc(slices.Clone(packages), func(p testPackage) bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 })
}

// specs names the test that runs the specs of a suite. A suite may have plain tests beside
// it: tables, and tests that need a fake clock.
const specs = "TestSpecs"

// split returns the packages with plain tests and those with Ginkgo specs. A package with
// both is in both.
func split(packages []testPackage) (plain, suites []testPackage, err error) {
	const ginkgo = "github.com/onsi/ginkgo/v2"
	for _, p := range packages {
		suite := slices.Contains(p.TestImports, ginkgo) || slices.Contains(p.XTestImports, ginkgo)
		if suite {
			suites = append(suites, p)
		}
		tests, err := p.tests()
		if err != nil {
			return nil, nil, err
		}
		if suite && !slices.Contains(tests, specs) {
			return nil, nil, fmt.Errorf("the package %s has specs, and no test %s that runs them", p.ImportPath, specs)
		}
		if !suite || len(tests) > 1 {
			plain = append(plain, p)
		}
	}
	return plain, suites, nil
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w*)\(\w+ \*testing\.T\)`)

// tests returns the names of the package's tests.
func (p testPackage) tests() (names []string, err error) {
	for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			return nil, fmt.Errorf("find the tests of %s: %w", p.ImportPath, err)
		}
		for _, found := range testFunction.FindAllStringSubmatch(string(text), -1) {
			names = append(names, found[1])
		}
	}
	return names, nil
}

// longestFirst sorts packages by the size of their tests, which tells roughly how long they
// take: a long package that starts last would run alone, with one core idle.
func longestFirst(packages []testPackage) []testPackage {
	size := func(p testPackage) (bytes int64) {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if info, err := os.Stat(filepath.Join(p.Dir, file)); err == nil {
				bytes += info.Size()
			}
		}
		return bytes
	}
	return slices.SortedStableFunc(slices.Values(packages), func(a, b testPackage) int { return cmp.Compare(size(b), size(a)) })
}

func paths(packages []testPackage) []string {
	var paths []string
	for _, p := range packages {
		paths = append(paths, p.ImportPath)
	}
	return paths
}

// startsServers reports whether the tests use a package of internal/testing that starts a
// process. Packages that only make or compare values do not count.
func (p testPackage) startsServers() bool {
	for _, imports := range [][]string{p.TestImports, p.XTestImports, {p.ImportPath}} {
		for _, path := range imports {
			_, helper, ok := strings.Cut(path, "/internal/testing/")
			if ok && !slices.Contains([]string{"builders", "cases", "filled", "matchers"}, helper) {
				return true
			}
		}
	}
	return false
}

// folders returns the packages' folders, which Ginkgo needs: it would take an import path
// for a folder, find none, and run nothing.
func folders(packages []testPackage) []string {
	var folders []string
	for _, p := range packages {
		folders = append(folders, p.Dir)
	}
	return folders
}
