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
	render(&table, rows)
	want := "10,000 FILES       P50     GIT STATUS   RATIO\nDiff, changed=10   10 ms   25 ms        0.4\n"
	if table.String() != want {
		t.Errorf("got\n%s\nwant\n%s", table.String(), want)
	}
	if rest != "goos: linux\nPASS\n" {
		t.Errorf("the rest is %q", rest)
	}
}
