package filled_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/testing/filled"
)

type Inner struct {
	Text string
	Time time.Time
}

type outer struct {
	Inner
	Count   int64
	Yes     bool
	Pointer *Inner
	List    []Inner
	Names   map[string]string
	hidden  string
}

func TestEveryFieldIsFilled(t *testing.T) {
	var v outer
	filled.In(&v)
	if empty := filled.Empty(v); len(empty) != 0 || v.hidden != "" {
		t.Errorf("these fields are still empty: %v", empty)
	}
	if v.Pointer.Text == v.List[0].Text {
		t.Errorf("two fields have the same text %q, so a test could not tell them apart", v.Pointer.Text)
	}
}

func TestEmptyFieldsAreNamed(t *testing.T) {
	v := outer{Count: 1, List: []Inner{{Text: "a"}}, Pointer: &Inner{}}
	want := []string{"Yes", "Pointer.Text", "Pointer.Time", "List[0].Time", "Count is not empty"}
	if d := cmp.Diff(want, filled.Empty(v, "Names", "Text", "Time", "Count")); d != "" {
		t.Error(d)
	}
}

func TestEmptyFieldsOfAMessageAreNamed(t *testing.T) {
	m := &daemonv1.CheckpointRecord{}
	filled.InMessage(m)
	if empty := filled.EmptyIn(m); len(empty) != 0 {
		t.Errorf("still empty: %v", empty)
	}
	m = &daemonv1.CheckpointRecord{RiskyTool: &daemonv1.RiskyTool{Name: "rm"}, Skipped: []*daemonv1.SkippedFile{{Path: "a"}}}
	empty := filled.EmptyIn(m)
	for _, name := range []string{"risky_tool.call_id", "skipped[0].reason", "commit"} {
		if !slices.Contains(empty, name) {
			t.Errorf("%s is empty, but not in %v", name, empty)
		}
	}
	if slices.Contains(empty, "risky_tool.name") || slices.Contains(empty, "risky_tool") {
		t.Errorf("a field that is not empty is in %v", empty)
	}
}
