// Command structure measures how the code is built, so that two states of it can be
// compared: packages, lines, functions, files, imports between floors, undocumented
// names, and what makes tests hard to read. It reads the files of the module in the
// folder that it is started in, and runs nothing of them.
//
// Generated files, and what lies in testdata, are left out. Lines are those of files,
// comments and blank lines included.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// longest is how many of the longest functions and files are listed.
const longest = 8

func main() {
	files, err := readModule(os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
	if len(files) == 0 {
		fmt.Fprintln(os.Stderr, "structure: there is no Go file here; start it in the module's folder")
		os.Exit(1)
	}
	render(os.Stdout, files)
}

// render writes the table and the lists below it.
func render(to io.Writer, files []file) {
	code, tests := parted(files)
	functions := sizes(code)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	row := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	row("packages", packages(code))
	row("lines of code", lines(code))
	row("lines of tests", lines(tests))
	row("functions", len(functions))
	row("lines of a function, median", percentile(functions, 50))
	row("lines of a function, 95th percentile", percentile(functions, 95))
	row("files of more than 500 lines", len(longFiles(files, 500)))
	up := importsUp(code)
	row("imports that run up", len(up))
	row("exported names without a comment", len(undocumented(code)))
	row("time.Sleep in tests", sum(tests, func(f file) int { return f.sleeps }))
	row("conditions of three and more parts in tests", sum(tests, func(f file) int { return f.conditions }))
	row("tests of package testing", sum(tests, func(f file) int { return f.tests }))
	row("specs of Ginkgo", sum(tests, func(f file) int { return f.specs }))
	w.Flush()
	list(to, "Imports that run up", up)
	list(to, "Exported names without a comment", undocumented(code))
	list(to, "Files of more than 500 lines", longFiles(files, 500))
	list(to, "Longest functions", longestFunctions(code))
	list(to, "Specs and tests by package", bySuite(tests))
}

// list writes a heading and its lines, or nothing where there are none.
func list(to io.Writer, heading string, entries []string) {
	if len(entries) > 0 {
		fmt.Fprintf(to, "\n%s:\n  %s\n", heading, strings.Join(entries, "\n  "))
	}
}

// parted are the files of code, and those of tests: helpers of tests are tests.
func parted(files []file) (code, tests []file) {
	for _, f := range files {
		if f.isTest() {
			tests = append(tests, f)
		} else {
			code = append(code, f)
		}
	}
	return code, tests
}

func packages(files []file) int {
	folders := map[string]bool{}
	for _, f := range files {
		folders[f.folder] = true
	}
	return len(folders)
}

func lines(files []file) int { return sum(files, func(f file) int { return f.lines }) }

func sum(files []file, of func(file) int) (total int) {
	for _, f := range files {
		total += of(f)
	}
	return total
}

// sizes are the lengths of all functions in lines, sorted.
func sizes(files []file) (all []int) {
	for _, f := range files {
		for _, fn := range f.functions {
			all = append(all, fn.lines)
		}
	}
	slices.Sort(all)
	return all
}

// percentile is that of sorted values; 0 of none.
func percentile(sorted []int, percent int) int {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*percent/100]
}

func longFiles(files []file, most int) (long []string) {
	for _, f := range files {
		if f.lines > most {
			long = append(long, fmt.Sprintf("%s: %d lines", f.path, f.lines))
		}
	}
	return long
}

func longestFunctions(files []file) (named []string) {
	type placed struct {
		function
		path string
	}
	var all []placed
	for _, f := range files {
		for _, fn := range f.functions {
			all = append(all, placed{fn, f.path})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return b.lines - a.lines })
	for _, p := range all[:min(longest, len(all))] {
		named = append(named, fmt.Sprintf("%s:%d %s: %d lines", p.path, p.line, p.name, p.lines))
	}
	return named
}

func undocumented(files []file) (names []string) {
	for _, f := range files {
		names = append(names, f.undocumented...)
	}
	return names
}

// bySuite counts the specs and tests of each package that has any.
func bySuite(tests []file) (suites []string) {
	counts := map[string][2]int{}
	for _, f := range tests {
		c := counts[f.folder]
		counts[f.folder] = [2]int{c[0] + f.specs, c[1] + f.tests}
	}
	for folder, c := range counts {
		if c[0]+c[1] > 0 {
			suites = append(suites, fmt.Sprintf("%s: %d specs, %d tests", folder, c[0], c[1]))
		}
	}
	slices.Sort(suites)
	return suites
}
