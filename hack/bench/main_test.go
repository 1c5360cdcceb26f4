package main

import (
	"strings"
	"testing"
)

func TestBenchmarksBecomeATable(t *testing.T) {
	rows, rest, err := read(strings.NewReader(`goos: linux
BenchmarkDiff/changed=10-2   5   9947219 ns/op   25.13 git-status-ms   10.14 p50-ms   0.4036 x-git-status
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	render(&table, rows, rest)
	want := "10,000 FILES       P50     GIT STATUS   RATIO\nDiff, changed=10   10 ms   25 ms        0.4\n"
	if table.String() != want {
		t.Errorf("got\n%s\nwant\n%s", table.String(), want)
	}
	if rest != "goos: linux\nPASS\n" {
		t.Errorf("the rest is %q", rest)
	}
}

func TestATableSaysHowManyFilesThereAre(t *testing.T) {
	rows, rest, err := read(strings.NewReader("BenchmarkFreeze-2   3   1 ns/op   60000 files   4.2 git-status-ms   185 p50-ms   41.8 x-git-status\n"))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	render(&table, rows, rest)
	if want := "60,000 FILES   P50      GIT STATUS   RATIO\nFreeze         185 ms   4 ms         41.8\n"; table.String() != want {
		t.Errorf("got\n%s\nwant\n%s", table.String(), want)
	}
}

func TestHistoryBenchmarksBecomeTables(t *testing.T) {
	rows, rest, err := read(strings.NewReader(`BenchmarkGrowth-2   1   5903893479 ns/op   0.79 append-ms   1.03 append-snapshot-ms   327.7 bytes/snapshot   10.59 fork-ms   3016 kB   528.0 kB-empty   2696 kB-one-snapshot   2073 kB-raw-JSON   52.94 load-ms   40.67 verify-ms   1.119 x-one-snapshot   1.455 x-raw-JSON

PLAN search two words: Limit (21 rows, 1 times, 4 ms)
PLAN search two words:   Sort (21 rows, 1 times, 4 ms)
BenchmarkPlans/search_two_words-2   1   69942072 ns/op   1259 blocks   4.167 plan-ms   21.00 rows
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	var tables strings.Builder
	render(&tables, rows, rest)
	for _, want := range []string{
		"the messages as JSON: 2073 kB                           1.46 times   1.50\n",
		"search two words                                      4.17 ms             21     1259\n",
		"search two words:   Sort (21 rows, 1 times, 4 ms)\n",
	} {
		if !strings.Contains(tables.String(), want) {
			t.Errorf("%q is not in\n%s", want, tables.String())
		}
	}
}
