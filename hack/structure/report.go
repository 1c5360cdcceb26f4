package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// longest is how many of the longest functions and repeated passages are listed.
const longest = 8

// longFile is the number of lines beyond which a file is listed.
const longFile = 500

// render writes the table of numbers, with a column for each state, and the lists.
func render(to io.Writer, states []*state) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if len(states) > 1 {
		fmt.Fprintln(w, "\t"+strings.Join(each(states, func(s *state) string { return s.name }), "\t"))
	}
	row := func(name string, of func(*state) int) {
		fmt.Fprintf(w, "%s\t%s\n", name, strings.Join(each(states, func(s *state) string { return fmt.Sprint(of(s)) }), "\t"))
	}
	row("packages", func(s *state) int { return packages(s.code) })
	row("lines of code", func(s *state) int { return lines(s.code) })
	row("lines of tests", func(s *state) int { return lines(s.tests) })
	row("functions", func(s *state) int { return len(sizes(s.code)) })
	row("lines of a function, median", func(s *state) int { return percentile(sizes(s.code), 50) })
	row("lines of a function, 95th percentile", func(s *state) int { return percentile(sizes(s.code), 95) })
	row(fmt.Sprintf("files of more than %d lines", longFile), func(s *state) int { return len(s.longFiles()) })
	row("imports that run up", func(s *state) int { return len(s.layers.importsUp(s.code)) })
	row("exported names without a comment", func(s *state) int { return len(s.undocumented()) })
	row("repeated passages in code", func(s *state) int { return len(s.repeatedCode) })
	row("repeated passages in tests", func(s *state) int { return len(s.repeatedTests) })
	row("waits for time in tests", func(s *state) int { return sum(s.tests, func(f file) int { return f.waits }) })
	row("conditions of three and more parts in tests", func(s *state) int { return sum(s.tests, func(f file) int { return f.conditions }) })
	row("tests of package testing", func(s *state) int { return sum(s.tests, func(f file) int { return f.tests }) })
	row("specs of Ginkgo", func(s *state) int { return sum(s.tests, func(f file) int { return f.specs }) })
	w.Flush()
	list := func(heading string, of func(*state) []string) { renderList(to, heading, each(states, of)) }
	list("Imports that run up", func(s *state) []string { return s.layers.importsUp(s.code) })
	list("Packages in no layer, whose imports are not judged", func(s *state) []string { return s.layers.without(s.code) })
	list("Exported names without a comment", (*state).undocumented)
	list(fmt.Sprintf("Files of more than %d lines", longFile), (*state).longFiles)
	list("Longest functions", (*state).longestFunctions)
	list("Longest repeated passages in code", func(s *state) []string { return longestPassages(s.repeatedCode) })
	list("Longest repeated passages in tests", func(s *state) []string { return longestPassages(s.repeatedTests) })
	renderTests(to, states)
}

// each returns a value for each state.
func each[T any](states []*state, of func(*state) T) (values []T) {
	for _, s := range states {
		values = append(values, of(s))
	}
	return values
}

// renderList writes a heading and below it a column of entries for each state, or nothing
// if no state has any.
func renderList(to io.Writer, heading string, columns [][]string) {
	height := 0
	for _, column := range columns {
		height = max(height, len(column))
	}
	if height == 0 {
		return
	}
	fmt.Fprintf(to, "\n%s:\n", heading)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for i := range height {
		var cells []string
		for _, column := range columns {
			cell := ""
			if i < len(column) {
				cell = column[i]
			}
			cells = append(cells, cell)
		}
		fmt.Fprintln(w, "  "+strings.Join(cells, "\t"))
	}
	w.Flush()
}

// suite counts what the tests of a package have.
type suite struct{ specs, tests, waits, conditions int }

func (s *state) suites() map[string]suite {
	suites := map[string]suite{}
	for _, f := range s.tests {
		c := suites[f.folder]
		suites[f.folder] = suite{c.specs + f.specs, c.tests + f.tests, c.waits + f.waits, c.conditions + f.conditions}
	}
	maps.DeleteFunc(suites, func(_ string, s suite) bool { return s == suite{} })
	return suites
}

// renderTests writes a row for each package with tests. A number that differs between the
// states is shown as "old → new".
func renderTests(to io.Writer, states []*state) {
	all := each(states, (*state).suites)
	folders := map[string]bool{}
	for _, suites := range all {
		for folder := range suites {
			folders[folder] = true
		}
	}
	fmt.Fprintln(to, "\nTests by package:")
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  package\tspecs\ttests\twaits for time\tconditions of three and more parts")
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		cell := func(of func(suite) int) string {
			var numbers []string
			for _, suites := range all {
				numbers = append(numbers, fmt.Sprint(of(suites[folder])))
			}
			return strings.Join(slices.Compact(numbers), " → ")
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", folder, cell(func(s suite) int { return s.specs }), cell(func(s suite) int { return s.tests }),
			cell(func(s suite) int { return s.waits }), cell(func(s suite) int { return s.conditions }))
	}
	w.Flush()
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

// sizes returns the lengths of all functions in lines, sorted.
func sizes(files []file) (all []int) {
	for _, f := range files {
		for _, fn := range f.functions {
			all = append(all, fn.lines)
		}
	}
	slices.Sort(all)
	return all
}

// percentile returns a percentile of sorted values; 0 of none.
func percentile(sorted []int, percent int) int {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*percent/100]
}

func (s *state) longFiles() (long []string) {
	for _, f := range slices.Concat(s.code, s.tests) {
		if f.lines > longFile {
			long = append(long, fmt.Sprintf("%s: %d lines", f.path, f.lines))
		}
	}
	slices.Sort(long)
	return long
}

func (s *state) longestFunctions() (named []string) {
	type placed struct {
		function
		path string
	}
	var all []placed
	for _, f := range s.code {
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

func longestPassages(passages []passage) (named []string) {
	for _, p := range passages[:min(longest, len(passages))] {
		named = append(named, fmt.Sprintf("%s is repeated at %s", p.place, p.same))
	}
	return named
}

func (s *state) undocumented() (names []string) {
	for _, f := range s.code {
		names = append(names, f.undocumented...)
	}
	return names
}
