// Command bench turns the output of `go test -bench` on stdin into tables: the time of
// each operation beside the git status that was measured in turns with it, the space
// that a conversation takes in the database, and the time of queries over large tables,
// with the steps of their plans. A benchmark that was run several times (-count) is
// shown by its medians.
//
// The benchmarks are read by golang.org/x/perf, the library of benchstat, which this
// module pins as well: ./compare runs benchstat on two commits.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
)

// row is one benchmark: its name without "Benchmark" and the number of processors, and
// the median of each metric by unit.
type row struct {
	name    string
	metrics map[string]float64
}

func main() {
	rows, rest, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	render(os.Stdout, rows, rest)
	if len(rows) == 0 || strings.Contains(rest, "FAIL") {
		fmt.Fprint(os.Stderr, rest)
		os.Exit(1)
	}
}

// read returns a row for each benchmark, in the order of their first runs, and the lines
// that are not benchmarks.
func read(r io.Reader) (rows []row, rest string, err error) {
	var text bytes.Buffer
	reader := benchfmt.NewReader(io.TeeReader(r, &text), "stdin")
	var names []string
	samples := map[string]map[string][]float64{} // by name and unit
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, "", record
		case *benchfmt.Result:
			name := nameOf(record.Name)
			if samples[name] == nil {
				samples[name] = map[string][]float64{}
				names = append(names, name)
			}
			for _, value := range record.Values {
				samples[name][value.Unit] = append(samples[name][value.Unit], value.Value)
			}
		}
	}
	if err := reader.Err(); err != nil {
		return nil, "", err
	}
	for _, name := range names {
		rows = append(rows, row{name, medians(samples[name])})
	}
	return rows, withoutBenchmarks(text.String()), nil
}

// nameOf returns a benchmark's name with its parts, without the number of processors.
func nameOf(full benchfmt.Name) string {
	base, parts := full.Parts()
	name := string(base)
	for _, part := range parts {
		if part[0] == '/' {
			name += string(part)
		}
	}
	return name
}

// medians returns the median of each unit's values.
func medians(samples map[string][]float64) map[string]float64 {
	metrics := map[string]float64{}
	for unit, values := range samples {
		sample := benchmath.NewSample(values, &benchmath.DefaultThresholds)
		metrics[unit] = benchmath.AssumeNothing.Summary(sample, 0.95).Center
	}
	return metrics
}

// withoutBenchmarks returns the lines that benchfmt passes over: plans, failures and the
// description of the machine.
func withoutBenchmarks(text string) string {
	var rest strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "Benchmark") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}
