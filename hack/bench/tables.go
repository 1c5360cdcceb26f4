package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// render writes the tables that the rows have metrics for.
func render(w io.Writer, rows []row, rest string) {
	renderRatios(w, rows)
	renderDiffs(w, rows)
	renderGrowth(w, rows)
	renderPlans(w, rows, rest)
}

// with returns the rows that have a metric.
func with(rows []row, metric string) []row {
	var found []row
	for _, r := range rows {
		if _, ok := r.metrics[metric]; ok {
			found = append(found, r)
		}
	}
	return found
}

// renderRatios writes operations on a worktree beside git status.
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

// renderDiffs writes the differences that the gitstore answers beside git's own.
func renderDiffs(w io.Writer, rows []row) {
	rows = with(rows, "x-diff-tree")
	if len(rows) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "DIFF OF 500 IN 10,000 FILES\tP50\tP95\tGIT DIFF-TREE\tRATIO")
	for _, r := range rows {
		_, name, _ := strings.Cut(r.name, "/")
		fmt.Fprintf(table, "%s\t%.0f ms\t%.0f ms\t%.0f ms\t%.1f\n", strings.ReplaceAll(name, "_", " "),
			r.metrics["p50-ms"], r.metrics["p95-ms"], r.metrics["diff-tree-ms"], r.metrics["x-diff-tree"])
	}
	_ = table.Flush()
}

// renderGrowth writes the size of a conversation in the database, and the limits of it.
func renderGrowth(w io.Writer, rows []row) {
	for _, r := range with(rows, "x-raw-JSON") {
		m := r.metrics
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "1,000 MESSAGES, EACH WITH A CHECKPOINT AND A SNAPSHOT\t\tLIMIT")
		fmt.Fprintf(table, "all tables, TOAST and indexes, without the search index\t%.0f kB\t\n", m["kB"])
		fmt.Fprintf(table, "of that, the same tables without rows\t%.0f kB\t\n", m["kB-empty"])
		fmt.Fprintf(table, "the same conversation with one of each: %.0f kB\t%.2f times\t1.30\n", m["kB-one-snapshot"], m["x-one-snapshot"])
		fmt.Fprintf(table, "the messages as JSON: %.0f kB\t%.2f times\t1.50\n", m["kB-raw-JSON"], m["x-raw-JSON"])
		fmt.Fprintf(table, "a checkpoint with a snapshot\t%.0f bytes\t\n", m["bytes/snapshot"])
		fmt.Fprintf(table, "storing a message\t%.1f ms\t\n", m["append-ms"])
		fmt.Fprintf(table, "storing a message with a checkpoint and a snapshot\t%.1f ms\t\n", m["append-snapshot-ms"])
		fmt.Fprintf(table, "loading the first half\t%.1f ms\t\n", m["load-ms"])
		fmt.Fprintf(table, "forking at the middle\t%.1f ms\t\n", m["fork-ms"])
		fmt.Fprintf(table, "resolving and verifying a snapshot at the middle\t%.1f ms\t\n", m["verify-ms"])
		_ = table.Flush()
	}
}

// renderPlans writes the time of each query, and below it the steps of the plans, which
// the benchmark prints as lines that begin with PLAN.
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
