package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// testPackage is what go list says about a package.
type testPackage struct {
	ImportPath   string
	TestGoFiles  []string
	XTestGoFiles []string
	TestImports  []string
	XTestImports []string
}

// listPackages lists the packages of the module in dir.
func listPackages(ctx context.Context, dir string) ([]testPackage, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
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
			return nil, fmt.Errorf("read what go list said: %w", err)
		}
		packages = append(packages, p)
	}
}

// choose gives the packages with tests that start servers, or those that do not.
func choose(packages []testPackage, integration bool) []string {
	var chosen []testPackage
	for _, p := range packages {
		if p.startsServers() == integration {
			chosen = append(chosen, p)
		}
	}
	return withTests(chosen)
}

func withTests(packages []testPackage) []string {
	var paths []string
	for _, p := range packages {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			paths = append(paths, p.ImportPath)
		}
	}
	return paths
}

// startsServers says whether the tests use a package of internal/testing that
// starts something; builders only makes objects.
func (p testPackage) startsServers() bool {
	for _, imports := range [][]string{p.TestImports, p.XTestImports, {p.ImportPath}} {
		for _, path := range imports {
			_, helper, ok := strings.Cut(path, "/internal/testing/")
			if ok && helper != "builders" {
				return true
			}
		}
	}
	return false
}
