package toolcall_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/toolcall"
)

func TestWhatASupervisorsAgentMeansByAName(t *testing.T) {
	for said, want := range map[string][]string{
		"parser":                 {"parser", "lead-parser"},
		"lead-parser":            {"lead-parser", "lead-lead-parser"},
		"v1.2":                   {"v1.2", "lead-v1.2"},
		"":                       nil,
		"../secrets/key":         nil,
		"a/status":               nil,
		"..":                     nil,
		"Parser":                 nil,
		"parser\n":               nil,
		"a%2fb":                  nil,
		strings.Repeat("a", 254): nil,
	} {
		if got := toolcall.ObjectNames("lead", said); !slices.Equal(got, want) {
			t.Errorf("%q may mean %v, want %v", said, got, want)
		}
	}
}

func TestTheShortestNameMeansOneTask(t *testing.T) {
	children := []string{"docs", "lead-docs", "lead-parser", "lead-self", "lead-lead-parser"}
	isChild := func(object string) bool { return slices.Contains(children, object) }
	for object, want := range map[string]string{
		"lead-parser":      "parser",
		"docs":             "docs",
		"lead-docs":        "lead-docs",
		"lead-self":        "lead-self",
		"lead-lead-parser": "lead-lead-parser",
	} {
		got := toolcall.ShortName("lead", object, isChild)
		if got != want {
			t.Errorf("%s is called %s, want %s", object, got, want)
		}
		if first := toolcall.ObjectNames("lead", got)[slices.IndexFunc(toolcall.ObjectNames("lead", got), isChild)]; first != object {
			t.Errorf("%s means %s", got, first)
		}
	}
}
