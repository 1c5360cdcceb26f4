package pathmatch_test

import (
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/clew-dev/clew/internal/pathmatch"
)

func TestWhatAPatternSelects(t *testing.T) {
	for _, c := range []struct {
		pattern string
		selects []string
		leaves  []string
	}{
		{"src/main.go", []string{"src/main.go"}, []string{"src/main.go.orig", "src", "main.go", "a/src/main.go"}},
		{"src", []string{"src", "src/a", "src/b/c"}, []string{"srcs", "a/src"}},
		{"src/", []string{"src", "src/a"}, []string{"srcs/a"}},
		{"*.go", []string{"a.go"}, []string{"b/a.go", "a.goo"}},
		{"**/*.go", []string{"a.go", "b/a.go", "b/c/a.go"}, []string{"a.txt"}},
		{"src/**", []string{"src/a", "src/b/c"}, []string{"other"}},
		{"build*", []string{"build1/deep/file", "build"}, []string{"a/build"}},
		{"a/?/c", []string{"a/b/c", "a/b/c/d"}, []string{"a/bb/c"}},
		{"a/[bc].txt", []string{"a/b.txt", "a/c.txt", "a/[bc].txt"}, []string{"a/d.txt"}},
		{"{a,b}/*", []string{"{a,b}/c"}, []string{"a/c", "b/c"}},
		{"app/[id]/page.tsx", []string{"app/[id]/page.tsx", "app/i/page.tsx"}, []string{"app/x/page.tsx"}},
		{".github", []string{".github/workflows/a.yml"}, []string{".gitignore"}},
		{"ünï/*", []string{"ünï/ä"}, []string{"uni/a"}},
	} {
		set, err := pathmatch.New([]string{c.pattern})
		if err != nil {
			t.Errorf("New(%q) returns %v", c.pattern, err)
			continue
		}
		for _, path := range c.selects {
			if !set.Match(path) {
				t.Errorf("%q does not select %q", c.pattern, path)
			}
		}
		for _, path := range c.leaves {
			if set.Match(path) {
				t.Errorf("%q selects %q", c.pattern, path)
			}
		}
	}
}

func TestWhatAPatternLeadsThrough(t *testing.T) {
	for _, c := range []struct {
		pattern string
		through []string
		not     []string
	}{
		{"a/b/c", []string{"a", "a/b"}, []string{"a/b/c", "b", "a/x", "a/b/c/d"}},
		{"a/b/", []string{"a"}, []string{"a/b"}},
		{"charts/*/prod/", []string{"charts", "charts/new"}, []string{"charts/new/test", "other", "other/new"}},
		{"ci/**/deploy.yml", []string{"ci", "ci/a", "ci/a/b"}, []string{"other"}},
		{"**/Jenkinsfile*", []string{"a", "a/b"}, nil},
		{"app/[id]/x", []string{"app/[id]", "app/i"}, []string{"app/x"}},
		{"{a,b}/*", []string{"{a,b}"}, []string{"a"}},
		{"*.yml", nil, []string{"a", "a.yml"}},
	} {
		set, err := pathmatch.New([]string{c.pattern})
		if err != nil {
			t.Errorf("New(%q) returns %v", c.pattern, err)
			continue
		}
		for _, path := range c.through {
			if !set.LeadsTo(path) {
				t.Errorf("%q does not lead through %q", c.pattern, path)
			}
		}
		for _, path := range c.not {
			if set.LeadsTo(path) {
				t.Errorf("%q leads through %q", c.pattern, path)
			}
		}
	}
}

func TestInvalidPatternsGetASentence(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                        "is empty",
		"/etc/passwd":             "begins with a slash",
		"../other":                "leaves the worktree",
		"a/../../b":               "leaves the worktree",
		"a//b":                    "has an empty part",
		"./a":                     "has an empty part",
		".git/config":             "is part of a git repository",
		"sub/.GIT":                "is part of a git repository",
		"a\nb":                    "contains a control character",
		"a\x00b":                  "contains a control character",
		"\xff":                    "not valid UTF-8",
		"a/[b":                    "is not a valid pattern",
		strings.Repeat("a", 1025): "is longer than 1024 bytes",
	} {
		_, err := pathmatch.New([]string{pattern})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%q) returns %v, expected a sentence with %q", pattern, err, want)
		}
	}
	if _, err := pathmatch.New(slices.Repeat([]string{"a"}, pathmatch.MaxPatterns+1)); err == nil {
		t.Error("New accepts any number of patterns")
	}
}

func TestNoPatternSelectsEverything(t *testing.T) {
	var none pathmatch.Set
	if !none.All() || !none.Match("anything/at/all") {
		t.Error("the empty set leaves a path out")
	}
}

func TestManyLongPatternsAreRefused(t *testing.T) {
	if _, err := pathmatch.New(slices.Repeat([]string{strings.Repeat("a", 1000)}, 9)); err == nil {
		t.Error("New accepts patterns of 9000 bytes")
	}
}

func TestAPathAlwaysSelectsItself(t *testing.T) {
	selects := func(path string) bool {
		set, err := pathmatch.New([]string{path})
		return err != nil || set.Match(strings.TrimSuffix(path, "/"))
	}
	if err := quick.Check(selects, nil); err != nil {
		t.Error(err)
	}
}
