// Command bench turns the output of `go test -bench` on stdin into a table of
// medians, each beside the floor that was measured in turns with it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// row is one benchmark: its name without the prefix and the processors' count,
// and its metrics by unit.
type row struct {
	name    string
	metrics map[string]float64
}

func main() {
	rows, rest, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	render(os.Stdout, rows)
	if len(rows) == 0 || strings.Contains(rest, "FAIL") {
		fmt.Fprint(os.Stderr, rest)
		os.Exit(1)
	}
}

// read takes the benchmarks' lines apart and returns the others as they are.
func read(r io.Reader) ([]row, string, error) {
	var rows []row
	var rest strings.Builder
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			fmt.Fprintln(&rest, lines.Text())
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndex(name, "-"); i > 0 {
			name = name[:i]
		}
		metrics := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, "", fmt.Errorf("%q is no measure: %w", lines.Text(), err)
			}
			metrics[fields[i+1]] = value
		}
		rows = append(rows, row{name, metrics})
	}
	return rows, rest.String(), lines.Err()
}

func render(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "10,000 FILES\tP50\tGIT STATUS\tRATIO")
	for _, r := range rows {
		if _, ok := r.metrics["x-git-status"]; !ok {
			continue
		}
		fmt.Fprintf(table, "%s\t%.0f ms\t%.0f ms\t%.1f\n", strings.ReplaceAll(r.name, "/", ", "),
			r.metrics["p50-ms"], r.metrics["git-status-ms"], r.metrics["x-git-status"])
	}
	_ = table.Flush()
}
