package main

import (
	"strings"
	"testing"
)

// tables reads the output of go test and returns the tables, and the lines that are no
// benchmarks.
func tables(t *testing.T, output string) (string, string) {
	t.Helper()
	rows, rest, err := read(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	var written strings.Builder
	render(&written, rows, rest)
	return written.String(), rest
}

func TestBenchmarksBecomeATable(t *testing.T) {
	got, rest := tables(t, `goos: linux
BenchmarkDiff/changed=10-2   5   9947219 ns/op   25.13 git-status-ms   10.14 p50-ms   0.4036 x-git-status
PASS
`)
	if want := "10,000 FILES       P50     GIT STATUS   RATIO\nDiff, changed=10   10 ms   25 ms        0.4\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if want := "goos: linux\nPASS\n"; rest != want {
		t.Errorf("the other lines are %q, want %q", rest, want)
	}
}

func TestDiffsBecomeATable(t *testing.T) {
	got, _ := tables(t, "BenchmarkDiff/900_checkpoints_apart-2   20   1 ns/op   40 diff-tree-ms   100 p50-ms   120 p95-ms   2.5 x-diff-tree\n")
	want := "DIFF OF 500 IN 10,000 FILES   P50      P95      GIT DIFF-TREE   RATIO\n900 checkpoints apart         100 ms   120 ms   40 ms           2.5\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheTableHasTheNumberOfFiles(t *testing.T) {
	got, _ := tables(t, "BenchmarkFreeze-2   3   1 ns/op   60000 files   4.2 git-status-ms   185 p50-ms   41.8 x-git-status\n")
	if want := "60,000 FILES   P50      GIT STATUS   RATIO\nFreeze         185 ms   4 ms         41.8\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSeveralRunsAreShownByTheirMedians(t *testing.T) {
	got, _ := tables(t, `BenchmarkDiff-2   5   1 ns/op   20 git-status-ms   10 p50-ms   0.5 x-git-status
BenchmarkDiff-2   5   1 ns/op   30 git-status-ms   900 p50-ms   30 x-git-status
BenchmarkDiff-2   5   1 ns/op   21 git-status-ms   12 p50-ms   0.6 x-git-status
`)
	if want := "10,000 FILES   P50     GIT STATUS   RATIO\nDiff           12 ms   21 ms        0.6\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestALineThatIsNoBenchmarkIsAnError(t *testing.T) {
	_, _, err := read(strings.NewReader("BenchmarkDiff-2   5   fast ns/op\n"))
	if want := "stdin:1: parsing measurement"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}

func TestHistoryBenchmarksBecomeTables(t *testing.T) {
	got, _ := tables(t, `BenchmarkGrowth-2   1   5903893479 ns/op   0.79 append-ms   1.03 append-snapshot-ms   327.7 bytes/snapshot   10.59 fork-ms   3016 kB   528.0 kB-empty   2696 kB-one-snapshot   2073 kB-raw-JSON   52.94 load-ms   40.67 verify-ms   1.119 x-one-snapshot   1.455 x-raw-JSON

PLAN search two words: Limit (21 rows, 1 times, 4 ms)
PLAN search two words:   Sort (21 rows, 1 times, 4 ms)
BenchmarkPlans/search_two_words-2   1   69942072 ns/op   1259 blocks   4.167 plan-ms   21.00 rows
PASS
`)
	for _, want := range []string{
		"the messages as JSON: 2073 kB                             1.46 times   1.50\n",
		"search two words                                      4.17 ms             21     1259\n",
		"search two words:   Sort (21 rows, 1 times, 4 ms)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
