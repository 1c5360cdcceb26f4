// Command bench turns the output of `go test -bench` on stdin into tables:
// medians, each beside the floor that was measured in turns with it; what a
// conversation takes in the database; and how long queries over much take, with
// the steps of their plans.
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
	render(os.Stdout, rows, rest)
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

func render(w io.Writer, rows []row, rest string) {
	renderRatios(w, rows)
	renderGrowth(w, rows)
	renderPlans(w, rows, rest)
}

// with are the rows that have a metric.
func with(rows []row, metric string) []row {
	var found []row
	for _, r := range rows {
		if _, ok := r.metrics[metric]; ok {
			found = append(found, r)
		}
	}
	return found
}

func renderRatios(w io.Writer, rows []row) {
	rows = with(rows, "x-git-status")
	if len(rows) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	files := 10_000.0
	if n, ok := rows[0].metrics["files"]; ok {
		files = n
	}
	fmt.Fprintf(table, "%.0f,000 FILES\tP50\tGIT STATUS\tRATIO\n", files/1000)
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%.0f ms\t%.0f ms\t%.1f\n", strings.ReplaceAll(r.name, "/", ", "),
			r.metrics["p50-ms"], r.metrics["git-status-ms"], r.metrics["x-git-status"])
	}
	_ = table.Flush()
}

func renderGrowth(w io.Writer, rows []row) {
	for _, r := range with(rows, "x-raw-JSON") {
		m := r.metrics
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "1,000 MESSAGES, EACH WITH A CHECKPOINT AND A SNAPSHOT\t\tLIMIT")
		fmt.Fprintf(table, "all tables, TOAST and indexes without the search's\t%.0f kB\t\n", m["kB"])
		fmt.Fprintf(table, "of that, tables without a row\t%.0f kB\t\n", m["kB-empty"])
		fmt.Fprintf(table, "the same conversation with one of each: %.0f kB\t%.2f times\t1.30\n", m["kB-one-snapshot"], m["x-one-snapshot"])
		fmt.Fprintf(table, "the messages as JSON: %.0f kB\t%.2f times\t1.50\n", m["kB-raw-JSON"], m["x-raw-JSON"])
		fmt.Fprintf(table, "a checkpoint with a snapshot\t%.0f bytes\t\n", m["bytes/snapshot"])
		fmt.Fprintf(table, "storing a message\t%.1f ms\t\n", m["append-ms"])
		fmt.Fprintf(table, "storing it with a checkpoint and a snapshot\t%.1f ms\t\n", m["append-snapshot-ms"])
		fmt.Fprintf(table, "loading all up to the middle\t%.1f ms\t\n", m["load-ms"])
		fmt.Fprintf(table, "a fork from the middle\t%.1f ms\t\n", m["fork-ms"])
		fmt.Fprintf(table, "resolving and checking a snapshot in the middle\t%.1f ms\t\n", m["verify-ms"])
		_ = table.Flush()
	}
}

func renderPlans(w io.Writer, rows []row, rest string) {
	rows = with(rows, "plan-ms")
	if len(rows) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "1,000,000 MESSAGES IN 100 NAMESPACES, 100,000 TASKS\tEXPLAIN (ANALYZE)\tROWS\tBLOCKS")
	for _, r := range rows {
		_, name, _ := strings.Cut(r.name, "/")
		fmt.Fprintf(table, "%s\t%.2f ms\t%.0f\t%.0f\n", strings.ReplaceAll(name, "_", " "), r.metrics["plan-ms"], r.metrics["rows"], r.metrics["blocks"])
	}
	_ = table.Flush()
	for line := range strings.Lines(rest) {
		if step, ok := strings.CutPrefix(line, "PLAN "); ok {
			fmt.Fprint(w, step)
		}
	}
}
