package toolcall_test

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/toolcall"
)

func TestWhatASupervisorsAgentCallsATask(t *testing.T) {
	for name, c := range map[string]struct {
		said    string
		objects []string
		short   string
	}{
		"one that it has made":        {"parser", []string{"parser", "lead-parser"}, "parser"},
		"the whole name of that":      {"lead-parser", []string{"lead-parser", "lead-lead-parser"}, "parser"},
		"one that somebody applied":   {"docs", []string{"docs", "lead-docs"}, "docs"},
		"one that begins like itself": {"leader", []string{"leader", "lead-leader"}, "leader"},
	} {
		if got := toolcall.ObjectNames("lead", c.said); !slices.Equal(got, c.objects) {
			t.Errorf("%s: it may mean %v, want %v", name, got, c.objects)
		}
		if got := toolcall.ShortName("lead", c.objects[0]); got != c.short {
			t.Errorf("%s: %s is called %s, want %s", name, c.objects[0], got, c.short)
		}
	}
}
