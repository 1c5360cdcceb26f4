package main

import (
	"strings"
	"testing"
	"time"
)

func TestTally(t *testing.T) {
	for _, test := range []struct {
		name    string
		events  string
		passed  int
		failed  int
		skipped int
		prints  []string
	}{
		{
			name: "leaf tests count, their parents do not",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"run","Package":"p","Test":"A/y"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/y"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"AB"}
{"Action":"pass","Package":"p","Test":"AB"}
{"Action":"pass","Package":"p","Elapsed":0.5}`,
			passed: 3,
			prints: []string{"ok   p", "3 passed (0.5 s)"},
		},
		{
			name: "a failed subtest is one failure, printed in full",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"output","Package":"p","Test":"A/x","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p","Elapsed":1}`,
			failed: 1,
			prints: []string{"FAIL p", "a_test.go:7: wrong"},
		},
		{
			name: "a parent that fails by itself counts",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`,
			passed: 1, failed: 1,
		},
		{
			name: "a test that never ends counts",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"B"}
{"Action":"pass","Package":"p","Test":"B"}
{"Action":"output","Package":"p","Test":"A","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}`,
			passed: 1, failed: 1,
			prints: []string{"A (did not end)", "panic: test timed out"},
		},
		{
			name: "a package that does not build counts, with the compiler's output",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:3: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			failed: 1,
			prints: []string{"undefined: x"},
		},
		{
			name: "skipped tests are neither",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"skip","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}`,
			skipped: 1,
		},
		{
			name: "cached packages count, and say so",
			events: `{"Action":"run","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Output":"ok  \tp\t(cached)\n"}
{"Action":"pass","Package":"p"}`,
			passed: 1,
			prints: []string{"(cached)"},
		},
		{
			name:   "lines that are not events are passed on",
			events: "go: downloading example.com/x v1.0.0",
			prints: []string{"go: downloading example.com/x v1.0.0"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			total, out := &tally{}, &strings.Builder{}
			if err := total.read(strings.NewReader(test.events+"\n"), out); err != nil {
				t.Fatal(err)
			}
			if got, want := [3]int{total.passed, total.failed, total.skipped}, [3]int{test.passed, test.failed, test.skipped}; got != want {
				t.Errorf("passed, failed and skipped are %v, want %v", got, want)
			}
			for _, want := range test.prints {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestLastLine(t *testing.T) {
	total, out := &tally{passed: 12, skips: []string{"p A"}}, &strings.Builder{}
	total.addFailure("p B", "wrong")
	total.summarise(out, 90*time.Second)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; last != "12 passed, 1 failed" {
		t.Errorf("the last line is %q, want the counts", last)
	}
	if !strings.Contains(out.String(), "failed: p B\nwrong\n") || !strings.Contains(out.String(), "skipped: p A") {
		t.Errorf("names are missing:\n%s", out)
	}
}

func TestWhatASoakDidIsAddedUp(t *testing.T) {
	events := `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:7: CLEW_SEED=12\n"}
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:8: soak: 3 killed: daemon\n"}
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:8: soak: 20 killed: manager\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"q","Test":"B","Output":"    b_test.go:8: soak: 4 killed: daemon\n"}
{"Action":"output","Package":"q","Test":"B","Output":"    b_test.go:8: soak: 0 calls lost\n"}
`
	total, out := &tally{}, &strings.Builder{}
	if err := total.read(strings.NewReader(events), out); err != nil {
		t.Fatal(err)
	}
	total.soak.print(out)
	want := `
What was done, and what came of it:
       0  calls lost
      27  killed
       7    daemon
      20    manager
A CLEW_SEED=12
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestChoose(t *testing.T) {
	packages := []testPackage{
		{ImportPath: "m/internal/plan", TestGoFiles: []string{"a_test.go"}, TestImports: []string{"m/internal/testing/builders"}},
		{ImportPath: "m/internal/controller/task", XTestGoFiles: []string{"a_test.go"}, XTestImports: []string{"m/internal/testing/apiserver"}},
		{ImportPath: "m/internal/testing/postgres", TestGoFiles: []string{"a_test.go"}},
		{ImportPath: "m/internal/none"},
	}
	if got := strings.Join(paths(choose(packages, false)), " "); got != "m/internal/plan" {
		t.Errorf("unit: %s", got)
	}
	if got := strings.Join(paths(choose(packages, true)), " "); got != "m/internal/controller/task m/internal/testing/postgres" {
		t.Errorf("integration: %s", got)
	}
}
